"""The oldest glibc that a bundle runs with, and what to say where an image has none that will do."""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

_ELF64 = b"\x7fELF\x02"
_MACHINE = slice(18, 20)  # e_machine
_SHT_GNU_VERNEED = 0x6FFFFFFE
_GLIBC = re.compile(rb"GLIBC_2\.(\d+)")


def glibc_needed(root: Path) -> str:
    """The newest glibc symbol version that any program or library below ``root`` needs, as "2.28".

    Files for another processor than this host's are left out. "" = nothing needs glibc: the programs are static.
    """
    with Path("/proc/self/exe").open("rb") as file:
        machine = file.read(20)[_MACHINE]
    newest = 0
    for folder, _, names in os.walk(root):
        for path in (Path(folder, name) for name in names):
            if not path.is_symlink():
                newest = max(newest, _newest(path, machine))
    return f"2.{newest}" if newest else ""


def _newest(path: Path, machine: bytes) -> int:
    with path.open("rb") as file:
        head = file.read(20)
        if head[:5] != _ELF64 or head[_MACHINE] != machine:
            return 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = [match for name in _versions(data) if (match := _GLIBC.match(name))]
    return max((int(match[1]) for match in found), default=0)


def _versions(data: mmap.mmap) -> Iterator[bytes]:
    """Names of the symbol versions in an ELF64 file's ``.gnu.version_r`` (Linux Standard Base, symbol versioning)."""
    (table,), (width, count) = struct.unpack_from("=Q", data, 40), struct.unpack_from("=HH", data, 58)
    sections = [struct.unpack_from("=IIQQQQIIQQ", data, table + width * index) for index in range(count)]
    for _, kind, _, _, at, _, link, needed, _, _ in sections:
        if kind != _SHT_GNU_VERNEED:
            continue
        names = sections[link][4]
        for _ in range(needed):  # one Verneed for each library, a chain of Vernaux after it
            _, auxiliaries, _, first, after = struct.unpack_from("=HHIII", data, at)
            entry = at + first
            for _ in range(auxiliaries):
                _, _, _, name, following = struct.unpack_from("=IHHII", data, entry)
                yield data[names + name : data.find(b"\0", names + name)]
                entry += following
            at += after


def why_not_started(name: str, target: str, glibc: str, exit_code: int | None, stderr: bytes) -> str:
    """Why a bundle's program did not start in this image; "" when it did, or when the image is not to blame.

    Args:
        name: the bundle's name and version.
        target: where the bundle lies inside.
        glibc: what it needs (:func:`glibc_needed`).
        exit_code: of the shell that started it.
        stderr: what the shell and the loader said.
    """
    said = stderr[-500:].decode(errors="replace").strip()
    if re.search(rb"version [`']?GLIBC_[\d.]+'? not found", stderr):
        return f"{name} needs glibc {glibc} or newer, and this image's is older: {said}"
    if b"error while loading shared libraries" in stderr:
        return f"{name} needs a library that this image lacks: {said}"
    if exit_code == 127 and glibc and target.encode() in stderr and b"not found" in stderr:
        return f"{name} needs glibc {glibc} or newer, and this image has none (musl images have none): {said}"
    return ""
