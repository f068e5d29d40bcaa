"""Types as JSON schemas under names of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from drivetrain.gateway.openapi.operation import JSON, Events, Shape, Tagged

_REF = "#/components/schemas/"
_ROLE = re.compile(r":\w+:`~?([^`]*)`")

Raw = Mapping[tuple[type, str], Shape]
"""What is really in a field whose type does not say it (``msgspec.Raw``, a dict that is read later): by struct and by
the field's name on the wire."""


class Vocabulary:
    """The schemas of some shapes; structs are components, called ``prefix`` and their name.

    Args:
        prefix: of every name.
        shapes: what is described.
        raw: see :data:`Raw`.
    """

    def __init__(self, prefix: str, shapes: Iterable[Shape], raw: Raw) -> None:
        self._prefix = prefix
        types = list(dict.fromkeys(kind for shape in [*shapes, *raw.values()] for kind in _types(shape)))
        schemas, made = msgspec.json.schema_components(types, ref_template=_REF + "{name}")
        self._schemas = dict(zip(types, map(self._tidy, schemas), strict=True))
        self.components: dict[str, Any] = {self._public(name): self._tidy(schema) for name, schema in made.items()}
        for (struct, field), really in raw.items():
            fields = self.components[self._public(struct.__name__)]["properties"]
            default = {"default": fields[field]["default"]} if "default" in fields[field] else {}
            fields[field] = {**self.schema(really), **default}

    def schema(self, shape: Shape) -> dict[str, Any]:
        """The schema of one of the shapes."""
        if isinstance(shape, tuple):
            return {"anyOf": [self.schema(one) for one in shape]}
        if isinstance(shape, list):
            return {"type": "array", "items": self.schema(shape[0])}
        if isinstance(shape, Events):
            return self._event(shape)
        if isinstance(shape, Tagged):
            tag: dict[str, Any] = {"type": "object", "properties": {"type": {"const": shape.tag}}}
            return {"allOf": [tag if shape.usual else {**tag, "required": ["type"]}, self._schemas[shape.struct]]}
        found: dict[str, Any] = shape if isinstance(shape, dict) else self._schemas[shape]
        return found

    def _event(self, events: Events) -> dict[str, Any]:
        payload = {"contentMediaType": JSON, "contentSchema": self.schema(events.payload)}
        data: dict[str, Any] = {"type": "string", **payload}
        if events.closing:
            data = {"anyOf": [{"const": events.closing}, data]}
        fields = {"event": {"type": "string"}, "data": data}
        return {"type": "object", "description": events.description, "properties": fields, "required": ["data"]}

    def _public(self, name: str) -> str:
        return self._prefix + name.lstrip("_")

    def _tidy(self, schema: Any) -> Any:
        """References and titles under public names; docstrings as plain text."""
        if isinstance(schema, list):
            return [self._tidy(one) for one in schema]
        if not isinstance(schema, dict):
            return schema
        return {key: self._tidied(key, value) for key, value in schema.items()}

    def _tidied(self, key: str, value: Any) -> Any:
        if key == "mapping":
            return {tag: self._public_ref(ref) for tag, ref in value.items()}
        if not isinstance(value, str):
            return self._tidy(value)
        if key == "$ref":
            return self._public_ref(value)
        if key == "title":
            return self._public(value)
        return _ROLE.sub(r"`\1`", value).replace("``", "`") if key == "description" else value

    def _public_ref(self, ref: str) -> str:
        return _REF + self._public(ref.removeprefix(_REF))


def _types(shape: Shape) -> list[Any]:
    if isinstance(shape, tuple | list):
        return [kind for one in shape for kind in _types(one)]
    if isinstance(shape, Events):
        return _types(shape.payload)
    if isinstance(shape, Tagged):
        return [shape.struct]
    return [] if shape is None or isinstance(shape, dict) else [shape]
