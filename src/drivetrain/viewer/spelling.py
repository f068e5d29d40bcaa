"""How tokens are spelled: by their own bytes where the tokenizer tells them, and as escapes where they are no text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from drivetrain.viewer.document import TokenTable

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_REPLACEMENT = "�"


class Speller(Protocol):
    """The part of a :class:`drivetrain.tokens.tokenizer.Tokenizer` that spelling needs."""

    special_tokens: dict[str, int]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens spelled out."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Spelling of each id in the vocabulary."""


def token_table(ids: Iterable[int], speller: Speller | None) -> TokenTable:
    """The table of all distinct ids, in ascending order; without a tokenizer a token is spelled as its id."""
    table = TokenTable(ids=sorted(set(ids)), spelled=speller is not None)
    if speller is None:
        table.texts = [str(token) for token in table.ids]
        return table
    special = set(speller.special_tokens.values())
    table.special = [index for index, token in enumerate(table.ids) if token in special]
    for index, (token, piece) in enumerate(zip(table.ids, speller.pieces(table.ids), strict=True)):
        text = speller.decode([token])
        raw = _bytes_of(piece) if _REPLACEMENT in text else None
        if raw is not None:
            text = raw.decode("utf-8", "backslashreplace")
            table.raw[index] = raw.hex()
        table.texts.append(text or piece)  # some decoders drop a token that stands alone
    return table


def _bytes_of(piece: str) -> bytes | None:
    """The bytes of a token that is no text by itself; None when its spelling does not tell them."""
    if match := _BYTE_TOKEN.fullmatch(piece):
        return bytes([int(match[1], 16)])
    if all(char in _BYTE_OF for char in piece):
        raw = bytes(_BYTE_OF[char] for char in piece)
        return None if _is_text(raw) else raw
    return None


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable character: itself, or one counted from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(shifted)}


_BYTE_OF = _byte_alphabet()
