"""Settings from a TOML file: one table for each command, with the names of its flags.

::

    [rollout]
    agent = ["pi"]
    max-turns = 30

    [tasks.validate]
    runs = 5

A flag beats the environment, the environment beats the file, and the file beats the built-in default.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from drivetrain.cli.surface import Command, Setting
from drivetrain.errors import ConfigError

DEFAULT_FILE = Path("drivetrain.toml")
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "boolean": ((bool,), "true or false"),
    "integer": ((int,), "a whole number"),
    "number": ((int, float), "a number"),
    "text": ((str,), "a text in quotes"),
}


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was read and checked. ``values``: by command path, then by name of the function's argument."""

    path: Path
    text: str
    values: dict[tuple[str, ...], dict[str, Any]]

    def default_map(self) -> dict[str, Any]:
        """The values nested by command, as the command line's parser takes its defaults."""
        nested: dict[str, Any] = {}
        for path, values in self.values.items():
            table = nested
            for name in path[:-1]:
                table = table.setdefault(name, {})
            table[path[-1]] = values
        return nested

    def where(self, path: tuple[str, ...], key: str) -> str:
        """File, line and table of a key, to begin an error with."""
        return _where(self.path, self.text, path, key)


def read_config(path: Path, commands: Iterable[Command]) -> ConfigFile:
    """Read a file and check every key and value in it, whichever command is about to run.

    Raises:
        ConfigError: it cannot be read, is no TOML, or holds a table, key or value that no command has; the message
            names file, line, table and key, and what may have been meant.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = f"cannot read the configuration {path}: {error}."
        raise ConfigError(what, fix="Write one: drivetrain init.") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}.", fix='A setting looks like: model = "SmolLM2".') from None
    reader = _Reader(path, text, {command.path: command for command in commands})
    return ConfigFile(path=path, text=text, values=reader.tables(data, ()))


class _Reader:
    def __init__(self, path: Path, text: str, commands: Mapping[tuple[str, ...], Command]) -> None:
        self._path = path
        self._text = text
        self._commands = commands

    def tables(self, data: Mapping[str, Any], path: tuple[str, ...]) -> dict[tuple[str, ...], dict[str, Any]]:
        """Values of every command below ``path``."""
        found: dict[tuple[str, ...], dict[str, Any]] = {}
        for name, value in data.items():
            here = (*path, name)
            known = sorted({command[len(path)] for command in self._commands if command[: len(path)] == path})
            where = _where(self._path, self._text, here if isinstance(value, dict) else path, name)
            if name not in known and isinstance(value, dict):
                what = f"there is no command `drivetrain {' '.join(here)}`."
                raise ConfigError(f"{where}: {what}", fix=_guess(name, known, "Tables"))
            if not isinstance(value, dict):
                fix = f"Write it below the header of a table, e.g. [{'.'.join((*path, known[0]))}]."
                raise ConfigError(f"{where} is a setting outside the table of a command.", fix=fix)
            command = self._commands.get(here)
            found |= {here: self._values(value, command)} if command is not None else self.tables(value, here)
        return found

    def _values(self, table: Mapping[str, Any], command: Command) -> dict[str, Any]:
        values = {}
        for key, value in table.items():
            where = _where(self._path, self._text, command.path, key)
            setting = command.settings.get(key)
            if setting is None:
                raise ConfigError(
                    f"{where}: `drivetrain {' '.join(command.path)}` has no setting {key!r}.",
                    fix=_guess(key.replace("_", "-"), list(command.settings), "Settings"),
                )
            values[setting.parameter] = _checked(setting, value, where)
        return values


def _checked(setting: Setting, value: Any, where: str) -> Any:
    """The value in the option's own type.

    Raises:
        ConfigError: it has another type.
    """
    if setting.many:
        if not isinstance(value, list):
            raise ConfigError(f"{where} is {_spelled(value)}, not a list.", fix=f"Write {setting.name} = [...].")
        return [_single(setting, item, where) for item in value]
    return _single(setting, value, where)


def _single(setting: Setting, value: Any, where: str) -> Any:
    allowed, wanted = _TYPES[setting.kind]
    if not isinstance(value, allowed) or (isinstance(value, bool) and setting.kind != "boolean"):
        raise ConfigError(f"{where} is {_spelled(value)}; it must be {wanted}.")
    if setting.choices and value not in setting.choices:
        raise ConfigError(
            f"{where} is {_spelled(value)}.", fix=_guess(str(value), list(setting.choices), "Choose one of")
        )
    return float(value) if isinstance(value, int) and setting.kind == "number" else value


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, int | float) else f'"{value}"' if isinstance(value, str) else str(value)


def _guess(name: str, known: list[str], label: str) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    return f"Did you mean {' or '.join(close)}?" if close else f"{label}: {', '.join(known)}."


def _where(path: Path, text: str, table: tuple[str, ...], key: str) -> str:
    line = _line(text, table, key)
    place = f"{path}:{line}" if line else str(path)
    if table[-1:] == (key,):  # the table itself is meant
        return place
    return f"{place}: [{'.'.join(table)}] {key}" if table else f"{place}: {key}"


_HEADER = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?")
_KEY = re.compile(r"""\s*["']?([\w.-]+)["']?\s*=""")


def _line(text: str, table: tuple[str, ...], key: str) -> int | None:
    """The line, from 1, on which ``key`` of ``table`` is set, or else the table begins; None where neither is seen."""
    current: tuple[str, ...] = ()
    begins = None
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            current = tuple(part.strip().strip("\"'") for part in header[1].split("."))
            begins = number if current[: len(table)] == table and begins is None else begins
        elif current == table and (found := _KEY.match(line)) and found[1] == key:
            return number
    return begins
