"""The mini-swe-agent bundle: a copy of the running interpreter that starts anywhere, plus locked wheels.

The copy holds the interpreter, the standard library and every shared library that is not glibc's own; the C++ runtime
is an older one than the host's (:mod:`swe_rl_agent.bundle_runtime`), so that the bundle needs no newer glibc than the
interpreter does. An RPATH relative to the executable (set with patchelf) lets it find them at any path, without
LD_LIBRARY_PATH or PYTHONHOME, which the agent's own shell commands would inherit.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path

from swe_rl_agent.bundle_fetch import pip_install
from swe_rl_agent.bundle_runtime import CXX_RUNTIME, Patchelf, add_cxx_runtime
from swe_rl_agent.bundle_tools import LOCKS, run_tool

STDLIB_UNUSED = (
    "__pycache__", "config-*", "dist-packages", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data",
    "site-packages", "test", "tests", "tkinter", "turtledemo", "*.pyc",
)  # fmt: skip
EXTENSIONS_UNUSED = ("_tkinter*", "_test*", "_ctypes_test*", "_xx*", "xx*", "nis.*", "_dbm*", "_gdbm*", "_crypt.*")
WHEEL_DATA_UNUSED = ("litellm/proxy/_experimental", "litellm/proxy/swagger", "bin")
GLIBC = (
    "ld-linux", "libBrokenLocale.so", "libanl.so", "libc.so", "libdl.so", "libm.so", "libmvec.so", "libnss_",
    "libpthread.so", "libresolv.so", "librt.so", "libthread_db.so", "libutil.so", "linux-vdso",
)  # fmt: skip
"""Part of every glibc and tied to the loader of the image the bundle runs in: never copied."""

SMOKE = "import ctypes, sqlite3, ssl, zlib, lzma, bz2; import minisweagent.run.mini, minisweagent.models.litellm_model"


def interpreter_id() -> str:
    """What of this host decides the bundle's content, for the cache key."""
    return f"{sys.version}|{sysconfig.get_platform()}|{sys.base_prefix}"


def build_mini(root: Path, scratch: Path, target: str, report: Callable[[str], None]) -> str:
    """Fill ``root`` with ``bin/python3``, ``lib`` and the link ``site`` to its site-packages.

    Args:
        root: empty folder that becomes the bundle.
        scratch: empty folder to work in, removed by the caller.
        target: where the bundle will be mounted (recorded in the compiled files).
        report: called with one line per step.

    Returns:
        The runtime, ``python <version>``.

    Raises:
        MissingDependency: this Python has no pip.
        InfrastructureError: pip, patchelf or the finished bundle failed.
    """
    report("mini-swe-agent: copying the interpreter")
    python = _copy_interpreter(root)
    site = python.parent.parent / "lib" / _version() / "site-packages"
    report("mini-swe-agent: pip install (about 65 MB)")
    pip_install(LOCKS / "mini-swe-agent.txt", site, scratch)
    for name in WHEEL_DATA_UNUSED:
        shutil.rmtree(site / name, ignore_errors=True)
    for record in site.glob("*.dist-info/RECORD"):  # names the scripts above, whose hashes hold this host's paths
        record.unlink()
    (root / "site").symlink_to(site.relative_to(root))
    report("mini-swe-agent: making it relocatable")
    _relocate(root, python, scratch, report)
    report("mini-swe-agent: compiling")
    _compile(root, python, target, scratch)
    home = {"HOME": str(scratch), "MSWEA_SILENT_STARTUP": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    run_tool([str(python), "-I", "-B", "-c", SMOKE], cwd=scratch, what="the bundled Python", env=home)
    return f"python {sys.version.split()[0]}"


def _version() -> str:
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def _copy_interpreter(root: Path) -> Path:
    stdlib = Path(sysconfig.get_path("stdlib")).resolve()
    lib = root / "lib"
    ignore = shutil.ignore_patterns(*STDLIB_UNUSED, *EXTENSIONS_UNUSED)
    shutil.copytree(stdlib, lib / _version(), ignore=ignore, symlinks=False, ignore_dangling_symlinks=True)
    extensions = Path(sysconfig.get_path("platstdlib")).resolve() / "lib-dynload"
    if not (lib / _version() / "lib-dynload").exists():
        shutil.copytree(extensions, lib / _version() / "lib-dynload", ignore=ignore)
    (lib / _version() / "site-packages").mkdir()
    (root / "bin").mkdir()
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    python = root / "bin" / _version()
    shutil.copy2(base, python)
    (root / "bin" / "python3").symlink_to(python.name)
    return python


def _relocate(root: Path, python: Path, scratch: Path, report: Callable[[str], None]) -> None:
    """Copy the shared libraries in and make every object look for them beside the executable only."""
    patchelf = Patchelf(scratch)
    lib = root / "lib"
    own = [python, *(lib / _version() / "lib-dynload").glob("*.so")]
    wheels = (lib / _version() / "site-packages").rglob("*.so*")
    needed = _needed_libraries([*own, *wheels], inside=root, scratch=scratch)
    if needed.keys() & set(CXX_RUNTIME) and add_cxx_runtime(lib, scratch, report):
        needed = {name: source for name, source in needed.items() if name not in CXX_RUNTIME}
    copied = []
    for name, source in sorted(needed.items()):
        copied.append(lib / name)
        shutil.copy2(source, lib / name)
        (lib / name).chmod(0o755)
    # A DT_RPATH of the executable serves every object that has no RUNPATH of its own, so the copied ones lose theirs.
    for path in [*own[1:], *copied]:
        patchelf.remove_rpath(path)
    patchelf.set_rpath(python, "$ORIGIN/../lib")


def _needed_libraries(objects: Iterable[Path], *, inside: Path, scratch: Path) -> dict[str, Path]:
    """Names and host paths of the libraries ``objects`` need, without glibc's and those already in the bundle."""
    found: dict[str, Path] = {}
    for path in objects:
        for line in run_tool(["ldd", str(path)], cwd=scratch, what=f"ldd of {path.name}").splitlines():
            name, arrow, rest = line.strip().partition(" => ")
            source = Path(rest.split(" (")[0])
            if arrow and source.is_absolute() and not name.startswith(GLIBC) and inside not in source.parents:
                found.setdefault(name, source)
    return found


def _compile(root: Path, python: Path, target: str, scratch: Path) -> None:
    """Compile ahead (the mount is read-only). Unchecked: the bundle's own hash covers source and compiled files."""
    argv = [
        str(python), "-s", "-P", "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash",
        "-s", str(root), "-p", target, str(root / "lib"),
    ]  # fmt: skip
    # A fixed hash seed orders frozen sets alike in every build; empty values switch the host's settings off.
    env = {"PYTHONHASHSEED": "0", "PYTHONHOME": "", "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    run_tool(argv, cwd=scratch, what="compiling the bundle", env=env)
