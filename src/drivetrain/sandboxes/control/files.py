"""Descriptors with bytes behind them."""

from __future__ import annotations

import os


def write_all(fd: int, data: bytes | bytearray) -> None:
    """Write everything to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def memory_file(data: bytes) -> int:
    """An anonymous file with this content, read from the start: a stdin of any size that needs no writer."""
    fd = os.memfd_create("stdin", os.MFD_CLOEXEC)
    try:
        write_all(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd
