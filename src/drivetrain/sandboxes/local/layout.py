"""The sandbox's own folder and what is put into it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from drivetrain.sandboxes.protocol import SandboxStartError


def furnish(volume: Path) -> None:
    """What every sandbox's volume holds."""
    for name in ("home", "work"):
        (volume / name).mkdir()


class PlainLayout:
    """Without a stage: bubblewrap sees the host's paths, and an overlay is a copy made beforehand (:meth:`copy`)."""

    root_outside = os.geteuid() == 0

    def __init__(self, folder: Path) -> None:
        self.volume = str(folder)
        self.copies: list[tuple[Path, Path]] = []

    def path(self, source: Path) -> str:
        """The host's path."""
        return str(source)

    def etc(self, parts: Mapping[str, str], own: Mapping[str, str]) -> Iterable[tuple[str, str]]:
        """One mount each; the texts are written into the volume."""
        folder = Path(self.volume) / "etc"
        folder.mkdir(exist_ok=True)
        for name, text in own.items():
            (folder / name).write_text(text)
        mounts = {**parts, **{name: str(folder / name) for name in own}}
        return [(source, f"/etc/{name}") for name, source in mounts.items()]

    def overlay(self, source: Path) -> str:
        """Where the copy will be."""
        target = Path(self.volume) / f"upper-{len(self.copies)}"
        self.copies.append((source, target))
        return str(target)

    def copy(self) -> None:
        """Make the copies; blocks for as long as that takes. Devices, sockets and FIFOs are left out.

        Raises:
            SandboxStartError: something could not be read, or the disk is full.
        """
        for source, target in self.copies:
            try:
                shutil.copytree(source, target, symlinks=True, copy_function=_copy_file)
            except (shutil.Error, OSError) as error:
                raise SandboxStartError(f"Cannot copy {source} for an overlay: {error}.") from error


def _copy_file(source: str, target: str) -> None:
    try:
        fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            return
        raise
    with os.fdopen(fd, "rb") as reader:
        if Path(f"/proc/self/fd/{fd}").is_file():
            with Path(target).open("xb") as writer:
                shutil.copyfileobj(reader, writer, 1 << 20)
            shutil.copystat(source, target)
