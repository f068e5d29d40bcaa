"""What one node runs: a gateway of its own and the rollouts that the driver hands it. Knows nothing of Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from drivetrain.engines.models import ModelDir, resolve_model
from drivetrain.engines.protocol import Engine
from drivetrain.rollout.config import EpisodeSpec, RolloutConfig
from drivetrain.rollout.episode import EpisodeRunner
from drivetrain.rollout.on_ray.shipment import pack
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.socket_folder import socket_folder
from drivetrain.rollout.stack import open_stack
from swe_rl_env.tasks.model import SweTask

MakeEngine = Callable[[ModelDir], Engine]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What every node of a run needs to know. ``engine`` makes an engine in the place of the one ``config`` names."""

    config: RolloutConfig
    tasks: tuple[SweTask, ...]
    engine: MakeEngine | None = None


class NodeRunner:
    """A node's share of a run, in one process: an asyncio actor.

    What it records stays in a private folder until it has been sent; the folder goes with the process.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._runner: EpisodeRunner | None = None
        self._run: RunDir | None = None
        self._said = ""
        self._closing = asyncio.Event()
        self._ready = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self._episodes: set[asyncio.Task[bytes]] = set()

    def said(self) -> str:
        """What start-up said last, for whoever waits for it."""
        return self._said

    async def start(self) -> dict[str, Any]:
        """Build what the rollouts need and open the gateway; ``run.json`` of this node.

        Raises:
            DrivetrainError: see :func:`drivetrain.rollout.stack.open_stack`.
        """
        self._life = asyncio.ensure_future(self._live())
        ready = asyncio.ensure_future(self._ready.wait())
        await asyncio.wait({self._life, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._life.done():
            self._life.result()
        assert self._run is not None
        return self._run.info()

    async def run(self, spec: EpisodeSpec) -> bytes:
        """Run one rollout; a :class:`~drivetrain.rollout.on_ray.shipment.Shipment` as msgpack.

        Raises:
            DrivetrainError: what it recorded cannot be read back.
        """
        task = asyncio.ensure_future(self._episode(spec))
        self._episodes.add(task)
        task.add_done_callback(self._episodes.discard)
        return await task

    async def aclose(self) -> None:
        """Cancel what runs, close its sandboxes and the gateway; idempotent."""
        running = list(self._episodes)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._closing.set()
        if self._life is not None:
            await asyncio.wait({self._life})

    async def _episode(self, spec: EpisodeSpec) -> bytes:
        assert self._runner is not None and self._run is not None
        result = await self._runner.run(spec)
        return await asyncio.to_thread(pack, self._run, result)

    async def _live(self) -> None:
        """Opened and closed by one task, as context managers want it."""
        job = self._job
        with socket_folder("node") as folder:
            self._run = RunDir.create(folder)
            model: ModelDir | None = None
            engine: Engine | None = None
            if job.engine is not None:
                model = await asyncio.to_thread(resolve_model, job.config.model, None, self._tell)
                engine = job.engine(model)
            async with open_stack(
                job.config, self._run, self._tell, engine=engine, model=model, tasks=job.tasks
            ) as self._runner:
                self._ready.set()
                await self._closing.wait()

    def _tell(self, line: str) -> None:
        self._said = line
