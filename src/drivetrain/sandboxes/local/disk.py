"""A bounded disk: a file system in a sparse file of the sandbox's folder, so that a full disk is ENOSPC inside."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import struct
import subprocess
from pathlib import Path

from drivetrain.sandboxes.local import kernel
from drivetrain.sandboxes.protocol import SandboxStartError

MIN_BYTES = 4 << 20
_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A
_LO_FLAGS_AUTOCLEAR = 4
_FLAGS_OFFSET, _CONFIG_BYTES = 60, 304  # struct loop_config: fd, block_size, then struct loop_info64 and reserved words
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


@functools.cache
def can_bound() -> bool:
    """Whether there are loop devices and mkfs.ext4; the caller must be root as well."""
    return Path("/dev/loop-control").exists() and shutil.which("mkfs.ext4", path=_PATH) is not None


def make_image(path: Path, size: int) -> None:
    """An empty file system of ``size`` bytes (4 MiB at least) in a sparse file, mode 0600. Blocks for tens of ms.

    Raises:
        SandboxStartError: it could not be made.
    """
    if size < MIN_BYTES:
        raise SandboxStartError(f"disk_bytes={size} is too little for a file system.", fix=f"Use {MIN_BYTES} or more.")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size)
    finally:
        os.close(fd)
    # No journal: nothing has to survive a crash. No reserve: all of it is the sandbox's.
    argv = [
        "mkfs.ext4",
        "-q",
        "-F",
        "-m",
        "0",
        "-O",
        "^has_journal,^resize_inode",
        "-E",
        "nodiscard,lazy_itable_init=1",
    ]
    done = subprocess.run([*argv, str(path)], capture_output=True, check=False, env={"PATH": _PATH}, timeout=60)
    if done.returncode != 0:
        raise SandboxStartError(f"Cannot make the disk of a sandbox: {done.stderr.decode(errors='replace').strip()}")


def attach_image(image: int, target: str) -> None:
    """Mount an image; its loop device frees itself when the last mount is gone.

    Raises:
        OSError: no loop device can be had.
    """
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for attempt in range(64):
            device = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            loop = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            try:
                config = bytearray(_CONFIG_BYTES)
                struct.pack_into("II", config, 0, image, 0)
                struct.pack_into("I", config, _FLAGS_OFFSET, _LO_FLAGS_AUTOCLEAR)
                fcntl.ioctl(loop, _LOOP_CONFIGURE, bytes(config))
                kernel.mount(device, target, "ext4", kernel.MS_NOSUID | kernel.MS_NODEV)
                return
            except OSError as error:
                if error.errno != 16 or attempt == 63:  # EBUSY: somebody else took that one
                    raise
            finally:
                os.close(loop)
    finally:
        os.close(control)
