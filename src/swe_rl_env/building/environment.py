"""The dependency folder of a task: shared between tasks with equal package sets, mounted read-only.

Inside it lies at :data:`DEPS`. For Python it has the layout of a virtual environment made by hand, because it must
work at a path that is not the one it was built at.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import msgspec

from drivetrain.cache import build_once, content_key
from drivetrain.errors import MissingDependency
from drivetrain.sandboxes.protocol import Mount
from swe_rl_env.building.runtime import Interpreter, find_python, hidden_packages, pip_command, probe, runtime_mounts
from swe_rl_env.sources.npm import npm_program
from swe_rl_env.sources.process import run_client
from swe_rl_env.tasks.model import SweTask

DEPS = "/opt/task-env"
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


class TaskEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox needs to run the suite.

    ``mounts`` in the order they must be made; ``path`` is the value of PATH; ``python`` is the inside program of a
    Python task, else None; ``modules`` are the top-level import names of the dependency folder.
    """

    folder: Path
    mounts: tuple[Mount, ...]
    path: str
    python: str | None
    modules: tuple[str, ...] = ()

    def variables(self, task: SweTask, workdir: str) -> dict[str, str]:
        """The row's environment with ``{workdir}`` and ``{deps}`` filled in, and PATH."""
        filled = {k: v.replace("{workdir}", workdir).replace("{deps}", DEPS) for k, v in task.install.env.items()}
        return {"PATH": self.path, **filled}


def _build_python(task: SweTask, python: Interpreter, folder: Path) -> None:
    site = folder / "lib" / f"python{python.version}" / "site-packages"
    site.mkdir(parents=True)
    binaries = folder / "bin"
    binaries.mkdir()
    for name in ("python", "python3", f"python{python.version}"):
        (binaries / name).symlink_to(python.inside_program)
    (folder / "pyvenv.cfg").write_text(f"home = {python.inside_program.parent}\ninclude-system-site-packages = false\n")
    # pip's own scripts would carry this folder's temporary path in their first line.
    for name in ("pytest", "py.test"):
        script = binaries / name
        script.write_text(f'#!/bin/sh\nexec {DEPS}/bin/python -m pytest "$@"\n')
        script.chmod(0o755)
    pip = pip_command()
    # --python lets any pip install for the task's interpreter; it is only needed when the two differ.
    same = probe(pip[0]).version == python.version
    head = [*pip] if same else [*pip, "--python", str(python.program)]
    argv = [
        *head, "install", "-q", "--no-deps", "--no-compile", "--no-warn-conflicts", "--disable-pip-version-check",
        "--target", str(site), *(a for a in task.install.pip_args if a != "--no-deps"), *task.install.pip_packages,
    ]  # fmt: skip
    run_client(argv, cwd=folder)
    shutil.rmtree(site / "bin", ignore_errors=True)
    # Compiled here once: inside, the folder is read-only and every start would compile anew.
    run_client([str(python.program), "-I", "-m", "compileall", "-q", "-s", str(site), str(site)], cwd=folder)


def _build_node(task: SweTask, folder: Path) -> None:
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
    run_client([npm_program(), "install", *flags, "--prefix", str(folder), *task.install.npm_packages], cwd=folder)


def _node_mounts() -> tuple[tuple[Mount, ...], str]:
    """Mounts for node and the folder to put on PATH: always the host's own, since an image may have another or none."""
    found = shutil.which("node")
    if found is None:
        raise MissingDependency("node is not on PATH; JavaScript tasks need it.", fix="Install Node.js 20.")
    program = Path(found).resolve()
    return (Mount(program, "/opt/node/bin/node"),), "/opt/node/bin"


def environment_for(task: SweTask, cache: Path) -> TaskEnvironment:
    """Build (once per package set) and describe the environment of a task.

    Raises:
        BuildError: pip or npm failed.
        MissingDependency: no fitting interpreter on this host.
    """
    if task.registry == "npm":
        key = content_key("npm-1", sorted(task.install.npm_packages))
        folder = build_once(cache / "envs" / f"node-{key}", lambda f: _build_node(task, f))
        extra, node_bin = _node_mounts()
        mounts = (*extra, *hidden_packages(cache), Mount(folder, DEPS))
        path = ":".join(dict.fromkeys([f"{DEPS}/node_modules/.bin", node_bin, *_SYSTEM_PATH.split(":")]))
        return TaskEnvironment(folder=folder, mounts=mounts, path=path, python=None)
    python = find_python(task.python_version or f"{sys.version_info[0]}.{sys.version_info[1]}")
    key = content_key(
        "pypi-3", sorted(task.install.pip_packages), task.install.pip_args, python.full_version, str(python.inside)
    )
    folder = build_once(cache / "envs" / f"python-{key}", lambda f: _build_python(task, python, f))
    mounts = (*runtime_mounts(python, cache), *hidden_packages(cache), Mount(folder, DEPS))
    site = folder / "lib" / f"python{python.version}" / "site-packages"
    modules = sorted({p.name.split(".")[0] for p in site.iterdir() if not p.name.endswith((".dist-info", "__"))})
    return TaskEnvironment(
        folder=folder,
        mounts=mounts,
        path=f"{DEPS}/bin:{_SYSTEM_PATH}",
        python=f"{DEPS}/bin/python",
        modules=tuple(modules),
    )
