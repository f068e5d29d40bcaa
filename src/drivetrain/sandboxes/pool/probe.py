"""Is a sandbox that has waited still good?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from drivetrain.sandboxes.protocol import SandboxGone, SandboxHandle

Probe = Callable[[SandboxHandle], Awaitable[object]]
"""Raises when the sandbox must not be handed out."""


async def still_there(sandbox: SandboxHandle) -> None:
    """Its first process is there: costs next to nothing, sees every end, not a sandbox that hangs."""
    # A death is an event on a socket: one turn of the loop polls for it, the next lets its callback run.
    for _ in range(2):
        await asyncio.sleep(0)
    await sandbox.stats()


async def runs_a_command(sandbox: SandboxHandle) -> None:
    """It runs ``true``: the whole way there and back, for the price of a command."""
    done = await sandbox.exec(["true"], max_output_bytes=4096)
    if done.exit_code != 0:
        raise SandboxGone(f"Sandbox {sandbox.id} cannot run `true` any more: exit code {done.exit_code}.")
