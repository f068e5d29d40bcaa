"""``drivetrain init``: a configuration file to start from, made of the commands' own options."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from drivetrain.cli.config import DEFAULT_FILE
from drivetrain.cli.console import out, print_json
from drivetrain.cli.surface import Command, Setting, configurable
from drivetrain.errors import ConfigError
from drivetrain.trace.export.files import written_whole

_HEAD = """\
# Settings of drivetrain. A line that begins with "#" and a letter is a setting with its default: remove the "#" to
# change it. A flag beats the environment (DRIVETRAIN_<COMMAND>_<SETTING>), the environment beats this file.
# Relative paths start from the folder in which the command runs. No key or token belongs into this file.
"""
_WIDTH = 118
_UNSET: dict[str, Any] = {"boolean": False, "integer": 1, "number": 1.0, "text": "..."}


def init(
    context: typer.Context,
    target: Path = typer.Option(DEFAULT_FILE, "--out", "-o", help="File to write; one that exists is left alone."),
    json_output: bool = typer.Option(False, "--json", help="Say what was written as JSON."),
) -> None:
    """Write a configuration file in which every setting of every command stands, explained and commented out.

    Every command reads drivetrain.toml of the current folder, or the file that --config or $DRIVETRAIN_CONFIG names.

    Example: drivetrain init --out drivetrain.toml
    """
    if target.exists():
        raise ConfigError(f"{target} exists already, and is left as it is.", fix="Name another file with --out.")
    found = list(configurable(context.find_root().command))
    with written_whole(target) as temporary:
        temporary.write_text(config_text(found), encoding="utf-8")
    count = sum(len(command.settings) for command in found)
    if json_output:
        print_json({"file": str(target), "commands": len(found), "settings": count})
    else:
        said = f"{target}: {count} settings of {len(found)} commands"
        out.print(said, markup=False, highlight=False, soft_wrap=True)


def config_text(found: Iterable[Command]) -> str:
    """The file: a table for each command that has settings."""
    return _HEAD + "".join(_table(command) for command in found if command.settings)


def _table(command: Command) -> str:
    lines = ["", *_prose(command.summary), f"[{'.'.join(command.path)}]"]
    for setting in command.settings.values():
        lines += ["", *_prose(_explained(setting)), f"#{setting.name} = {_toml(_example(setting))}"]
    return "\n".join(lines) + "\n"


def _explained(setting: Setting) -> str:
    notes = [f"one of {', '.join(setting.choices)}"] if setting.choices else []
    notes += ["required"] if setting.required else []
    notes += ["no default"] if setting.default is None and not setting.required else []
    return f"{setting.help} ({'; '.join(notes)})" if notes else setting.help


def _prose(text: str) -> Iterator[str]:
    return (f"# {line}" for line in textwrap.wrap(" ".join(text.split()), _WIDTH, break_on_hyphens=False))


def _example(setting: Setting) -> Any:
    if setting.default is not None:
        return list(setting.default) if setting.many else setting.default
    value = setting.choices[0] if setting.choices else _UNSET[setting.kind]
    return [value] if setting.many else value


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, int | float):
        return repr(value)
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')  # what the defaults are made of has nothing else
    return f'"{text}"'
