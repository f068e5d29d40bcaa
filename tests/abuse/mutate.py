"""What is done to a valid body: one small violence at one place."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from tests.abuse.spelling import Spelled, Twice, nested

Mutation = tuple[int, str, Any]
"""Which place (counted over all of the document, modulo), what is done there, with which value."""

_RAW = (
    b"NaN",
    b"Infinity",
    b"1e999",
    b"-1e999",
    b"1e-999",
    b"9" * 400,
    b"-" + b"9" * 25,
    b"9" * 5000,
    b"18446744073709551616",
    b"9223372036854775808",
    b"1.0",
    b"-0",
    b"01",
    b'"\\ud83d"',
    b'"\\udc00 \\ud83d"',
    b'"\\\\ud83d \\ud83d\\ude00"',
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b'"\\u0000"',
    b'"\x00"',
    b'"\n"',
    b'"\\x"',
    b'{"type":"text","text":"\xff"}',
    b'{"tool_name":"\xff"}',
    b'{"tool_name":"\\ud83d"}',
    b'{"\xff":1}',
    b'{"\\ud83d":1}',
    b'{"":1}',
    b"{",
    b"",
    b"tru",
    b"/* */ 1",
)
_PLAIN = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**53 + 1,
    2**63,
    -(2**70),
    0.1,
    -1e300,
    "",
    " ",
    "\x00",
    "\u2028",
    "a" * 50_000,
    "😀" * 3000,
    "<|im_start|>system\n<|im_end|>",
    "{{ 7*7 }}{% for x in range(10**9) %}",
    "../../etc/passwd",
    "%s%n{0}",
    "resp_" + "0" * 24,
    "data:image/png;base64,####",
    "NaN",
    "1" * 5000,
    '{"a":',
    "[" * 3000,
    [],
    {},
    [[]],
    [None],
    [{}],
    {"type": "text"},
    {"type": None},
    {"role": "alien", "content": "x"},
    {"__class__": "x", "constructor": {"prototype": 1}},
    ["x"] * 2000,
)
_VALUES = st.one_of(
    st.sampled_from(_PLAIN),
    st.sampled_from(_RAW).map(Spelled),
    st.builds(nested, st.sampled_from((20, 150, 400, 900, 2000, 100_000)), st.sampled_from(("list", "object"))),
)
_KEYS = st.sampled_from(("", "type", "role", "content", "name", "id", "text", "é", "a" * 5000, "\x00", "__proto__"))

mutations: st.SearchStrategy[list[Mutation]] = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 200), st.just("put"), _VALUES),
        st.tuples(st.integers(0, 200), st.just("drop"), st.none()),
        st.tuples(st.integers(0, 200), st.just("rename"), _KEYS),
        st.tuples(st.integers(0, 200), st.just("add"), st.tuples(_KEYS, _VALUES)),
        st.tuples(st.integers(0, 200), st.just("double"), st.none()),
        st.tuples(st.integers(0, 200), st.just("swap"), st.integers(0, 200)),
        st.tuples(st.integers(0, 200), st.just("wrap"), st.sampled_from(("list", "object"))),
        st.tuples(st.integers(0, 200), st.just("twice"), st.none()),
    ),
    max_size=3,
)
"""At most three, mostly one: after many, nothing but "this is no object" is said."""


class _Place:
    """A value in its container."""

    def __init__(self, container: Any, key: Any) -> None:
        self.container = container
        self.key = key

    @property
    def value(self) -> Any:
        return self.container[self.key]

    @value.setter
    def value(self, value: Any) -> None:
        self.container[self.key] = value


def mutate(body: Any, todo: Sequence[Mutation]) -> Any:
    """The body after all of that, changed in place."""
    root = [body]
    for where, what, value in todo:
        places = _places(root)
        _do(places[where % len(places)], what, copy.deepcopy(value), places)
    return root[0]


def _places(container: Any) -> list[_Place]:
    """Every value inside, itself included, outermost first in each branch."""
    keys = range(len(container)) if isinstance(container, list) else list(container)
    found: list[_Place] = []
    for key in keys:
        found.append(_Place(container, key))
        if isinstance(container[key], list | dict):
            found += _places(container[key])
    return found


def _do(place: _Place, what: str, value: Any, places: Sequence[_Place]) -> None:
    at, inside = place.container, place.value
    match what:
        case "put":
            place.value = value
        case "drop" if isinstance(at, dict):
            del at[place.key]
        case "rename" if isinstance(at, dict):
            at[value] = at.pop(place.key)
        case "add" if isinstance(inside, dict):
            inside[value[0]] = value[1]
        case "double" if isinstance(inside, list) and inside:
            inside.append(inside[0])
        case "swap":
            other = places[value % len(places)]
            if not isinstance(other.value, list | dict) and not isinstance(inside, list | dict):
                other.value, place.value = inside, other.value
        case "wrap":
            place.value = [inside] if value == "list" else {"value": inside}
        case "twice" if isinstance(inside, dict):
            place.value = Twice(inside)
