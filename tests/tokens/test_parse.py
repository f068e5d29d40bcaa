"""Parsing sampled text: calls are read, malformed output surfaces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.errors import ConfigError
from drivetrain.messages import ToolSpec
from drivetrain.tokens.codec import TokenCodec
from drivetrain.tokens.parse import get_parser, parse_hermes, parse_text

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(st.text(min_size=1), json_values, max_size=4)


@given(st.lists(st.tuples(st.from_regex(r"[a-z_]{1,12}", fullmatch=True), arguments), min_size=1, max_size=3))
def test_every_well_formed_call_is_read(calls: list[tuple[str, dict[str, object]]]) -> None:
    blocks = [json.dumps({"name": name, "arguments": value}) for name, value in calls]
    if any("</tool_call>" in block for block in blocks):
        return
    parsed = parse_hermes("thinking\n" + "\n".join(f"<tool_call>\n{block}\n</tool_call>" for block in blocks))
    assert [(call.name, json.loads(call.arguments)) for call in parsed.calls] == calls
    assert parsed.content == "thinking"
    assert parsed.notes == ()


def test_arguments_keep_their_sampled_spelling() -> None:
    parsed = parse_hermes('<tool_call>{"name": "f", "arguments": {"n":5000.0,  "e": "\\u00e9"}}</tool_call>')
    assert parsed.calls[0].arguments == '{"n":5000.0,  "e": "\\u00e9"}'


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("<tool_call>{not json}</tool_call>", "malformed_tool_call"),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', "malformed_tool_call"),
        ('<tool_call>{"name": "f", "arguments": "text"}</tool_call>', "malformed_tool_call"),
        ('so: <tool_call>{"name": "f", "argu', "truncated_tool_call"),
    ],
)
def test_what_cannot_be_read_surfaces_as_text(text: str, note: str) -> None:
    parsed = parse_hermes(text)
    assert parsed.calls == ()
    assert parsed.content == text
    assert parsed.notes == (note,)


def test_good_call_beside_a_cut_one() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>\n<tool_call>{"name": "g"'
    parsed = parse_hermes(text)
    assert [call.name for call in parsed.calls] == ["f"]
    assert parsed.content == '<tool_call>{"name": "g"'
    assert parsed.notes == ("truncated_tool_call",)


@given(st.text())
def test_text_parser_returns_the_text(text: str) -> None:
    assert parse_text(text).content == text


@given(st.text())
def test_text_without_calls_is_untouched(text: str) -> None:
    if "<tool_call>" not in text:
        assert parse_hermes(text).content == text


def test_stop_token_is_dropped_and_others_are_spelled(codec: TokenCodec) -> None:
    close = codec.boundary.close_id
    ids = codec.tokenizer.encode("hello <|im_start|>user")
    assert codec.parse([*ids, close], tools=()).content == "hello <|im_start|>user"
    assert codec.parse(ids, tools=()).content == "hello <|im_start|>user"


def test_without_tools_blocks_stay_text(codec: TokenCodec) -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    ids = codec.tokenizer.encode(text)
    assert codec.parse(ids, tools=()).content == text
    assert codec.parse(ids, tools=[ToolSpec("f")]).calls[0].name == "f"


def test_unknown_parser() -> None:
    with pytest.raises(ConfigError, match="hermes"):
        get_parser("hermse")
