"""Characters to tokens: exact where tokens are whole characters, shared where UTF-8 is split over tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drivetrain.tokens.codec import TokenCodec
from drivetrain.tokens.parse import get_parser
from drivetrain.tokens.spans import token_offsets, token_spans


class ByteTokenizer:
    """One token per byte."""

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")


class LeadingSpaceTokenizer:
    """Words with a leading space that the first one loses, as SentencePiece decoders do."""

    words = ["", " a", " bc", " é"]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.words[index] for index in ids).removeprefix(" ")


@given(st.text())
def test_every_byte_maps_to_its_character(text: str) -> None:
    ids = list(text.encode())
    expected = [(i, i + 1) for i, char in enumerate(text) for _ in char.encode()]
    if "\ufffd" not in text:
        assert token_offsets(ids, ByteTokenizer()) == expected


@given(st.lists(st.integers(0, 255), max_size=40))
def test_broken_bytes_are_covered(ids: list[int]) -> None:
    tokenizer = ByteTokenizer()
    text = tokenizer.decode(ids)
    offsets = token_offsets(ids, tokenizer)
    assert len(offsets) == len(ids)
    assert {i for a, b in offsets for i in range(a, b)} == set(range(len(text)))
    assert all(a <= b for a, b in offsets)
    assert offsets == sorted(offsets)


@given(st.lists(st.integers(0, 3), max_size=20))
def test_decoders_that_trim_the_front(ids: list[int]) -> None:
    tokenizer = LeadingSpaceTokenizer()
    text, offsets = tokenizer.decode(ids), token_offsets(ids, tokenizer)
    assert {i for a, b in offsets for i in range(a, b)} == set(range(len(text)))
    for index, (start, end) in zip(ids, offsets, strict=True):
        if index:
            assert tokenizer.words[index].strip() in text[start:end]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(st.text(max_size=30), st.text(max_size=8))
def test_real_tokenizer_spans_hold_their_text(codec: TokenCodec, before: str, inside: str) -> None:
    text = before + "<|im_start|>" + inside + "é" + before
    ids = codec.tokenizer.encode(text)
    decoded = codec.tokenizer.decode(ids)
    start = decoded.index("<|im_start|>")
    (span,) = token_spans(ids, [(start, start + len("<|im_start|>" + inside + "é"))], codec.tokenizer)
    assert inside + "é" in codec.tokenizer.decode(ids[slice(*span)])
    assert codec.tokenizer.decode(ids[: span[0]]) == decoded[:start]


def test_a_call_maps_to_its_tokens(codec: TokenCodec) -> None:
    call = '<tool_call>{"name": "f", "arguments": {"s": "漢🙂"}}</tool_call>'
    ids = codec.tokenizer.encode(f"Let me see 🙂.\n{call} done")
    parsed = get_parser("hermes")(codec.tokenizer.decode(ids))
    (span,) = token_spans(ids, [parsed.calls[0].span], codec.tokenizer)
    assert '{"name": "f", "arguments": {"s": "漢🙂"}}' in codec.tokenizer.decode(ids[slice(*span)])


@pytest.mark.parametrize("spans", [[], [(0, 0)], [(5, 9)]])
def test_empty_spans(spans: list[tuple[int, int]]) -> None:
    assert token_spans([], spans, ByteTokenizer()) == [(0, 0)] * len(spans)
