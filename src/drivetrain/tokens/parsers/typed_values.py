"""Argument values written as bare text (XML formats): JSON text of them, decided by the tool's JSON schema.

These formats write a string as it is and everything else as JSON, so ``5`` may be either: only the schema knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drivetrain.messages import ToolSpec
from drivetrain.tokens.parsers.json_text import JsonError, dump, read_value

_PYTHON = {"True": "true", "False": "false", "None": "null"}


def encode_arguments(tools: Sequence[ToolSpec], name: str, values: Mapping[str, str]) -> str:
    """The JSON object of a call to ``name`` whose values were sampled as bare text."""
    root: Any = next((tool.parameters for tool in tools if tool.name == name), {})
    properties = root.get("properties") if isinstance(root, dict) else None
    if not isinstance(properties, dict):
        properties = {}
    pairs = (f"{dump(key)}: {encode_value(raw, properties.get(key), root)}" for key, raw in values.items())
    return "{" + ", ".join(pairs) + "}"


def encode_value(raw: str, schema: Any, root: Any = None) -> str:
    """JSON text of one value.

    A string parameter stays text. Otherwise JSON is taken as it is spelled (``True``, ``False`` and ``None`` too:
    some templates render them so) and what is no JSON is text. Where both a string and something else are allowed,
    JSON of an allowed type wins; where no type is declared, JSON other than a string.
    """
    allowed = _types(schema, root)
    if allowed == {"string"}:
        return dump(raw)
    spelled = raw.strip()
    spelled = _PYTHON.get(spelled, spelled)
    try:
        slot = read_value(spelled, 0)
    except JsonError:
        return dump(raw)
    if slot.end != len(spelled):
        return dump(raw)
    kind = _kind(slot.value)
    if allowed is None:
        return dump(raw) if kind == "string" else spelled
    if "string" in allowed and kind not in allowed - {"string"}:
        return dump(raw)
    return spelled


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _types(schema: Any, root: Any, depth: int = 0) -> set[str] | None:
    """JSON types a schema allows (integer counts as number), None if it does not say."""
    if not isinstance(schema, dict) or depth > 8:
        return None
    declared = schema.get("type")
    if isinstance(declared, str | list):
        names = [declared] if isinstance(declared, str) else declared
        return {"number" if name == "integer" else str(name) for name in names} or None
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return {_kind(value) for value in schema["enum"]}
    if "const" in schema:
        return {_kind(schema["const"])}
    if isinstance(schema.get("$ref"), str):
        return _types(_resolve(schema["$ref"], root), root, depth + 1)
    for word in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(word), list) and schema[word]:
            found: set[str] = set()
            for branch in schema[word]:
                types = _types(branch, root, depth + 1)
                if types is None:
                    return None
                found |= types
            return found
    return None


def _resolve(reference: str, root: Any) -> Any:
    if not reference.startswith("#/"):
        return None
    for key in reference[2:].split("/"):
        root = root.get(key) if isinstance(root, dict) else None
    return root
