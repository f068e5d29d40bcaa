"""Owner processes for the chaos test: each makes sandboxes, uses them, and most are killed in the middle of something.

Run as ``python -m tests.chaos.owners PLAN`` (a JSON :class:`Plan`): imports once, then forks the owners, two at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import os
import random
import secrets
import signal
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from drivetrain.sandboxes import Limits, Mount, SandboxBackend, SandboxError, SandboxHandle, SandboxSpec
from tests.conformance.sandbox.kits import get_kit
from tests.conformance.sandbox.kits.base import Kit

PHASES = ("create", "exec", "background", "upload", "snapshot", "close")
# Runs detached, so that nothing but the sandbox's end takes it along.
_TREE = "setsid sh -c 'sleep 600; true' {mark} & sh -c 'sleep 600; true' {mark}"
_AT_THE_SAME_TIME = 2


class Plan(msgspec.Struct, kw_only=True):
    """``owners`` processes make ``each`` sandboxes at the same time. ``log`` gets a line for everything that begins
    and ends; ``mark`` is a word in the command line of everything that runs inside; ``deaths`` are the phases in which
    the owners are killed, None for one that ends as it should."""

    kit: str
    root: str
    log: str
    mark: str
    seed: int
    each: int
    deaths: list[str | None]


class Owner:
    """One process: the life of its sandboxes, and the moment of its death."""

    def __init__(self, plan: Plan, number: int, kit: Kit) -> None:
        self.plan = plan
        self.number = number
        self.kit = kit
        self.random = random.Random(f"{plan.seed}/{number}")
        self.log = os.open(plan.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.dies_in = plan.deaths[number]
        # The first of those who die in a phase surely does so in the middle of it; the others get further before.
        self.surely = self.dies_in is not None and plan.deaths.index(self.dies_in) == number
        self.until_death = 1 if self.surely else self.random.randint(1, 4)

    def say(self, *words: object) -> None:
        os.write(self.log, (" ".join(map(str, (self.number, *words))) + "\n").encode())

    @contextlib.asynccontextmanager
    async def phase(self, name: str, sandbox: int) -> AsyncIterator[None]:
        """Something that may be the last."""
        self.say("begin", name, sandbox)
        if name == self.dies_in:
            self.until_death -= 1
            if self.until_death == 0:
                delay = 0.0 if self.surely else self.random.uniform(0, self.random.choice([0.02, 0.2]))
                asyncio.get_running_loop().call_later(delay, os.kill, os.getpid(), signal.SIGKILL)
        yield
        self.say("end", name, sandbox)

    async def run(self) -> None:
        backend = self.kit.make(Path(self.plan.root))
        lives = [self.life(backend, number) for number in range(self.plan.each)]
        await asyncio.gather(*lives)
        if self.dies_in is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        await backend.aclose()

    def spec(self, backend: SandboxBackend) -> SandboxSpec:
        """Something different each time, as far as the backend can."""
        changes: dict[str, object] = {"limits": Limits(ttl_s=self.random.choice([60.0, 600.0]))}
        kind = self.random.randrange(4)
        if kind == 0 and "overlay" in backend.features:
            changes["mounts"] = (Mount(source=Path(__file__).parent, target="/over", overlay=True),)
        elif kind == 1 and "mount" in backend.features:
            changes["mounts"] = (Mount(source=Path(__file__).parent, target="/below"),)
        elif kind == 2 and "disk_limit" in backend.features and self.random.random() < 0.3:
            changes["limits"] = Limits(ttl_s=600.0, disk_bytes=32 << 20)
        return self.kit.spec(**changes)

    async def life(self, backend: SandboxBackend, number: int) -> None:
        gives_up = self.random.random() < 0.15
        try:
            async with asyncio.timeout(self.random.uniform(0, 0.2) if gives_up else None):
                async with self.phase("create", number):
                    box = await backend.create(self.spec(backend))
        except TimeoutError:
            self.say("cancelled", "create", number)
            return
        deeds = self.random.sample([self.exec, self.background, self.upload, self.snapshot], self.random.randint(1, 3))
        deeds += [deed for deed in (self.exec, self.background, self.upload) if deed.__name__ == self.dies_in]
        try:
            for deed in deeds:
                await deed(backend, box, number)
            if self.random.random() < 0.2:
                self.kit.vanish(box)
                self.say("vanished", number)
                await asyncio.sleep(0)
        except SandboxError as error:
            self.say("error", number, type(error).__name__, error)
        if self.dies_in == "close" or self.random.random() < 0.7:
            async with self.phase("close", number):
                await box.close()

    async def exec(self, backend: SandboxBackend, box: SandboxHandle, number: int) -> None:
        async with self.phase("exec", number):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.random.choice([None, self.random.uniform(0, 0.1)])):
                    await box.exec(["sh", "-c", "sleep 0.05; true", self.plan.mark])

    async def background(self, backend: SandboxBackend, box: SandboxHandle, number: int) -> None:
        async with self.phase("background", number):
            await box.start(["sh", "-c", _TREE.format(mark=self.plan.mark)])

    async def upload(self, backend: SandboxBackend, box: SandboxHandle, number: int) -> None:
        async with self.phase("upload", number):
            await box.upload(_archive(), "up")

    async def snapshot(self, backend: SandboxBackend, box: SandboxHandle, number: int) -> None:
        if "snapshot" in backend.features and self.random.random() < 0.5:
            async with self.phase("snapshot", number):
                snapshot = await box.snapshot()
                if self.dies_in is None:  # one that its owner keeps outlives the backend; a dead one's is reaped
                    await backend.drop(snapshot)


@functools.cache
def _archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number in range(40):
            member = tarfile.TarInfo(f"folder/{number}")
            member.size = 16384
            tar.addfile(member, io.BytesIO(bytes(16384)))
    return buffer.getvalue()


def own(plan: Plan, number: int, kit: Kit) -> int:
    """Fork an owner; its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        owner = Owner(plan, number, kit)
        make = secrets.token_hex

        def token_hex(length: int) -> str:  # a sandbox's name, before it has left any other trace
            made = make(length)
            owner.say("id", f"dt-{made}")
            return made

        secrets.token_hex = token_hex  # type: ignore[assignment]
        asyncio.run(owner.run())
        owner.say("done")
        code = 0
    finally:
        os._exit(code)


def main() -> None:
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    kit = get_kit(plan.kit)
    kit.start()
    waiting, running = list(range(len(plan.deaths))), {}
    while waiting or running:
        while waiting and len(running) < _AT_THE_SAME_TIME:
            number = waiting.pop(0)
            running[own(plan, number, kit)] = number
        pid, status = os.wait()
        number = running.pop(pid)
        expected = 0 if plan.deaths[number] is None else -signal.SIGKILL
        code = os.waitstatus_to_exitcode(status)
        if code != expected:
            print(f"owner {number} ended with {code}, not {expected}", flush=True)
    kit.close()


if __name__ == "__main__":
    main()
