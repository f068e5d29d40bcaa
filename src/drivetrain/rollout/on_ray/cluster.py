"""The cluster as the driver sees it: its nodes, and one actor on each."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any, cast

from drivetrain.errors import ConfigError, MissingDependency
from drivetrain.rollout.config import EpisodeSpec
from drivetrain.rollout.on_ray.handles import Failure, Node, NodeHandle
from drivetrain.rollout.on_ray.node import Job, NodeRunner
from drivetrain.rollout.on_ray.options import RayOptions

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:  # pragma: no cover - the extra is installed where this is tested
    raise MissingDependency("Ray is not installed.", fix="pip install 'drivetrain[ray]'") from error


class RayCluster:
    """The nodes of a Ray cluster. Use :meth:`join`."""

    def __init__(self, options: RayOptions, *, ours: bool) -> None:
        self._options = options
        self._ours = ours
        self._job: Any = None

    @classmethod
    def join(cls, options: RayOptions) -> RayCluster:
        """Connect, unless this process is connected already.

        Raises:
            ConfigError: there is no cluster at the address.
        """
        ours = not ray.is_initialized()
        if ours:
            where: dict[str, Any] = {"address": options.address}
            if options.address == "local":
                where |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
            try:
                ray.init(**where, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise ConfigError(
                    f"no Ray cluster at {options.address!r}: {error}",
                    fix="Start one (`ray start --head`), or use local.",
                ) from error
        return cls(options, ours=ours)

    def nodes(self) -> list[Node]:
        """Living nodes that have room for at least one rollout."""
        found = []
        for node in ray.nodes():  # type: ignore[no-untyped-call]
            slots = self._slots(node["Resources"])
            if node["Alive"] and slots:
                found.append(Node(node["NodeID"], f"{node['NodeManagerAddress']}-{node['NodeID'][:8]}", slots))
        return found

    def open(self, node: Node, job: Job) -> NodeHandle:
        """An actor on that node and no other, not started."""
        if self._job is None:
            self._job = ray.put(job)
        options = self._options
        actor = ray.remote(NodeRunner).options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            num_cpus=options.cpus * node.slots,
            resources={name: amount * node.slots for name, amount in options.resources.items()},
            max_restarts=0,
            max_concurrency=node.slots + 4,
        )
        return _Actor(actor.remote(self._job))

    def leave(self) -> None:
        """Disconnect, if :meth:`join` connected."""
        if self._ours:
            ray.shutdown()

    def _slots(self, has: dict[str, float]) -> int:
        options = self._options
        needs = {"CPU": options.cpus, **options.resources}
        return min(options.per_node, *(int(has.get(name, 0.0) / amount) for name, amount in needs.items()))


class _Actor:
    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def start(self) -> dict[str, Any]:
        return cast("dict[str, Any]", await _result(self._actor.start.remote()))

    async def said(self) -> str:
        return str(await _result(self._actor.said.remote()))

    async def run(self, spec: EpisodeSpec) -> bytes:
        return cast("bytes", await _result(self._actor.run.remote(spec)))

    async def aclose(self) -> None:
        try:
            await _result(self._actor.aclose.remote())
        finally:
            ray.kill(self._actor)


async def _result(ref: Awaitable[Any]) -> Any:
    try:
        return await ref
    except RayTaskError as error:
        cause = error.cause if isinstance(getattr(error, "cause", None), Exception) else error
        raise Failure(cast("Exception", cause), gone=False) from error
    except RayError as error:
        raise Failure(error, gone=True) from error
