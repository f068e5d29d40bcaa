"""The command line's own parser, without running anything."""

from __future__ import annotations

import shlex
from typing import Any

import typer.main

from drivetrain.cli.main import app

ROOT: Any = typer.main.get_command(app)


def parse(line: str) -> tuple[str, ...]:
    """Parse ``drivetrain ...`` as the shell and the program would; the command's path.

    Raises:
        AssertionError, or the parser's own error: there is no such command or option, or a value does not convert.
    """
    program, *arguments = shlex.split(line, comments=True)
    assert program.rpartition("/")[2] == "drivetrain", line
    context = ROOT.make_context("drivetrain", arguments)
    path: tuple[str, ...] = ()
    command, rest = ROOT, [*context._protected_args, *context.args]
    while hasattr(command, "commands"):
        if not rest:
            return path
        name, command, rest = command.resolve_command(context, rest)
        path = (*path, name)
        if hasattr(command, "commands"):
            context = command.make_context(name, rest, parent=context)
            rest = [*context._protected_args, *context.args]
        elif {"-h", "--help"} & set(rest):
            return path
        else:
            context = command.make_context(name, rest, parent=context)
    return path
