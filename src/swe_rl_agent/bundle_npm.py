"""Bundles of agents that ship as one self-contained npm package: fetched by name, checked by hash, unpacked.

These packages have no required dependencies (the optional ones are native terminal, clipboard and audio add-ons that
nothing needs without a person in front), so nothing is resolved and nothing is installed: no script of any package
runs. OpenCode is a native binary; the others bring the Node of the lock with them.
"""

from __future__ import annotations

import base64
import hashlib
import platform
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from drivetrain.errors import ConfigError, InfrastructureError
from swe_rl_agent.bundle_node import NODE_PACKAGES
from swe_rl_agent.bundle_tools import LOCKS, find_npm, run_tool

Build = Callable[[Path, Path, str, Callable[[str], None]], str]


class Locked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A package of a lock file: exact version and the registry's ``sha512-<base64>`` of its archive."""

    version: str
    integrity: str


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
    """The function that fills an empty folder with ``bin/`` (Node, or the native program) and ``agent/``."""

    def build(root: Path, scratch: Path, target: str, report: Callable[[str], None]) -> str:
        del target  # both kinds find their files relative to themselves
        return _build(agent, root, scratch, report)

    return build


def _build(agent: NpmAgent, root: Path, scratch: Path, report: Callable[[str], None]) -> str:
    """Raises:
    MissingDependency: npm is not installed.
    ConfigError: nothing is locked for this processor.
    InfrastructureError: the registry, an archive that is not what the lock says, or the finished bundle failed.
    """
    lock = msgspec.json.decode((LOCKS / f"{agent.name}.json").read_bytes(), type=dict[str, Locked])
    machine = platform.machine()
    package = agent.packages.get("") or agent.packages.get(machine)
    node = None if agent.native else NODE_PACKAGES.get(machine)
    if package is None or (node is None and not agent.native):
        known = NODE_PACKAGES if "" in agent.packages else agent.packages
        raise ConfigError(f"The {agent.name} bundle does not run on {machine}.", fix=f"Use {', '.join(known)}.")
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
        shutil.move(fetch(node, lock[node], scratch / "node") / "bin" / "node", root / "bin" / "node")
        shutil.move(unpacked, root / "agent")
        start, runtime = [str(root / "bin" / "node"), str(root / "agent" / agent.entry)], f"node {lock[node].version}"
    said = run_tool([*start, "--version"], cwd=scratch, what=agent.name, env={"HOME": str(scratch)}, timeout_s=120)
    if lock[package].version not in said:
        raise InfrastructureError(
            f"The {agent.name} bundle calls itself {said.strip()!r}, not {lock[package].version}."
        )
    return runtime


def fetch(name: str, locked: Locked, into: Path) -> Path:
    """Download one package with npm, check it against the lock and unpack it.

    Returns:
        The folder with the package's files.

    Raises:
        MissingDependency: npm is not installed.
        InfrastructureError: the download failed, or its hash is not the locked one.
    """
    npm = find_npm(f"to download {name}")
    into.mkdir()
    wanted = f"{name}@{locked.version}"
    run_tool([npm, "pack", "--ignore-scripts", "--loglevel=error", wanted], cwd=into, what=f"npm pack {wanted}")
    (archive,) = into.glob("*.tgz")
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha512").digest()
    if (found := f"sha512-{base64.b64encode(digest).decode()}") != locked.integrity:
        raise InfrastructureError(
            f"{wanted} is not the locked archive: its hash is {found}.", fix="Find out why before you use it."
        )
    with tarfile.open(archive) as tar:
        tar.extractall(into, filter="data")
    archive.unlink()
    (folder,) = into.iterdir()  # "package" by convention
    return folder
