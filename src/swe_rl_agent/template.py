"""Placeholders in presets: ``{name}`` in any string of an argv, env or config tree.

A string that is exactly one placeholder takes the value's own type (``"{max_output_tokens}"`` becomes a number).
Doubled braces belong to the harness's own templates (``{{task}}`` of mini-swe-agent) and are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

Value: TypeAlias = str | int | float | bool | list["Value"] | dict[str, "Value"] | None

NAMES = frozenset(
    {
        "api_key",
        "attempts",
        "base_url",
        "bundle",
        "command_timeout_ms",
        "command_timeout_s",
        "context_length",
        "cwd",
        "home",
        "max_output_tokens",
        "max_retries",
        "max_turns",
        "model",
        "request_timeout_ms",
        "request_timeout_s",
        "task",
        "tools_key",
        "tools_url",
    }
)
"""Every placeholder a preset may use."""

_PLACEHOLDER = re.compile(r"(?<!\{)\{([a-z_]+)\}(?!\})")


def fill(value: Value, values: Mapping[str, str | int]) -> Value:
    """Replace every placeholder in a tree; keys of tables are not templates."""
    if isinstance(value, str):
        whole = _PLACEHOLDER.fullmatch(value)
        return values[whole[1]] if whole else fill_text(value, values)
    if isinstance(value, list):
        return [fill(item, values) for item in value]
    if isinstance(value, dict):
        return {key: fill(item, values) for key, item in value.items()}
    return value


def fill_text(text: str, values: Mapping[str, str | int]) -> str:
    """Replace every placeholder in one string; values are inserted once and never read as templates themselves."""
    return _PLACEHOLDER.sub(lambda match: str(values[match[1]]), text)


def placeholders(value: Value) -> Iterator[str]:
    """The names used anywhere in a tree."""
    if isinstance(value, str):
        yield from _PLACEHOLDER.findall(value)
    elif isinstance(value, list):
        for item in value:
            yield from placeholders(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from placeholders(item)


def merge(base: Value, extra: Value) -> Value:
    """``extra`` over ``base``: tables merge key by key, anything else replaces."""
    if isinstance(base, dict) and isinstance(extra, dict):
        return {**base, **{key: merge(base.get(key), item) for key, item in extra.items()}}
    return extra
