"""What an adapter is, and what several of them need."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

from swe_rl_env.tasks.diffs import paths_after

Row = Mapping[str, Any]
Adapter = Callable[[Row], dict[str, Any]]
Format = Literal["archives", "swe-rebench-v2", "swe-rebench", "swe-bench", "swe-gym", "multi-swe"]


class Unusable(Exception):
    """This row can never be a task here; the text says why."""


def copied(row: Row, *names: str) -> dict[str, Any]:
    """The named columns, as far as the row has them."""
    return {name: row[name] for name in names if name in row}


def test_files(row: Row) -> list[str]:
    """Files that the row's test patch adds or changes, for a command that names them."""
    return list(paths_after(str(row.get("test_patch") or "")))


def json_value(value: Any) -> Any:
    """Decoded, where a column holds JSON as text; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def instance_image(row: Row, prefix: str, separator: str) -> str:
    """``<prefix><id with __ replaced>``, lower case: the naming rule of the SWE-bench family."""
    name = str(row.get("instance_id") or "").lower().replace("__", separator)
    return f"{prefix}{name}"


def in_testbed(command: str) -> str:
    """A command in the family's conda environment; ``.`` since the shell need not be bash."""
    return f". /opt/miniconda3/bin/activate testbed && {command}"
