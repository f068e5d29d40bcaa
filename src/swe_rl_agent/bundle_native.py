"""Bundles of agents that npm delivers as a finished program: the files that run, and no launcher around them.

The npm package one usually installs holds a Node launcher whose install script copies or links the program of this
processor. The platform packages behind it are locked directly, so that no script has to run and no Node is needed.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from drivetrain.errors import ConfigError, InfrastructureError
from swe_rl_agent.bundle_tools import find_npm, npm_ci, run_tool

ARCHITECTURES = {"x86_64": ("x64", "x86_64"), "aarch64": ("arm64", "aarch64")}
"""``platform.machine()`` -> the word in npm names, the word in target triples."""


def build_claude(root: Path, scratch: Path, target: str, report: Callable[[str], None]) -> str:
    """Fill ``root`` with ``bin/claude``, a glibc program; see :func:`build_codex` for the arguments.

    Returns:
        The runtime, ``native <triple>``.

    Raises:
        MissingDependency, ConfigError, InfrastructureError: see :func:`install`.
    """
    del target
    npm, machine = _architecture("claude-code")
    modules = install("claude-code", scratch, report, "about 400 MB")
    _take(modules / f"@anthropic-ai/claude-code-linux-{npm}", {"claude": "bin/claude"}, root)
    _try(root / "bin" / "claude", scratch)
    return f"native {machine}-linux-gnu"


def build_codex(root: Path, scratch: Path, target: str, report: Callable[[str], None]) -> str:
    """Fill ``root`` with ``bin/codex``, a static program, and the ``rg`` that it puts on its shell's path.

    Left out: voice, the program's own sandbox (it runs in ours) and its host for model-written JavaScript, which the
    preset does not offer.

    Args:
        root: empty folder that becomes the bundle.
        scratch: empty folder to work in, removed by the caller.
        target: where the bundle will be mounted (unused: the program finds its files relative to itself).
        report: called with one line per step.

    Returns:
        The runtime, ``native <triple>``.

    Raises:
        MissingDependency, ConfigError, InfrastructureError: see :func:`install`.
    """
    del target
    npm, machine = _architecture("codex")
    modules = install("codex", scratch, report, "about 420 MB")
    triple = f"{machine}-unknown-linux-musl"
    names = ("codex-package.json", "bin/codex", "codex-path/rg")
    _take(modules / f"@openai/codex-linux-{npm}/vendor/{triple}", {name: name for name in names}, root)
    _try(root / "bin" / "codex", scratch)
    return f"native {triple}"


def install(name: str, scratch: Path, report: Callable[[str], None], size: str) -> Path:
    """``npm ci`` of ``lock/NAME.package-lock.json``, no script run; returns ``node_modules``.

    Raises:
        MissingDependency: npm is not installed.
        InfrastructureError: npm failed.
    """
    npm = find_npm(f"to install the {name} agent bundle")
    report(f"{name}: npm ci ({size})")
    return npm_ci(npm, name, scratch, title=name)


def _architecture(name: str) -> tuple[str, str]:
    found = ARCHITECTURES.get(platform.machine())
    if found is None:
        raise ConfigError(
            f"The {name} bundle does not run on {platform.machine()}: its lock names no package for it.",
            fix=f"Use one of {', '.join(ARCHITECTURES)}.",
        )
    return found


def _take(package: Path, files: Mapping[str, str], root: Path) -> None:
    for source, target in files.items():
        if not (package / source).is_file():
            raise InfrastructureError(f"{package.name} holds no {source}.", fix="The lock names another layout.")
        (root / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(package / source, root / target)


def _try(program: Path, scratch: Path) -> None:
    run_tool([str(program), "--version"], cwd=scratch, what=program.name, env={"HOME": str(scratch)})
