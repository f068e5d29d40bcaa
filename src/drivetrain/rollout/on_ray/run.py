"""The driver: hands rollouts to nodes, gathers what they send, and gives those of a dead node to another."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from drivetrain.errors import ConfigError, InfrastructureError
from drivetrain.journal.writer import Journal
from drivetrain.rollout.config import EpisodeSpec
from drivetrain.rollout.mask_guard import MaskGuard
from drivetrain.rollout.on_ray.book import Attempt, Book
from drivetrain.rollout.on_ray.handles import Cluster, Failure, Node, NodeHandle
from drivetrain.rollout.on_ray.node import Job
from drivetrain.rollout.on_ray.options import RayOptions
from drivetrain.rollout.on_ray.shipment import Shipment, store, unpack
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.selection import Selection

ATTEMPTS = "attempts.jsonl"
"""File of the run folder: every attempt that ended (:class:`~drivetrain.rollout.on_ray.book.Ended`)."""

_ALIKE = ("drivetrain", "selection", "template_sha256", "engine", "agents")
_POLL_S = 1.0
_SAY_S = 10.0
_CLOSE_S = 60.0
_RESTARTS = 3


class ClusterLost(InfrastructureError):
    """No node has been there for as long as was allowed; what finished is recorded, and the run can be resumed."""


class RolloutsOnCluster:
    """One run's rollouts on a cluster.

    The run folder comes out as if the rollouts had run here: each finished one's session is moved from its node's
    journal into this run's, then its files, rows and result are written, and only then it counts. An attempt whose node
    died leaves a line in ``attempts.jsonl`` and nothing else; its rollout starts anew, in a new session.

    Args:
        cluster: where they run.
        job: what the nodes are told.
        run: the folder that everything ends up in.
        options: how many at a time, how many attempts.
        tell: gets a line when a node comes, goes, or takes long to start.
    """

    def __init__(
        self, cluster: Cluster, job: Job, run: RunDir, options: RayOptions, tell: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._job = job
        self._run = run
        self._options = options
        self._tell = tell
        self._info: dict[str, Any] | None = None
        self._journal: Journal | None = None
        self._selection = Selection()
        self._results: dict[int, RolloutResult] = {}
        self._news = asyncio.Condition()
        self._starts: Counter[str] = Counter()
        self._refused: dict[str, str] = {}
        self._starting: set[str] = set()
        self.guard = MaskGuard(job.config.max_masked_fraction)
        self.book = Book((), max_attempts=options.max_attempts)

    async def run(
        self,
        specs: Sequence[EpisodeSpec],
        *,
        on_start: Callable[[EpisodeSpec], None] = lambda _: None,
        on_done: Callable[[RolloutResult], None] = lambda _: None,
    ) -> list[RolloutResult]:
        """Run every spec; results in the order of the specs. ``on_start`` comes again when a rollout starts anew.

        Raises:
            ClusterLost: there was no node for ``node_wait_s``.
            ConfigError, InfrastructureError: no node could be started; the first one's reason.
            MaskedFractionExceeded: see :func:`drivetrain.rollout.runner.run_rollouts`.
        """
        self._on_start, self._on_done = on_start, on_done
        self._results = {}
        self.book = Book(specs, max_attempts=self._options.max_attempts, write=self._write_attempt)
        watch = asyncio.ensure_future(self._watch())
        try:
            await watch
        finally:
            watch.cancel()
            await asyncio.wait({watch})
            if self._journal is not None:
                self._journal.close()
                self._journal = None
        return [self._results[place] for place in range(len(specs))]

    async def _watch(self) -> None:
        """Serve every node that there is, until all rollouts have ended."""
        serving: dict[str, asyncio.Task[None]] = {}
        clock = asyncio.get_running_loop().time
        alone_since = clock()
        try:
            while not self.book.done:
                for node in await asyncio.to_thread(self._cluster.nodes):
                    if node.id not in serving and node.id not in self._refused:
                        serving[node.id] = asyncio.create_task(self._serve(node), name=f"node {node.name}")
                for node_id in [each for each, task in serving.items() if task.done()]:
                    serving.pop(node_id).result()
                if serving:
                    alone_since = clock()
                elif self._refused and self._info is None:
                    raise InfrastructureError(f"no node could be started: {next(iter(self._refused.values()))}")
                elif clock() - alone_since > self._options.node_wait_s:
                    raise ClusterLost(
                        f"no node for {self._options.node_wait_s:g} s; {self.book.waiting} rollouts have not run.",
                        fix="Bring nodes back and go on with `drivetrain rollout --resume`.",
                    )
                await self._await_news(_POLL_S)
            ending = [task for each, task in serving.items() if each not in self._starting]
            if ending:
                await asyncio.wait(ending, timeout=_CLOSE_S)
        finally:
            for task in serving.values():
                task.cancel()
            if serving:
                await asyncio.wait(serving.values())
        for task in serving.values():
            if not task.cancelled():
                task.result()

    async def _serve(self, node: Node) -> None:
        """Start a node and keep it busy until all rollouts have ended, or it is gone."""
        self._starts[node.name] += 1
        if self._starts[node.name] > _RESTARTS:
            self._refuse(node, f"its process died {_RESTARTS} times without a finished rollout in between")
            return
        handle = self._cluster.open(node, self._job)
        try:
            if await self._started(node, handle):
                gone = asyncio.Event()
                async with asyncio.TaskGroup() as group:
                    for _ in range(node.slots):
                        group.create_task(self._work(node, handle, gone))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            with contextlib.suppress(Failure, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await handle.aclose()

    async def _started(self, node: Node, handle: NodeHandle) -> bool:
        say = asyncio.create_task(self._say(node, handle))
        self._starting.add(node.id)
        try:
            async with asyncio.timeout(self._options.start_s):
                info = await handle.start()
        except TimeoutError:
            self._refuse(node, f"it was not ready within {self._options.start_s:g} s")
            return False
        except Failure as failure:
            if isinstance(failure.cause, ConfigError):
                raise failure.cause from None  # it would say the same on every node
            if failure.gone:
                self._tell(f"node {node.name} is gone before it was ready: {_brief(failure)}")
            else:
                self._refuse(node, f"it cannot run rollouts: {_brief(failure)}")
            return False
        finally:
            self._starting.discard(node.id)
            say.cancel()
            await asyncio.wait({say})
        return self._is_alike(node, info)

    def _is_alike(self, node: Node, info: dict[str, Any]) -> bool:
        """The first node says what this run is; rollouts of one run must be alike.

        Raises:
            ConfigError: the run is one that is resumed, and was begun with something else.
        """
        if self._info is None:
            self._info = info
            self._run.write_info({**info, "ray": msgspec.to_builtins(self._options)})
            self._selection = Selection.read(self._run)
            if self._job.config.needs_model:
                self._journal = Journal(self._run.journal)
        for name in _ALIKE:
            if info.get(name) != self._info.get(name):
                self._refuse(node, f"its {name} is {info.get(name)}, and the first node's is {self._info.get(name)}")
                return False
        self._tell(f"node {node.name}: {node.slots} rollouts at a time")
        return True

    async def _work(self, node: Node, handle: NodeHandle, gone: asyncio.Event) -> None:
        """One rollout after the other on a node, until there is none left or the node is gone: whoever hears it first
        says so, lest the others try on it what it has just lost."""
        while (attempt := await self._next(node, gone)) is not None:
            self._on_start(attempt.spec)
            try:
                shipment = unpack(await handle.run(attempt.spec))
            except Failure as failure:
                if failure.gone:
                    gone.set()
                    await self._lost(attempt, failure)
                    return
                shipment = Shipment(_failed(attempt.spec, str(failure)), None, {})
            await self._arrived(attempt, shipment)

    async def _next(self, node: Node, gone: asyncio.Event) -> Attempt | None:
        async with self._news:
            while not self.book.done and not gone.is_set():
                attempt = self.book.take(node.name)
                if attempt is not None:
                    return attempt
                await self._news.wait()
        return None

    async def _arrived(self, attempt: Attempt, shipment: Shipment) -> None:
        result = shipment.result
        await self._record(attempt, shipment)
        self.book.finish(attempt, result.session_id)
        self._starts[attempt.node] = 0
        self.guard.add(result.turns, result.sampled_tokens)
        await self._announce()
        self.guard.check()

    async def _lost(self, attempt: Attempt, failure: Failure) -> None:
        why = _brief(failure)
        self._tell(f"node {attempt.node} is gone; {attempt.spec.rollout_id} was running there: {why}")
        if attempt.number >= self._options.max_attempts:  # recorded first: with the last one lost the run may be over
            failed = _failed(attempt.spec, f"its node died {attempt.number} times, the last time {attempt.node}: {why}")
            await self._record(attempt, Shipment(failed, None, {}))
        self.book.lose(attempt, why)
        await self._announce()

    async def _record(self, attempt: Attempt, shipment: Shipment) -> None:
        """Before the book hears of it: when the last rollout has ended there, every result is here."""
        await store(shipment, self._run, self._journal)
        self._results[attempt.place] = shipment.result
        self._on_done(shipment.result)

    async def _announce(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def _await_news(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._news:
                await self._news.wait()

    async def _say(self, node: Node, handle: NodeHandle) -> None:
        """Tell what a node that takes long to start is busy with."""
        said = ""
        while True:
            await asyncio.sleep(_SAY_S)
            with contextlib.suppress(Failure):
                line = await handle.said()
                if line and line != said:
                    self._tell(f"node {node.name}: {line}")
                said = line

    def _refuse(self, node: Node, why: str) -> None:
        self._refused[node.id] = f"{node.name}: {why}"
        self._tell(f"node {node.name} is left out: {why}")

    def _write_attempt(self, line: bytes) -> None:
        with (self._run.path / ATTEMPTS).open("ab") as file:
            file.write(line)


def _failed(spec: EpisodeSpec, why: str) -> RolloutResult:
    return RolloutResult(
        rollout_id=spec.rollout_id,
        session_id="",
        task_id=spec.task_id,
        agent=spec.agent,
        group=spec.group,
        status="infra_error",
        reward=None,
        error=why,
    )


def _brief(failure: Failure) -> str:
    """The first line: Ray's messages are pages."""
    return (
        f"{type(failure.cause).__name__}: {str(failure.cause).strip().splitlines()[0] if str(failure) else ''}".strip()
    )
