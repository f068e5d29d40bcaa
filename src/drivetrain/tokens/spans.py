"""Character spans of a decoded completion -> token spans of its ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

Span = tuple[int, int]
_BROKEN = "\ufffd"
_CHARACTER_BYTES = 4


class Decoder(Protocol):
    """What is asked of a tokenizer."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens spelled out, broken UTF-8 as U+FFFD."""
        ...


def token_offsets(ids: Sequence[int], tokenizer: Decoder) -> list[Span]:
    """Characters of ``tokenizer.decode(ids)`` each token contributes to.

    Decodes incrementally, a few tokens at a time. Tokens that share a character (UTF-8 split over tokens) all get the
    whole of it; a token that adds no character gets an empty span.
    """
    text = tokenizer.decode(ids)
    offsets = _incremental(ids, tokenizer)
    pieces = offsets[-1][1] if offsets else 0
    if pieces == len(text) and _agrees(ids, tokenizer, offsets, text):
        return offsets
    return _by_prefix(ids, tokenizer, text)


def token_spans(ids: Sequence[int], spans: Iterable[Span], tokenizer: Decoder) -> list[Span]:
    """For each character span the smallest token span ``[start, end)`` that covers it."""
    offsets = token_offsets(ids, tokenizer)
    found = []
    for start, end in spans:
        touched = [i for i, (a, b) in enumerate(offsets) if a < end and b > start]
        found.append((touched[0], touched[-1] + 1) if touched else (0, 0))
    return found


def _incremental(ids: Sequence[int], tokenizer: Decoder) -> list[Span]:
    """Offsets from windows: the tokens of the last finished group, then those of the one being read."""
    offsets: list[Span] = []
    group = context = 0
    at = 0
    while len(offsets) < len(ids):
        before = tokenizer.decode(ids[context:group])
        for stop in range(group + 1, len(ids) + 1):
            after = tokenizer.decode(ids[context:stop])
            unfinished = after.endswith(_BROKEN) and stop - group < _CHARACTER_BYTES
            if not unfinished or stop == len(ids):
                break
        size = len(after) - len(before)
        offsets += [(at, at + size)] * (stop - group)
        at += size
        context, group = group, stop
    return offsets


def _agrees(ids: Sequence[int], tokenizer: Decoder, offsets: Sequence[Span], text: str) -> bool:
    """Whether cutting the text at the offsets is what decoding to that point gives, sampled at a few places."""
    places = range(0, len(ids), max(1, len(ids) // 8))
    for place in places:
        if place and offsets[place][0] != offsets[place - 1][0]:
            prefix = tokenizer.decode(ids[:place])
            if prefix != text[: offsets[place][0]]:
                return False
    return True


def _by_prefix(ids: Sequence[int], tokenizer: Decoder, text: str) -> list[Span]:
    """Offsets from decoding every prefix: quadratic, for tokenizers whose decoding does not split into windows."""
    starts = [0]
    for stop in range(1, len(ids) + 1):
        prefix = tokenizer.decode(ids[:stop])
        common = next((i for i, (a, b) in enumerate(zip(prefix, text, strict=False)) if a != b), None)
        length = min(len(prefix), len(text)) if common is None else common
        while length and stop < len(ids) and prefix.endswith(_BROKEN) and length == len(prefix):
            length -= 1
            prefix = prefix[:-1]
        starts.append(max(starts[-1], length))
    starts[-1] = len(text)
    offsets: list[Span] = []
    for index in range(len(ids)):
        start, end = starts[index], starts[index + 1]
        if start == end:
            end = next((value for value in starts[index + 1 :] if value > start), start)
        offsets.append((start, end))
    return offsets
