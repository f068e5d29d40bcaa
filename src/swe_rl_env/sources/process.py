"""Run a registry client (pip, npm) with a deadline and a readable failure."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from swe_rl_env.errors import BuildError


def run_client(
    argv: Sequence[str], *, cwd: Path, timeout_s: float = 600.0, env: Mapping[str, str] | None = None
) -> bytes:
    """Run to the end; return stdout.

    The client keeps the caller's environment: index, proxy and certificate settings live there.

    Raises:
        BuildError: non-zero exit, time-out, or the program is missing.
    """
    name = " ".join(argv[:4])
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, **(env or {})},
        )
    except subprocess.TimeoutExpired as e:
        raise BuildError(f"{name} took longer than {timeout_s:g} s.", fix="Check the network and try again.") from e
    except OSError as e:
        raise BuildError(f"{name} could not be started: {e.strerror}.") from e
    if done.returncode != 0:
        tail = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-1500:]
        raise BuildError(f"{name} failed ({done.returncode}): {tail}")
    return done.stdout
