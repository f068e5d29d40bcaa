"""What a session remembers of its JSON makes no difference but the time it takes.

A harness sends its history in every call; messages are found again by their raw slices. The slices are compared with
``json.loads`` of the whole body, and a decoder that remembers with one that does not. ``make fuzz`` looks for inputs
of the second by coverage too (``tests/abuse/coverage_slices.py``).
"""

from __future__ import annotations

import json
import os
from random import Random
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from drivetrain.gateway.memo import MessageMemo
from tests.abuse.bodies import APIS
from tests.abuse.fuzzing import fuzzed
from tests.abuse.mutate import mutations
from tests.abuse.remembering import read

COUNT = int(os.environ.get("DRIVETRAIN_FUZZ", "100"))
KEYS = st.sampled_from(["messages", "a", "", "é", "\\", '"', "\u2028", "messages "])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def fuzzing(count: int) -> Any:
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


class _Body(msgspec.Struct):
    messages: list[msgspec.Raw] = []


@fuzzing(COUNT)
@given(
    st.dictionaries(KEYS, VALUES, max_size=3),
    st.lists(VALUES, max_size=4),
    st.sampled_from([None, 0, 1, "\t", "\n \r"]),
    st.booleans(),
)
def test_slices_are_the_values_between_their_commas(
    others: dict[str, Any], messages: list[Any], indent: Any, ascii_only: bool
) -> None:
    body = json.dumps({**others, "messages": messages}, indent=indent, ensure_ascii=ascii_only).encode()
    slices = [bytes(raw) for raw in msgspec.json.decode(body, type=_Body).messages]
    assert [json.loads(raw) for raw in slices] == json.loads(body)["messages"]
    assert all(raw == raw.strip() for raw in slices)


@fuzzing(COUNT // 2)
@given(st.lists(st.tuples(st.integers(0, 2**32), mutations, st.sampled_from(APIS)), min_size=2, max_size=4))
def test_a_decoder_that_remembers_reads_the_same(calls: list[Any]) -> None:
    """Calls of any APIs, in any order, each twice: in one memory that forgets now and then, and in none."""
    memo = MessageMemo(limit_bytes=Random(calls[0][0]).choice((200, 1 << 20)))
    for seed, todo, api in [*calls, *calls]:
        path, body = fuzzed(api, seed, todo, spaced=False)
        try:
            body.decode()
        except UnicodeDecodeError:
            continue  # refused before it is decoded
        assert read(api.name, path, body, memo) == read(api.name, path, body, MessageMemo())
