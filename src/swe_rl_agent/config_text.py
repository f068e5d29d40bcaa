"""How a config tree is spelled: JSON, TOML for paths that end in ``.toml``, a plain text as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from drivetrain.errors import ConfigError
from swe_rl_agent.template import Value

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def config_bytes(path: str, content: Value) -> bytes:
    """The bytes of a config file.

    Args:
        path: decides between TOML and JSON; a text is neither.
        content: filled in, no placeholders left.

    Raises:
        ConfigError: a value that TOML cannot hold.
    """
    if not isinstance(content, dict):
        return str(content).encode()
    if path.endswith(".toml"):
        return "".join(f"{line}\n" for line in _toml(content, ())).encode()
    return msgspec.json.encode(content)


def _toml(table: Mapping[str, Value], path: tuple[str, ...]) -> Iterator[str]:
    """A table's own values, then its tables, each under its full name."""
    tables = {name: value for name, value in table.items() if isinstance(value, dict)}
    values = {name: value for name, value in table.items() if name not in tables}
    if path and (values or not tables):
        yield f"[{'.'.join(map(_key, path))}]"
    for name, value in values.items():
        yield f"{_key(name)} = {_toml_value(value, (*path, name))}"
    for name, inner in tables.items():
        yield from _toml(inner, (*path, name))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def _toml_value(value: Value, path: tuple[str, ...]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(_toml_value(item, path) for item in value)}]"
    if isinstance(value, dict):
        inner = (f"{_key(name)} = {_toml_value(item, (*path, name))}" for name, item in value.items())
        return f"{{{', '.join(inner)}}}"
    raise ConfigError(f"{'.'.join(path)} is {value!r}, which TOML cannot say.", fix="Leave it out.")


def _string(text: str) -> str:
    """A basic string. JSON's escapes are TOML's; DEL must be escaped too."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")
