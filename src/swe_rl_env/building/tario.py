"""Tar archives in memory: pack trusted files, read untrusted ones without touching the file system."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path

MODE_FILE, MODE_EXEC, MODE_LINK = "100644", "100755", "120000"


def pack(files: Iterable[tuple[bytes, str, bytes]]) -> bytes:
    """An uncompressed tar of (path, git mode, content); times are now, owner is root."""
    buffer = io.BytesIO()
    now = int(time.time())
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, mode, data in files:
            info = tarfile.TarInfo(path.decode("utf-8", "surrogateescape"))
            info.mtime = now
            if mode == MODE_LINK:
                info.type, info.linkname = tarfile.SYMTYPE, data.decode("utf-8", "surrogateescape")
                tar.addfile(info)
            else:
                info.mode, info.size = (0o755 if mode == MODE_EXEC else 0o644), len(data)
                tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def pack_folder(folder: Path) -> bytes:
    """An uncompressed tar of a folder of ours, empty folders included, names relative, owner root."""
    buffer = io.BytesIO()

    def owner(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
        return info

    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            tar.add(path, arcname=str(path.relative_to(folder)), recursive=False, filter=owner)
    return buffer.getvalue()
