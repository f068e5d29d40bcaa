"""The tolerant key: what is the same to the model, and what is not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.messages import Message, ToolCall, ToolSpec
from drivetrain.trace.keys import message_key, tools_key
from drivetrain.trace.watermark import mint_call_id, read_call_id

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def call(arguments: str, call_id: str = "a", name: str = "f") -> Message:
    return Message("assistant", "text", tool_calls=(ToolCall(call_id, name, arguments),))


@pytest.mark.case("A4")
@given(st.dictionaries(st.text(), json_values))
def test_reserialised_arguments_are_the_same(value: dict[str, object]) -> None:
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    spaced = json.dumps(dict(reversed(value.items())), indent=2)
    assert message_key(call(compact)) == message_key(call(spaced, "other id"))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ('{"n": 5000.0}', '{"n": 5000}'),
        ('{"n": 1e3}', '{"n": 1000}'),
        ('{"n": 9007199254740993}', '{"n": 9007199254740992}'),
        ('{"e": "\\u00e9"}', '{"e":"é"}'),
    ],
)
def test_what_javascript_does_to_arguments(left: str, right: str) -> None:
    assert message_key(call(left)) == message_key(call(right))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ('{"n": 1}', '{"n": 2}'),
        ('{"n": 1}', '{"n": "1"}'),
        ('{"n": true}', '{"n": 1}'),
        ('{"n": [1, 2]}', '{"n": [2, 1]}'),
        ("{}", "not json"),
    ],
)
def test_other_arguments_differ(left: str, right: str) -> None:
    assert message_key(call(left)) != message_key(call(right))


def test_assistant_text() -> None:
    assert message_key(Message("assistant", "done")) == message_key(Message("assistant", "done \n", reasoning="hm"))
    assert message_key(Message("assistant", "done")) != message_key(Message("assistant", " done"))
    assert message_key(call("{}")) != message_key(call("{}", name="g"))


@given(st.text(), st.text())
def test_other_roles_are_strict(left: str, right: str) -> None:
    for role in ("user", "system", "tool"):
        same = message_key(Message(role, left)) == message_key(Message(role, right))  # type: ignore[arg-type]
        assert same == (left == right)
    assert message_key(Message("user", left)) != message_key(Message("system", left))


def test_tool_order_does_not_matter() -> None:
    one, two = ToolSpec("a"), ToolSpec("b", "x", {"type": "object"})
    assert tools_key([one, two]) == tools_key([two, one])
    assert tools_key([one]) != tools_key([one, two])
    assert tools_key([two]) != tools_key([ToolSpec("b", "y", {"type": "object"})])


@given(st.integers(0, 10**9), st.integers(0, 300))
def test_watermarks_round_trip_in_their_session_only(turn: int, index: int) -> None:
    minted = mint_call_id("0123abcd", turn, index)
    assert read_call_id(minted, "0123abcd") == (turn, index)
    assert read_call_id(minted, "ffffffff") is None
    assert read_call_id(minted + "x", "0123abcd") is None
