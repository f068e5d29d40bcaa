"""What each kind of fault does to the system, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from tests.chaos.stack.schedule import Fault, Kind
from tests.chaos.stack.stage import Stage

_PAUSE_PATIENCE_S = 20.0
_BETWEEN_RESTARTS = 20
"""Replies."""


class Injuries:
    """Does faults to a stage and writes down which; two of one kind never overlap."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.done: Counter[Kind] = Counter()
        self.running: set[Kind] = set()
        self._deeds: dict[Kind, Callable[[Fault], Awaitable[None]]] = {
            "gateway_kill": self._gateway_kill,
            "engine_restart": self._engine_restart,
            "engine_hang": self._engine_hang,
            "slow_disk": self._slow_disk,
            "disk_full": self._disk_full,
            "clock_jump": self._clock_jump,
            "sandbox_death": self._sandbox_death,
            "relay_cut": self._relay_cut,
            "relay_swallow": self._relay_swallow,
            "harness_crash": self._harness_crash,
            "trainer_pause": self._trainer_pause,
        }
        self._engine_lock = asyncio.Lock()
        self._gateway_lock = asyncio.Lock()
        self._seen = 0

    def note(self, kind: Kind, what: str, **more: Any) -> None:
        with self.stage.plan.faults.open("a") as file:
            file.write(json.dumps({"t": time.monotonic(), "kind": kind, "what": what, **more}) + "\n")

    async def inflict(self, fault: Fault) -> None:
        """One fault from its begin to its end."""
        if fault.kind in self.running:
            return
        self.running.add(fault.kind)
        self.note(fault.kind, "begin")
        try:
            await self._deeds[fault.kind](fault)
            self.done[fault.kind] += 1
        finally:
            self.note(fault.kind, "end")
            self.running.discard(fault.kind)

    async def _gateway_kill(self, fault: Fault) -> None:
        async with self._gateway_lock:
            await self._breath()
            await self.stage.gateway.kill()
            await asyncio.sleep(fault.lasts)
            await self.stage.gateway.start()
            self._seen = self.stage.tally.count()["seen"]

    async def _breath(self) -> None:
        """Between two restarts, which take long on a slow machine, agents see some replies."""
        wanted = self._seen + _BETWEEN_RESTARTS
        while self.stage.tally.count()["seen"] < wanted and self.stage.workers.running:  # noqa: ASYNC110
            await asyncio.sleep(0.2)

    async def _engine_restart(self, fault: Fault) -> None:
        async with self._engine_lock:
            await self._breath()
            await self.stage.engine.kill()
            await asyncio.sleep(fault.lasts)
            await self.stage.engine.start()
            self._seen = self.stage.tally.count()["seen"]

    async def _engine_hang(self, fault: Fault) -> None:
        async with self._engine_lock:
            self.stage.engine.signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(fault.lasts)
            finally:
                self.stage.engine.signal(signal.SIGCONT)

    async def _slow_disk(self, fault: Fault) -> None:
        await self._controlled("slow", f"{0.05 + 0.4 * fault.dice:.3f}", fault.lasts)

    async def _disk_full(self, fault: Fault) -> None:
        await self._controlled("full", "1", fault.lasts)

    async def _clock_jump(self, fault: Fault) -> None:
        self.stage.control("clock", f"{(fault.dice - 0.5) * 7200:.3f}")

    async def _controlled(self, name: str, value: str, seconds: float) -> None:
        self.stage.control(name, value)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.stage.control(name, None)

    async def _sandbox_death(self, fault: Fault) -> None:
        boxes = self.stage.boxes
        if boxes.missing is not None or not self.stage.plan.boxes:
            return
        while not (killed := boxes.kill(fault.dice)) and not self.stage.plan.stop.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        self.note("sandbox_death", "killed", box=killed)

    async def _relay_cut(self, fault: Fault) -> None:
        self.stage.relay.down = True
        self.stage.relay.cut()
        try:
            await asyncio.sleep(fault.lasts)
        finally:
            self.stage.relay.down = False

    async def _relay_swallow(self, fault: Fault) -> None:
        relay = self.stage.relay
        relay.swallowing = True
        try:
            await asyncio.sleep(fault.lasts)
            relay.close_all()
            await asyncio.sleep(0)
        finally:
            relay.swallowing = False

    async def _harness_crash(self, fault: Fault) -> None:
        number = int(fault.dice * self.stage.plan.groups)
        while not (pid := self.stage.group_pid(number)):  # noqa: ASYNC110 (a file of another process)
            await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        self.note("harness_crash", "killed", group=number)
        while self.stage.group_pid(number) == pid:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def _trainer_pause(self, fault: Fault) -> None:
        """An update of the weights, again and again until the gateway has taken it."""
        version = self.stage.version = self.stage.version + 1
        mode = "hold" if fault.dice < 0.5 else "drain"
        while True:
            body = {"mode": mode, "deadline_s": _PAUSE_PATIENCE_S, "on_deadline": "abort", "owner": "trainer"}
            status, answer = await self.stage.admin.try_once("POST", "/pause", body)
            self.note("trainer_pause", "pause", status=status)
            if status == 200:
                await asyncio.sleep(fault.lasts)
                status, answer = await self.stage.admin.try_once(
                    "POST", "/resume", {"policy_version": version, "owner": "trainer"}
                )
                self.note("trainer_pause", "resume", status=status, answer="" if status == 200 else str(answer))
                if status == 200:
                    return
            await asyncio.sleep(0.3)
