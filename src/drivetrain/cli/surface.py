"""What the command line consists of: every command, its options, and the one name each has everywhere.

An option's name in the configuration file is its longest flag without dashes in front (``--max-turns`` is
``max-turns``); in the environment it is ``DRIVETRAIN_<COMMAND>_<NAME>`` (``DRIVETRAIN_ROLLOUT_MAX_TURNS``).
"""

from __future__ import annotations

import enum
import inspect
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

Kind = Literal["boolean", "integer", "number", "text"]
PREFIX = "DRIVETRAIN"
UNCONFIGURED = ("init", "completion")
"""Commands that read no configuration: they must work beside a file that is wrong."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """An option of a command, as a configuration file and the environment know it.

    ``parameter`` is the name of the function's argument. ``many`` takes a list. ``choices`` are all values allowed,
    where the option has a closed set of them. ``default`` is None where it has none.
    """

    name: str
    parameter: str
    kind: Kind
    many: bool
    choices: tuple[str, ...]
    default: Any
    required: bool
    help: str


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command by its path, e.g. ``("trace", "check")``; ``help`` is its whole text."""

    path: tuple[str, ...]
    help: str
    settings: dict[str, Setting]

    @property
    def summary(self) -> str:
        """The first sentence or line of its help."""
        return " ".join(self.help.split("\n\n", 1)[0].split())


def commands(root: Any) -> Iterator[Command]:
    """Every command below a built group (``typer.main.get_command``), in the order of the help."""
    for path, command in walk(root):
        yield Command(path=path, help=command.help or "", settings=_settings(command))


def configurable(root: Any) -> Iterator[Command]:
    """Every command that a configuration file has a table for."""
    return (command for command in commands(root) if command.path[0] not in UNCONFIGURED)


def walk(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Paths and command objects below ``group``."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from walk(command, (*path, name))
        else:
            yield (*path, name), command


def options(command: Any) -> list[Any]:
    """The options of a command; positional arguments and ``--help`` are none of a file's or environment's business."""
    return [parameter for parameter in command.params if parameter.param_type_name == "option"]


def option_name(parameter: Any) -> str:
    """An option's name: the first flag of two dashes, else the short one."""
    long = [flag for flag in parameter.opts if flag.startswith("--")]
    return str((long or parameter.opts)[0]).lstrip("-")


def variable(path: tuple[str, ...], name: str) -> str:
    """The environment variable of an option."""
    return "_".join([PREFIX, *path, name]).replace("-", "_").upper()


def name_variables(root: Any) -> None:
    """Let every option be read from its environment variable."""
    for path, command in walk(root):
        for parameter in options(command):
            if parameter.envvar is None:
                parameter.envvar = variable(path, option_name(parameter))
                parameter.show_envvar = False  # the rule is said once, in `drivetrain --help`


def _settings(command: Any) -> dict[str, Setting]:
    hints = typing.get_type_hints(inspect.unwrap(command.callback))
    found = {}
    for parameter in options(command):
        kind, many, choices = _type(hints[parameter.name])
        default = None if callable(parameter.default) else parameter.default
        setting = Setting(
            name=option_name(parameter),
            parameter=parameter.name,
            kind=kind,
            many=many,
            choices=choices,
            default=default,
            required=parameter.required,
            help=parameter.help or "",
        )
        found[setting.name] = setting
    return found


def _type(annotation: Any) -> tuple[Kind, bool, tuple[str, ...]]:
    """Kind, whether it is a list, and the closed set of values."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        (annotation,) = [part for part in typing.get_args(annotation) if part is not type(None)]
    if typing.get_origin(annotation) is list:
        (item,) = typing.get_args(annotation)
        return _type(item)[0], True, ()
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return "text", False, tuple(str(member.value) for member in annotation)
    kinds: dict[Any, Kind] = {bool: "boolean", int: "integer", float: "number", str: "text", Path: "text"}
    return kinds[annotation], False, ()
