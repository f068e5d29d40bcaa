"""What root sets up for one sandbox before bubblewrap starts: a mount namespace in which an ordinary user can.

Everything the caller wants mounted is cloned, given exchanged owners (:mod:`.owner`) and attached below one folder that
anybody can reach, whatever the modes of the folders above the original. Overlays and the disk image are mounted there
too. The namespace belongs to bubblewrap's processes only: it ends with them, also after a crash, with every mount.
"""

# Pathlib would double the time that setting the stage takes.
# ruff: noqa: PTH102, PTH103, PTH120
from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from drivetrain.sandboxes.local import kernel
from drivetrain.sandboxes.local.disk import attach_image

# Covered in the private namespace only. Neither bubblewrap nor anything we mount needs what is there.
PLACE = "/sys"


class Overlay(msgspec.Struct, frozen=True):
    """A copy-on-write view of ``lower`` at ``merged``; names of folders in the volume hold what is written."""

    lower: str
    merged: str
    upper: str
    work: str


class Stage:
    """Where things will be in the private namespace. Filled in while the command line is built, then set up once.

    Args:
        volume: host folder of the sandbox, shown as ``PLACE/<its name>``.
        image: disk image to be mounted there instead, which bounds what the sandbox can write.
    """

    root_outside = False

    def __init__(self, volume: Path, image: Path | None = None) -> None:
        self.volume = f"{PLACE}/{volume.name}"
        self._folder = volume
        self._image = image
        self._sources: dict[str, str] = {}
        self._overlays: list[Overlay] = []
        self._etc: dict[str, str] = {}
        self._texts: dict[str, str] = {}

    def etc(self, parts: Mapping[str, str], own: Mapping[str, str]) -> Iterable[tuple[str, str]]:
        """One mount of them all, made here: bubblewrap takes a third of a millisecond for each."""
        self._etc, self._texts = dict(parts), dict(own)
        return [(f"{PLACE}/etc", "/etc")]

    def path(self, source: Path) -> str:
        """Where a host file or folder will be."""
        return self._sources.setdefault(str(source), f"{PLACE}/sources/{len(self._sources)}")

    def overlay(self, source: Path) -> str:
        """Where a copy-on-write view of a host folder will be."""
        number = len(self._overlays)
        upper, work = (f"{self.volume}/{kind}-{number}" for kind in ("upper", "scratch"))
        self._overlays.append(Overlay(self.path(source), f"{PLACE}/overlays/{number}", upper, work))
        return self._overlays[-1].merged

    def set_up(self, exchange: int, furnish: Callable[[Path], None]) -> None:
        """In a thread of root's that has left the host's mount namespace: mount everything.

        Args:
            exchange: the user namespace with the owners' map.
            furnish: fills an empty volume; the folder on the host is furnished already, a disk image is not.

        Raises:
            OSError: the kernel or a file system cannot do it.
        """
        kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_SLAVE)
        trees: dict[str, int] = {}
        try:
            if self._image is None:
                trees[self.volume] = kernel.clone_tree(str(self._folder))
            for source, staged in self._sources.items():
                trees[staged] = kernel.clone_tree(source)
            image = os.open(self._image, os.O_RDWR | os.O_CLOEXEC) if self._image is not None else None
            kernel.mount("tmpfs", PLACE, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m")
            if image is not None:
                raw = f"{PLACE}/image"
                Path(raw).mkdir(mode=0o700)
                attach_image(image, raw)
                os.close(image)
                furnish(Path(raw))
                for made in Path(raw).rglob("*"):
                    os.chown(made, 0, 0)  # this thread is not root to the disk
                trees[self.volume] = kernel.clone_tree(raw)
            for staged, tree in trees.items():
                kernel.map_owner(tree, exchange)
                _make_place(staged, folder=stat.S_ISDIR(os.fstat(tree).st_mode))
                kernel.attach_tree(tree, staged)
        finally:
            for tree in trees.values():
                os.close(tree)
        for each in self._overlays:
            _mount_overlay(each)
        self._make_etc()

    def _make_etc(self) -> None:
        os.mkdir(f"{PLACE}/etc", 0o755)
        for name, text in self._texts.items():
            fd = os.open(f"{PLACE}/etc/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            os.write(fd, text.encode())
            os.close(fd)
        for name, source in self._etc.items():
            tree = kernel.clone_tree(source)
            try:
                _make_place(f"{PLACE}/etc/{name}", folder=stat.S_ISDIR(os.fstat(tree).st_mode))
                kernel.attach_tree(tree, f"{PLACE}/etc/{name}")
            finally:
                os.close(tree)


def _make_place(path: str, *, folder: bool) -> None:
    if folder:
        os.makedirs(path)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))


def _mount_overlay(overlay: Overlay) -> None:
    for folder in (overlay.upper, overlay.work):
        Path(folder).mkdir()
    # The merged root shows the owner and mode of the upper one.
    lower = Path(overlay.lower).stat()
    Path(overlay.upper).chmod(stat.S_IMODE(lower.st_mode))
    os.chown(overlay.upper, lower.st_uid, lower.st_gid)
    _make_place(overlay.merged, folder=True)
    layers = f"lowerdir={overlay.lower},upperdir={overlay.upper},workdir={overlay.work}"
    # volatile: nothing has to survive a power cut, so nobody has to wait for the disk.
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("overlay", overlay.merged, "overlay", flags, f"{layers},index=off,metacopy=off,xino=off,volatile")
