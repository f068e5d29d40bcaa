"""Bundles of agents that ship as one self-contained npm package: fetched by name, checked by hash, unpacked.

These packages have no required dependencies (the optional ones are native terminal, clipboard and audio add-ons that
nothing needs without a person in front), so nothing is resolved and nothing is installed: no script of any package
runs. OpenCode is a native binary; the others bring the Node of the lock with them.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from drivetrain.errors import ConfigError, InfrastructureError
from swe_rl_agent.bundle_fetch import fetch, read_lock
from swe_rl_agent.bundle_node import NODE_PACKAGES, place_node
from swe_rl_agent.bundle_tools import run_tool

Build = Callable[[Path, Path, str, Callable[[str], None]], str]


class NpmAgent(msgspec.Struct, frozen=True, kw_only=True):
    """``packages`` names the package by machine (``""`` = any machine), ``entry`` the program in it, ``unused`` the
    paths in it that a headless run never opens, ``programs`` those it starts (archives keep no mode of them)."""

    name: str
    packages: dict[str, str]
    entry: str
    native: bool = False
    unused: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()


GEMINI = NpmAgent(
    name="gemini-cli",
    packages={"": "@google/gemini-cli"},
    entry="bundle/gemini.js",
    unused=("bundle/bundled", "bundle/docs/assets"),  # a browser's tools; pictures of its manuals
)
QWEN = NpmAgent(
    name="qwen-code",
    packages={"": "@qwen-code/qwen-code"},
    entry="cli-entry.js",
    unused=(
        "web-shell",
        "bundled/browser-use/runtime",
        *(f"vendor/ripgrep/{system}" for system in ("x64-win32", "arm64-win32", "x64-darwin", "arm64-darwin")),
    ),
    programs=("vendor/ripgrep/x64-linux/rg", "vendor/ripgrep/arm64-linux/rg"),
)
# baseline: runs on every x86-64 processor; the plain build needs AVX2
OPENCODE = NpmAgent(
    name="opencode", packages={"x86_64": "opencode-linux-x64-baseline"}, entry="bin/opencode", native=True
)


def builder(agent: NpmAgent) -> Build:
    """The function that fills an empty folder with ``bin/`` (Node, or the native program), ``lib/`` and ``agent/``."""

    def build(root: Path, scratch: Path, target: str, report: Callable[[str], None]) -> str:
        del target  # both kinds find their files relative to themselves
        return _build(agent, root, scratch, report)

    return build


def _build(agent: NpmAgent, root: Path, scratch: Path, report: Callable[[str], None]) -> str:
    """Raises:
    MissingDependency: npm is not installed, or pip for the Node of the bundle.
    ConfigError: nothing is locked for this processor.
    InfrastructureError: the registry, an archive that is not what the lock says, or the finished bundle failed.
    """
    lock = read_lock(agent.name)
    machine = platform.machine()
    package = agent.packages.get("") or agent.packages.get(machine)
    node = None if agent.native else NODE_PACKAGES.get(machine)
    if package is None or (node is None and not agent.native):
        known = NODE_PACKAGES if "" in agent.packages else agent.packages
        raise ConfigError(
            f"The {agent.name} bundle does not run on {machine}: its lock names no "
            f"{'package' if package is None else 'Node'} for it.",
            fix=f"Use {', '.join(known)}.",
        )
    report(f"{agent.name}: fetching {package} {lock[package].version}")
    unpacked = fetch(package, lock[package], scratch / "package")
    for path in agent.unused:
        shutil.rmtree(unpacked / path, ignore_errors=True)
    for path in agent.programs:
        (unpacked / path).chmod(0o755)
    (root / "bin").mkdir()
    if node is None:
        program = root / "bin" / Path(agent.entry).name
        shutil.move(unpacked / agent.entry, program)
        start, runtime = [str(program)], "native"
    else:
        place_node(fetch(node, lock[node], scratch / "node"), root, scratch, report)
        shutil.move(unpacked, root / "agent")
        start, runtime = [str(root / "bin" / "node"), str(root / "agent" / agent.entry)], f"node {lock[node].version}"
    said = run_tool([*start, "--version"], cwd=scratch, what=agent.name, env={"HOME": str(scratch)}, timeout_s=120)
    if lock[package].version not in said:
        raise InfrastructureError(
            f"The {agent.name} bundle calls itself {said.strip()!r}, not {lock[package].version}."
        )
    return runtime
