"""The interpreter a task runs under, and the pip that fills its environment.

The host's interpreter cannot simply be mounted: its site-packages may hold a newer release of the project under
test, from which the fix can be read. So a copy without third-party packages is kept in the cache and mounted at the
prefix the interpreter was built for (a shared libpython is found by absolute path).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import msgspec

from drivetrain.cache import build_once, content_key
from drivetrain.errors import MissingDependency
from drivetrain.sandboxes.protocol import Mount

_PROBE = (
    "import json, sys, sysconfig; print(json.dumps([sys.base_prefix, '%d.%d' % sys.version_info[:2], sys.version, "
    "sysconfig.get_path('stdlib')]))"
)
_DROPPED = ("site-packages", "dist-packages", "ensurepip", "idlelib", "test", "turtledemo", "tkinter", "config-*")
# Where package managers put third-party code. /usr is visible in a local sandbox, so these are hidden in it for the
# same reason; the walk skips folders that are large and hold none.
_PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages", "node_modules", "nodejs"})
_NOT_WALKED = frozenset({"doc", "icons", "include", "locale", "man"})


INSIDE = Path("/opt/task-python")


class Interpreter(msgspec.Struct, frozen=True):
    """A Python on this host: base prefix, full version text, standard library folder, program."""

    prefix: Path
    version: str
    full_version: str
    stdlib: Path
    program: Path

    @property
    def inside(self) -> Path:
        """Prefix in a sandbox: the system's own, else a neutral one, which users of any image may enter (a home folder
        is often closed)."""
        return self.prefix if self.of_system else INSIDE

    @property
    def of_system(self) -> bool:
        """Whether a local sandbox sees it anyway."""
        return self.prefix.is_relative_to("/usr") and not self.prefix.is_relative_to("/usr/local")

    @property
    def inside_program(self) -> Path:
        """The program in a sandbox."""
        return self.inside / "bin" / self.program.name


def probe(program: str) -> Interpreter:
    """Describe the interpreter behind ``program`` (its base, when that is a virtual environment's).

    Raises:
        MissingDependency: it does not run.
    """
    try:
        done = subprocess.run([program, "-I", "-c", _PROBE], capture_output=True, timeout=60, check=True)
        prefix, version, full, stdlib = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as e:
        raise MissingDependency(f"{program} does not run: {e}.") from e
    return Interpreter(Path(prefix), version, full, Path(stdlib), Path(prefix) / "bin" / f"python{version}")


@lru_cache(maxsize=8)
def find_python(version: str) -> Interpreter:
    """An interpreter ``major.minor`` of this host: the running one if it fits, else ``python<version>`` on PATH.

    Raises:
        MissingDependency: there is none.
    """
    for program in (sys.executable, shutil.which(f"python{version}")):
        if program is None:
            continue
        found = probe(program)
        if found.version == version and found.program.exists():
            return found
    raise MissingDependency(f"No Python {version} found.", fix=f"Put a python{version} on PATH.")


@lru_cache(maxsize=1)
def pip_command() -> tuple[str, ...]:
    """``(python, "-m", "pip")`` of the first interpreter that has pip: the running one, its base, ``python3``.

    Raises:
        MissingDependency: none has.
    """
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for program in (sys.executable, str(base), shutil.which("python3")):
        if program is None:
            continue
        try:
            subprocess.run([program, "-m", "pip", "--version"], capture_output=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError):
            continue
        return (program, "-m", "pip")
    raise MissingDependency("No pip found.", fix="Run python -m ensurepip.")


def runtime_mounts(python: Interpreter, cache: Path) -> tuple[Mount, ...]:
    """Mounts that make ``python.inside_program`` run, without any third-party package; empty when it is in /usr."""
    if python.of_system:
        return ()
    key = content_key("runtime-2", str(python.prefix), python.full_version)

    def build(folder: Path) -> None:
        (folder / "bin").mkdir()
        shutil.copy2(python.program.resolve(), folder / "bin" / python.program.name)
        stdlib = python.stdlib.relative_to(python.prefix)
        shutil.copytree(python.stdlib, folder / stdlib, symlinks=True, ignore=shutil.ignore_patterns(*_DROPPED))
        (folder / stdlib / "site-packages").mkdir()
        for library in (python.prefix / "lib").glob("libpython*.so*"):
            shutil.copy2(library, folder / "lib" / library.name, follow_symlinks=False)
        _move_library_path(folder / "bin" / python.program.name, python.prefix / "lib")

    copy = build_once(cache / "runtimes" / f"python-{python.version}-{key}", build)
    return (Mount(copy, str(python.inside)),)


def _move_library_path(program: Path, library: Path) -> None:
    """Let a copied program find its library beside it: the path that was linked in, an entry of the ELF string table,
    becomes a shorter one that is relative to the program."""
    linked, relative = bytes(library), b"$ORIGIN/../lib"
    data = program.read_bytes()
    if linked + b"\0" in data and len(relative) <= len(linked):
        program.write_bytes(data.replace(linked + b"\0", relative.ljust(len(linked), b"\0") + b"\0", 1))


@lru_cache(maxsize=1)
def _system_packages() -> tuple[str, ...]:
    """Package folders below /usr on this host; the walk takes a second or two, once per process."""
    found: list[str] = []
    for folder, names, _ in os.walk("/usr"):
        found += [f"{folder}/{n}" for n in names if n in _PACKAGE_FOLDERS]
        names[:] = [n for n in names if n not in _PACKAGE_FOLDERS and n not in _NOT_WALKED]
    return tuple(sorted(found))


def hidden_packages(cache: Path) -> tuple[Mount, ...]:
    """Empty folders over every package folder of the system: one may hold the release that has the fix."""
    empty = build_once(cache / "runtimes" / "empty", lambda _: None)
    return tuple(Mount(empty, p) for p in _system_packages())
