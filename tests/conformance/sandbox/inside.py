"""What the cases ask a sandbox again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from drivetrain.sandboxes import BgJob, ExecResult, SandboxHandle
from tests.conformance.sandbox.kits.base import Client

PATIENCE_S = 20.0


async def sh(box: SandboxHandle, script: str, *words: str, timeout_s: float = 30) -> ExecResult:
    """Run a shell script with arguments."""
    return await box.exec(["sh", "-c", script, "sh", *words], timeout_s=timeout_s)


async def python(box: SandboxHandle, client: Client, script: str, *words: str, timeout_s: float = 30) -> str:
    """Run a Python script that must succeed; its output."""
    done = await box.exec([client.python, "-I", "-c", script, *words], timeout_s=timeout_s)
    assert done.exit_code == 0, done.stderr.decode()
    return done.stdout.decode()


async def sleepers(box: SandboxHandle, nap: str) -> int:
    """How many ``sleep NAP`` run inside. The pattern does not match its own command line."""
    done = await sh(box, f"grep -lsazx '{nap[:-1]}[{nap[-1]}]' /proc/[0-9]*/cmdline | wc -l")
    return int(done.stdout)


async def until_sleepers(box: SandboxHandle, nap: str, count: int) -> None:
    """Wait until that many run."""
    until = time.monotonic() + PATIENCE_S
    while (seen := await sleepers(box, nap)) != count:
        assert time.monotonic() < until, f"there are {seen} sleepers, not {count}"


async def until_output(job: BgJob, text: bytes) -> None:
    """Wait until a job has said this."""
    until = time.monotonic() + PATIENCE_S
    while text not in job.tail():
        if time.monotonic() > until:
            pytest.fail(f"no {text!r} in {job.tail()!r}")
        await asyncio.sleep(0.01)


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something on the host."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.02)
