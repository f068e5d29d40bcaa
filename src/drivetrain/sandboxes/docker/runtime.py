"""What is mounted at /.drivetrain in every container: PID 1, its helpers, and a Python that runs in any image.

The Python brings its own C library and is started through its own loader, so it needs nothing of the image: no Python,
no particular libc, not even a shell. It is a copy of the interpreter that runs us, without third-party packages.
"""

from __future__ import annotations

import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from drivetrain.cache import build_once, cache_root, content_key
from drivetrain.errors import MissingDependency

INSIDE = "/.drivetrain"
CONTROL = "/.drivetrain-control"
"""Where the folder of a sandbox's own sockets is mounted."""

_HERE = Path(__file__).parent.parent
_SCRIPTS = ("inside/connect.py", "inside/init.py", "inside/files.py", "relay/relay.py")
_DROPPED = (
    *("site-packages", "dist-packages", "ensurepip", "idlelib", "lib2to3", "test", "tests", "turtledemo", "tkinter"),
    *("config-*", "pydoc_data", "_tkinter*", "_test*"),
)
_LINKED = re.compile(r"(?:(?P<name>\S+) => )?(?P<path>/\S+) \(0x")


def build_inside(cache: Path | None = None) -> Path:
    """The folder to mount; built on first use (a second or two) and kept in the cache. Blocks.

    Raises:
        MissingDependency: this Python cannot be copied (linked statically, or ``ldd`` is missing).
    """
    python = build_once(
        cache_root(cache) / "inside" / f"python-{content_key('inside-5', sys.version, sys.base_prefix)}", _build_python
    )
    scripts = [(_HERE / name).read_text() for name in _SCRIPTS]

    def build(folder: Path) -> None:
        shutil.copytree(python, folder, symlinks=True, dirs_exist_ok=True, copy_function=os.link)  # takes no space
        for name in _SCRIPTS:
            copy = folder / Path(name).name
            shutil.copy2(_HERE / name, copy)
            py_compile.compile(str(copy), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
        _open_to_others(folder)

    return build_once(cache_root(cache) / "inside" / content_key(python.name, *scripts), build)


def _open_to_others(folder: Path) -> None:
    """Whatever our umask: another user reads this."""
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.parent.name in ("bin", "libs") else 0o644)


def _build_python(folder: Path) -> None:
    python = folder / "python"
    (python / "bin").mkdir(parents=True)
    executable = Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()
    shutil.copy2(executable, python / "bin" / "python3")
    prefix = Path(sys.base_prefix)
    stdlib = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    copied = python / stdlib.relative_to(prefix)
    shutil.copytree(stdlib, copied, symlinks=False, ignore=shutil.ignore_patterns(*_DROPPED), dirs_exist_ok=True)
    libraries = folder / "libs"
    libraries.mkdir()
    loader = _copy_libraries([executable, *copied.rglob("*.so")], libraries)
    (folder / "loader").symlink_to(f"libs/{loader}")
    _open_to_others(folder)


def _copy_libraries(objects: list[Path], target: Path) -> str:
    """Copy what these link to; the loader's file name."""
    loader = ""
    try:
        done = subprocess.run(
            ["ldd", *map(str, objects)], capture_output=True, text=True, check=False, timeout=120, env={"PATH": _PATH}
        )
    except OSError as error:
        raise MissingDependency(f"Cannot find out which libraries Python needs: {error}.") from error
    for match in _LINKED.finditer(done.stdout):
        path = Path(match["path"])
        name = match["name"] or path.name
        if not (target / Path(name).name).exists():
            shutil.copy2(path.resolve(), target / Path(name).name)
        if path.name.startswith("ld-"):
            loader = path.name
    if not loader:
        raise MissingDependency(
            f"{objects[0]} is linked statically and cannot be carried into a container.",
            fix="Run drivetrain under a dynamically linked Python.",
        )
    return loader


_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def command(control_socket: str) -> list[str]:
    """The command line of PID 1; ``control_socket`` is a file name in the folder mounted at :data:`CONTROL`."""
    return [
        *(f"{INSIDE}/loader", "--library-path", f"{INSIDE}/libs", f"{INSIDE}/python/bin/python3"),
        *("-I", "-S", "-B", f"{INSIDE}/connect.py", f"{CONTROL}/{control_socket}"),
    ]
