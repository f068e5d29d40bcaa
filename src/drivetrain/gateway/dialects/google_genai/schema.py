"""Google's spelling of JSON schema and of field names."""

from __future__ import annotations

import re
from typing import Any

_SCHEMA = frozenset({"items", "additionalProperties", "not"})
_SCHEMA_LISTS = frozenset({"anyOf", "allOf", "oneOf", "prefixItems"})
_SCHEMA_MAPS = frozenset({"properties", "patternProperties", "defs", "$defs"})
_INT64 = re.compile(r"[0-9]{1,19}")
_INTEGERS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})


def camel(name: str) -> str:
    """``function_call`` and ``functionCall`` are one field."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest) if head else name


def json_schema(schema: Any) -> Any:
    """A function's ``parameters`` as the JSON schema a chat template shows: types in lower case, at every depth.

    The API's own schema object names types in upper case and writes its 64-bit integers as text; names of properties,
    defaults, examples and enumerated values are left alone.
    """
    if not isinstance(schema, dict):
        return schema
    named = ((camel(name), value) for name, value in schema.items() if value is not None)
    return {name: _keyword(name, value) for name, value in named if value != "TYPE_UNSPECIFIED"}


def _keyword(name: str, value: Any) -> Any:
    if name == "type":
        return [str(one).lower() for one in value] if isinstance(value, list) else str(value).lower()
    if name in _SCHEMA:
        return json_schema(value)
    if name in _SCHEMA_LISTS and isinstance(value, list):
        return [json_schema(one) for one in value]
    if name in _SCHEMA_MAPS and isinstance(value, dict):
        return {key: json_schema(one) for key, one in value.items()}
    if name in _INTEGERS and isinstance(value, str) and _INT64.fullmatch(value):
        return int(value)
    return value
