"""Values of a type: requests as the official SDKs' own types declare them, every block kind and option included."""

from __future__ import annotations

import base64
import datetime
import enum
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from random import Random
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin

import pydantic
from typing_extensions import is_typeddict

_WORDS = ("ls", "", "hello", "é 😀", "a" * 300, "null", "0", "file.py", " \n\t", "https://example.invalid/x.png")
_DEEPEST = 6


@cache
def _fields(kind: type) -> dict[str, tuple[Any, bool]]:
    """Type and "must be there" of each field of a TypedDict or of a pydantic model."""
    if is_typeddict(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        required = kind.__required_keys__
        return {name: (hint, get_origin(hint) is Required or name in required) for name, hint in hints.items()}
    assert issubclass(kind, pydantic.BaseModel)
    return {field.alias or name: (field.annotation, field.is_required()) for name, field in kind.model_fields.items()}


class Maker:
    """Makes values from one source of chance; ``common`` are fields that are made more often than the other options."""

    def __init__(self, chance: Random, common: frozenset[str] = frozenset()) -> None:
        self._chance = chance
        self._common = common

    def value(self, hint: Any, depth: int = 0) -> Any:
        """A JSON value of this type; optional fields come seldom, and hardly ever deep inside."""
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Required, NotRequired, Annotated):
            return self.value(arguments[0], depth)
        if origin is Literal:
            return self._chance.choice(arguments)
        if origin in (Union, types.UnionType):
            return self.value(self._chance.choice(arguments), depth)
        if origin is not None and issubclass(origin, Mapping):
            return {self._word(): self.value(arguments[-1], depth + 1) for _ in range(self._few(depth))}
        if origin is not None and issubclass(origin, Iterable):
            return [self.value(arguments[0], depth + 1) for _ in range(self._few(depth))]
        if isinstance(hint, type):
            return self._of_class(hint, depth)
        return self._anything(depth)

    def _of_class(self, kind: type, depth: int) -> Any:
        if is_typeddict(kind) or issubclass(kind, pydantic.BaseModel):
            return self._object(kind, depth)
        if issubclass(kind, enum.Enum):
            return self._chance.choice(list(kind)).value
        simple = {
            str: self._word,
            bool: lambda: self._chance.random() < 0.5,
            int: lambda: self._chance.choice((0, 1, 2, 7, 512, 100_000)),
            float: lambda: self._chance.choice((0.0, 0.5, 1.0, 2.0)),
            bytes: lambda: base64.b64encode(self._word().encode()).decode(),
            type(None): lambda: None,
            datetime.datetime: lambda: "2026-01-01T00:00:00Z",
            dict: dict,
            list: list,
        }
        return simple[kind]() if kind in simple else self._anything(depth)

    def _object(self, kind: type, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, (hint, required) in _fields(kind).items():
            often = 0.6 if name in self._common else 0.15 if depth < 3 else 0.03
            if required or (depth < _DEEPEST and self._chance.random() < often):
                made[name] = self.value(hint, depth + 1)
        return made

    def _anything(self, depth: int) -> Any:
        return self._chance.choice((None, True, 1, 0.5, "text", [], {}, {"type": "object"}, [1, "a"]))

    def _word(self) -> str:
        return self._chance.choice(_WORDS)

    def _few(self, depth: int) -> int:
        return 0 if depth > _DEEPEST else self._chance.choice((0, 1, 1, 1, 2, 3))
