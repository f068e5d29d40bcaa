"""Run an installer as a subprocess: bounded, without a terminal, with an error that quotes what it said; npm is one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from drivetrain.errors import InfrastructureError, MissingDependency

LOCKS = Path(__file__).parent / "lock"


def run_tool(
    argv: Sequence[str], *, cwd: Path, what: str, env: Mapping[str, str] | None = None, timeout_s: float = 900.0
) -> str:
    """Run ``argv`` to its end and return its standard output.

    Args:
        what: the step, for the error message.
        env: added to this process's environment (installers read their registry and proxy settings there).
        timeout_s: seconds after which the tool is killed.

    Raises:
        InfrastructureError: it failed, timed out or could not be started; nothing is retried.
    """
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            env={**os.environ, "NODE_DISABLE_COMPILE_CACHE": "1", **(env or {})},  # npm would leave a folder in /tmp
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureError(f"{what} failed: {error}.") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()[-2000:]
        raise InfrastructureError(
            f"{what} failed with exit code {done.returncode}: {said}",
            fix="Check that the package registry is reachable and that its files match the lock.",
        )
    return done.stdout.decode(errors="replace")


def find_npm(purpose: str) -> str:
    """The npm program; ``purpose`` says what it is needed for.

    Raises:
        MissingDependency: npm is not installed.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise MissingDependency(
            f"npm was not found; it is needed once, {purpose}.",
            fix="Install Node.js with npm (any version from 18 on), or copy a cached bundle from another host.",
        )
    return npm


def npm_ci(npm: str, lock: str, scratch: Path, *, title: str) -> Path:
    """Install ``lock/LOCK.package-lock.json`` below ``scratch``, no script run; returns ``node_modules``.

    Raises:
        InfrastructureError: npm failed.
    """
    for kind in ("package.json", "package-lock.json"):
        shutil.copyfile(LOCKS / f"{lock}.{kind}", scratch / kind)
    argv = [npm, "ci", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error"]
    run_tool(argv, cwd=scratch, what=f"npm ci of the {title} bundle")
    return scratch / "node_modules"
