"""JSON as no well-behaved client writes it: the same value, or nearly, in bytes that decoders stumble over."""

from __future__ import annotations

import json
from typing import Any


class Spelled:
    """Bytes that stand in a document as they are, valid or not."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def __repr__(self) -> str:
        return f"Spelled({self.raw[:60]!r}{'...' if len(self.raw) > 60 else ''})"


class Twice(dict[str, Any]):
    """An object whose every key is written twice, the first time with the value null."""


def spell(value: Any, *, spaced: bool = False) -> bytes:
    """The document; ``spaced`` puts a line break wherever white space is allowed."""
    gap = b"\n " if spaced else b""
    if isinstance(value, Spelled):
        return value.raw
    if isinstance(value, dict):
        items = [(key, item) for key, item in value.items()]
        if isinstance(value, Twice):
            items = [*((key, None) for key in value), *items]
        pairs = [spell(key) + gap + b":" + gap + spell(item, spaced=spaced) for key, item in items]
        return b"{" + gap + (b"," + gap).join(pairs) + gap + b"}"
    if isinstance(value, list | tuple):
        return b"[" + gap + (b"," + gap).join(spell(item, spaced=spaced) for item in value) + gap + b"]"
    return json.dumps(value, ensure_ascii=True).encode()


def nested(depth: int, kind: str = "list") -> Spelled:
    """Lists or objects in each other."""
    opened, closed = (b"[", b"]") if kind == "list" else (b'{"a":', b"}")
    return Spelled(opened * depth + b"1" + closed * depth)
