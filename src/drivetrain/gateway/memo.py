"""Messages a session has seen already, by their raw JSON.

A harness sends its whole history in every call. Each message is decoded and hashed once; when the same bytes come
again, that work is a look-up (design section 4, "Match": work proportional to what is new).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from drivetrain.messages import Message
from drivetrain.trace.keys import Key, message_key

_LIMIT_BYTES = 32 << 20


class KnownMessage(msgspec.Struct, frozen=True):
    """A decoded message and its tolerant key."""

    message: Message
    key: Key


Known = tuple[KnownMessage, ...]


class MessageMemo:
    """Decoded messages by what reads them and raw slice; forgets everything when the slices exceed ``limit_bytes``.

    One slice may hold several messages: an Anthropic user message carries tool results and text side by side. The same
    bytes mean one thing to one API, or as a system prompt, and may mean another elsewhere: ``reader`` says who asks.
    """

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._known: dict[tuple[str, bytes], Known] = {}
        self._bytes = 0
        self.decoded = 0
        """Slices that had to be decoded so far."""

    def get(self, reader: str, raw: bytes) -> Known | None:
        """What these bytes decoded to before, or None."""
        return self._known.get((reader, raw))

    def put(self, reader: str, raw: bytes, messages: Sequence[Message]) -> Known:
        """Remember what a slice decodes to."""
        self.decoded += 1
        self._bytes += len(raw)
        if self._bytes > self._limit:
            self._known.clear()
            self._bytes = len(raw)
        known = tuple(KnownMessage(message, message_key(message)) for message in messages)
        self._known[reader, raw] = known
        return known

    def clear(self) -> None:
        """Forget everything: the session is sealed."""
        self._known.clear()
        self._bytes = 0
