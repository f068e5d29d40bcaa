"""What every command prints with."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from drivetrain.errors import ConfigError, DrivetrainError, MissingDependency

_PIPE_WIDTH = 160  # a table in a log file needs no terminal's width
out = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
err = Console(stderr=True, width=None if sys.stderr.isatty() else _PIPE_WIDTH)


def fail(error: DrivetrainError) -> int:
    """Print an error as one line: what is wrong, and what to do. Returns the exit code (2 = your input, 1 = other)."""
    text = str(error)
    print(f"error: {text}", file=sys.stderr)
    return 2 if isinstance(error, ConfigError | MissingDependency) else 1


def tell(line: str) -> None:
    """One line of progress, on stderr so that stdout stays data."""
    err.print(Text(line, style="dim"))  # as it is: what a failing program says may look like markup


def print_json(value: Any) -> None:
    """Machine-readable output on stdout."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
