"""Agents inside local sandboxes whose only way out is the gateway's socket."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sysconfig
import time
from pathlib import Path

import msgspec

from drivetrain.sandboxes import Limits, Mount, SandboxBackend, SandboxError, SandboxHandle
from tests.chaos.stack.admin import Admin
from tests.chaos.stack.harness import Order, Session
from tests.chaos.stack.plan import Plan
from tests.chaos.stack.processes import REPOSITORY
from tests.conformance.sandbox.kits.local import LocalKit

FIRST = 900
"""Agents in sandboxes are numbered from here on; each has one session."""
_LOGS = "/diary"
_EPISODE_S = 300.0


class Boxes:
    """``plan.boxes`` sandboxes at a time, each with one agent; a new one follows."""

    def __init__(self, plan: Plan, admin: Admin) -> None:
        self.plan = plan
        self.kit = LocalKit()
        self.ids: list[str] = []
        self.deaths = 0
        self._admin = admin
        self._running: list[SandboxHandle] = []
        self._chance = random.Random(f"boxes/{plan.seed}")
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def missing(self) -> str | None:
        """Why there are none on this machine."""
        return self.kit.missing()

    def start(self) -> None:
        if self.plan.boxes and self.missing is None:
            self._tasks = [asyncio.create_task(self._line(number)) for number in range(self.plan.boxes)]

    async def wait(self) -> None:
        """Until every agent has stopped."""
        await asyncio.gather(*self._tasks)

    async def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def kill(self, dice: float) -> str:
        """End one of the sandboxes from outside; its id, empty when there is none."""
        if not self._running:
            return ""
        box = self._running[int(dice * len(self._running))]
        with contextlib.suppress(ProcessLookupError, StopIteration, AssertionError):
            self.kit.vanish(box)
            self.deaths += 1
        return box.id

    async def _line(self, line: int) -> None:
        backend = self.kit.make(self.plan.sandboxes / str(line))
        try:
            number = FIRST + 100 * line
            while not self.plan.stop.exists():
                with contextlib.suppress(SandboxError):
                    await self._life(backend, number)
                number += 1
        finally:
            await backend.aclose()

    async def _life(self, backend: SandboxBackend, number: int) -> None:
        turns = self._chance.choice([3, 50])
        session, key = await self._admin.open(turns)
        folder = self.plan.diaries / f"box-{number}"
        folder.mkdir()
        folder.chmod(0o777)
        python = self.kit.client()
        site = sysconfig.get_paths()["purelib"]
        mounts = (
            *python.mounts,
            Mount(source=Path(site), target="/site"),
            Mount(source=REPOSITORY / "tests" / "chaos" / "stack", target="/code/tests/chaos/stack"),
            Mount(source=folder, target=_LOGS, writable=True),
        )
        spec = self.kit.spec(
            mounts=mounts,
            network="gateway",
            gateway_socket=self.plan.socket,
            env={"PYTHONPATH": "/code:/site", "PYTHONDONTWRITEBYTECODE": "1"},
            limits=Limits(ttl_s=_EPISODE_S),
        )
        box = await backend.create(spec)
        self.ids.append(box.id)
        self._running.append(box)
        try:
            order = Order(
                number=number,
                wire="chat",
                url=box.gateway_url(),
                diary=f"{_LOGS}/diary.jsonl",
                stop=f"{_LOGS}/stop",
                seed=self.plan.seed,
                session=Session(session, key, turns),
            )
            await box.write("order.json", msgspec.json.encode(order))
            job = await box.start([python.python, "-m", "tests.chaos.stack.harness", "order.json"])
            ends = time.monotonic() + _EPISODE_S
            while job.poll() is None and time.monotonic() < ends:
                if self.plan.stop.exists():
                    (folder / "stop").touch()
                await asyncio.sleep(0.2)
        finally:
            self._running.remove(box)
            await box.close()
            await self._admin.seal(session)
