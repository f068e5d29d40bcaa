"""Which Python runs the two stdlib-only helpers inside a sandbox (PID 1 and the relay)."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import msgspec

_PROBE = (
    "import sys, os, _socket, ctypes, resource, select, tarfile; os.pidfd_open; sys.exit(sys.version_info < (3, 9))"
)


class Interpreter(msgspec.Struct, frozen=True):
    """An executable, and the host folder that must be mounted (read-only, at its own path) for it to run."""

    executable: str
    mount: Path | None = None


@functools.cache
def find_interpreter() -> Interpreter:
    """The system's Python where it is complete, since /usr is inside anyway; else the one that runs us.

    A minimal system Python may lack ctypes, and a machine may have no system Python at all. Blocks for about 50 ms,
    once per process.
    """
    system = "/usr/bin/python3"
    if Path(system).exists():
        probe = subprocess.run([system, "-I", "-S", "-c", _PROBE], capture_output=True, check=False, env={}, timeout=30)
        if probe.returncode == 0:
            return Interpreter(system)
    prefix = Path(sys.base_prefix)
    executable = getattr(sys, "_base_executable", None) or sys.executable
    resolved = str(Path(executable).resolve())
    return Interpreter(resolved, None if prefix.is_relative_to("/usr") else prefix)
