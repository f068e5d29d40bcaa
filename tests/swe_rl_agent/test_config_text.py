"""Config files of presets are what a parser of their format reads back."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.errors import ConfigError
from swe_rl_agent.config_text import config_bytes

_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
_value = st.recursive(
    st.one_of(_text, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_text, inner, max_size=3)),
    max_leaves=12,
)


@given(st.dictionaries(_text, _value, max_size=5))
def test_a_tree_comes_back_from_both_formats(tree: dict[str, Any]) -> None:
    assert tomllib.loads(config_bytes("a/config.toml", tree).decode()) == tree
    assert json.loads(config_bytes("config.json", tree)) == tree


def test_a_text_is_written_as_it_is() -> None:
    assert config_bytes("key.txt", "dt-é\n") == "dt-é\n".encode()
    assert config_bytes("task.toml", "[not a table") == b"[not a table"


def test_nothing_is_no_toml() -> None:
    with pytest.raises(ConfigError, match=r"model\.name is None"):
        config_bytes("config.toml", {"model": {"name": None}})
