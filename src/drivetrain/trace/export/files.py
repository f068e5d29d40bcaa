"""Export files appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from drivetrain.errors import ConfigError


def check_free(paths: Sequence[Path], *, force: bool) -> None:
    """Refuse to overwrite.

    Raises:
        ConfigError: one of the files exists and ``force`` is off, or a folder stands where a file should be.
    """
    for path in paths:
        if path.is_dir():
            raise ConfigError(f"{path} is a folder.", fix="Name a file.")
        if path.exists() and not force:
            raise ConfigError(f"{path} exists already.", fix="Name another with --out, or overwrite it with --force.")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its place when the block ends, and is gone when it fails.

    Raises:
        ConfigError: the folder cannot be made or written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}.", fix="Name another place with --out.") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
