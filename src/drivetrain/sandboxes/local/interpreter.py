"""Which Python runs the stdlib-only code inside a sandbox, and that code compiled by it."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import msgspec

from drivetrain.sandboxes.protocol import SandboxStartError

_PROBE = (
    "import sys, os, _ctypes, _signal, _socket, resource, select, tarfile; os.pidfd_open; _ctypes.call_function; "
    "sys.exit(sys.version_info < (3, 9))"
)
_COMPILE = """
import marshal, sys
pairs = zip(sys.argv[1::2], sys.argv[2::2])
code = {name: compile(open(path, encoding="utf-8").read(), name + ".py", "exec") for name, path in pairs}
sys.stdout.buffer.write(marshal.dumps({name: marshal.dumps(each) for name, each in code.items()}))
"""
_HERE = Path(__file__).parent.parent
_MODULES = {
    "init": _HERE / "inside/init.py",
    "files": _HERE / "inside/files.py",
    "pack": _HERE / "inside/pack.py",
    "relay": _HERE / "relay/relay.py",
}


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


@functools.cache
def inside_code(executable: str) -> bytes:
    """The modules that run inside, compiled by that Python, as ``marshal`` bytes: name -> marshalled code.

    Compiling them takes longer than everything else PID 1 does before its first command. Blocks for about 50 ms, once
    per process.

    Raises:
        SandboxStartError: that Python cannot compile them.
    """
    words = [word for name, path in _MODULES.items() for word in (name, str(path))]
    argv = [executable, "-I", "-S", "-B", "-c", _COMPILE, *words]
    done = subprocess.run(argv, capture_output=True, check=False, env={}, timeout=30)
    if done.returncode != 0:
        raise SandboxStartError(f"{executable} cannot compile the sandbox's code: {done.stderr.decode()[-500:]}")
    return done.stdout


def boot_argv(executable: str, *, code_fd: int, control_fd: int) -> list[str]:
    """The command line of PID 1: run ``init`` from the compiled modules behind ``code_fd``."""
    boot = (
        f"import marshal,posix;c=marshal.loads(posix.pread({code_fd},1<<24,0));posix.close({code_fd});"
        "exec(marshal.loads(c['init']),{'__name__':'__main__','CODE':c})"
    )
    return [executable, "-I", "-S", "-B", "-c", boot, str(control_fd)]
