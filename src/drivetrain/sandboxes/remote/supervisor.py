"""The owner's end of a box's supervisor (``inside/anchor.py``): questions, files in parts, and the end of it all."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from drivetrain.sandboxes.end import end
from drivetrain.sandboxes.protocol import SandboxError, SandboxGone
from drivetrain.sandboxes.remote.patience import PATIENCE_S, patiently
from drivetrain.sandboxes.remote.times import CALL_S
from drivetrain.sandboxes.remote.transport import LinkLost, Transport

logger = logging.getLogger(__name__)

PYTHON = "python3"
CHUNK_BYTES = 8 << 20
PARALLEL_PARTS = 4
SPILL_BYTES = 1 << 30

Result = TypeVar("Result")


class Supervisor:
    """Bound to the loop it was made in.

    Args:
        transport: the box.
        folder: the supervisor's folder inside.
    """

    def __init__(self, transport: Transport, folder: str) -> None:
        self.transport = transport
        self.folder = folder
        self.gone: SandboxGone | None = None
        self._forget: list[str] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._parts = asyncio.Semaphore(PARALLEL_PARTS)

    def spawn(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Run in the background until the sandbox is gone; an error nobody waits for is not reported."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    def fail(self, why: str) -> None:
        """Mark the sandbox as gone; whoever waits hears it. Idempotent, the first reason stays."""
        if self.gone is None:
            self.gone = SandboxGone(f"The sandbox is gone: {why}.")
            for task in list(self._tasks):
                if task is not asyncio.current_task():
                    task.cancel()

    async def settle(self) -> None:
        """After :meth:`fail`: wait for what ran in the background."""
        others = [task for task in self._tasks if task is not asyncio.current_task()]
        await end(*others)

    def check(self) -> None:
        """Raise SandboxGone if the sandbox is."""
        if self.gone is not None:
            raise SandboxGone(self.gone.what)

    def forget(self, name: str) -> None:
        """Let the supervisor remove a finished job's files, with the next question."""
        self._forget.append(name)

    async def attempt(self, what: str, call: Any, *, patience_s: float = PATIENCE_S) -> Any:
        """``call()`` with patience, ended early when the sandbox is gone.

        Raises:
            SandboxGone: the sandbox is closed or died.
            SandboxError: see :func:`~drivetrain.sandboxes.remote.patience.patiently`.
        """
        self.check()
        work = self.spawn(patiently(what, call, patience_s=patience_s))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if self.gone is not None and work.cancelled() and not _cancelling():
                raise SandboxGone(self.gone.what) from None
            work.cancel()
            raise
        except SandboxGone as error:
            self.fail(_reason(error))
            raise

    async def ask(self, question: dict[str, Any], *, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """One question to the supervisor; it may arrive more than once.

        Raises:
            SandboxGone: the sandbox is closed or died.
            SandboxError: the supervisor does not understand, or cannot be reached.
        """
        forget, self._forget = self._forget, []
        words = [PYTHON, "-I", "-S", f"{self.folder}/code/call.py", self.folder]
        words.append(json.dumps({**question, "forget": forget}))

        async def once() -> dict[str, Any]:
            reply = await self.transport.run(words, timeout_s=CALL_S)
            try:
                answer: dict[str, Any] = json.loads(reply.stdout)
            except ValueError:
                raise LinkLost(f"No answer but {reply.stdout[:200]!r} {reply.stderr[:200]!r}.") from None
            if "gone" in answer:
                raise SandboxGone(f"The sandbox is gone: {answer['gone']}.")
            return answer

        answer: dict[str, Any] = await self.attempt(f"ask the sandbox to {question['do']}", once, patience_s=patience_s)
        if "refused" in answer:
            raise SandboxError(f"The sandbox's supervisor refused {question['do']}: {answer['refused']}.")
        return answer

    async def put(self, path: str, data: bytes) -> None:
        """A file inside, as root."""
        await self.attempt(f"send {path}", lambda: self.transport.put(path, data))

    async def put_parts(self, path: str, data: bytes | memoryview) -> int:
        """``data`` as files ``path.0``, ``path.1``, ...; how many. A proxy's limits are per request."""
        view = memoryview(data)
        parts = [view[begin : begin + CHUNK_BYTES] for begin in range(0, len(view), CHUNK_BYTES)]

        async def send(number: int, part: memoryview) -> None:
            async with self._parts:
                await self.put(f"{path}.{number}", bytes(part))

        await asyncio.gather(*(send(number, part) for number, part in enumerate(parts)))
        return len(parts)

    async def fetch(self, job: str, name: str, size: int) -> bytes:
        """The first ``size`` bytes of an output file of a job."""
        if size <= 0:
            return b""
        parts = await asyncio.gather(
            *(self._slice(job, name, begin, min(CHUNK_BYTES, size - begin)) for begin in range(0, size, CHUNK_BYTES))
        )
        return b"".join(parts)

    async def fetch_all(self, job: str, name: str, head: bytes, folder: Path) -> None:
        """``head`` and all that came after it, as ``folder/name``, 1 GiB at most."""
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with (folder / name).open("wb") as file:
                (folder / name).chmod(0o600)
                await asyncio.to_thread(file.write, head)
                begin = 0
                while len(head) + begin < SPILL_BYTES:
                    data = await self._slice(job, name + ".rest", begin, CHUNK_BYTES)
                    await asyncio.to_thread(file.write, data)
                    begin += len(data)
                    if len(data) < CHUNK_BYTES:
                        break
        except OSError as error:
            # The host's disk is full: the command has its result, and the head is what there is.
            logger.warning("cannot write the whole output to %s: %s", folder / name, error)

    async def _slice(self, job: str, name: str, begin: int, size: int) -> bytes:
        async with self._parts:
            cut = await self.ask({"do": "cut", "job": job, "name": name, "offset": begin, "length": size})
            data: bytes = await self.attempt(f"fetch {name}", lambda: self.transport.get(cut["path"]))
        if len(data) != cut["size"]:
            raise SandboxError(f"Fetched {len(data)} bytes of {name} where {cut['size']} were announced.")
        return data


def _cancelling() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


def _reason(error: SandboxGone) -> str:
    return error.what.removeprefix("The sandbox is gone: ").rstrip(".")
