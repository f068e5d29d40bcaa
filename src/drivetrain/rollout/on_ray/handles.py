"""A cluster, its nodes and one node's actor, without saying which library runs them."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from drivetrain.rollout.config import EpisodeSpec
from drivetrain.rollout.on_ray.node import Job


class Node(msgspec.Struct, frozen=True):
    """A living node with room for ``slots`` rollouts. ``name`` is its address and the beginning of its id."""

    id: str
    name: str
    slots: int


class Failure(Exception):
    """An actor's call failed. ``gone``: its process or node died; else the call itself raised ``cause``."""

    def __init__(self, cause: Exception, *, gone: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.gone = gone


class NodeHandle(Protocol):
    """A :class:`NodeRunner` somewhere else. Every method raises :class:`Failure`."""

    async def start(self) -> dict[str, Any]:
        """:meth:`NodeRunner.start`."""

    async def said(self) -> str:
        """:meth:`NodeRunner.said`."""

    async def run(self, spec: EpisodeSpec) -> bytes:
        """:meth:`NodeRunner.run`."""

    async def aclose(self) -> None:
        """:meth:`NodeRunner.aclose`, then end its process."""


class Cluster(Protocol):
    """What the driver asks of a cluster (:class:`~drivetrain.rollout.on_ray.cluster.RayCluster`)."""

    def nodes(self) -> list[Node]:
        """Living nodes with room for rollouts."""

    def open(self, node: Node, job: Job) -> NodeHandle:
        """An actor on that node, not started."""
