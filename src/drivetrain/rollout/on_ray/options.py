"""Where and how rollouts run on a cluster."""

from __future__ import annotations

import msgspec

from drivetrain.errors import ConfigError


class RayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which cluster, and what of it.

    ``address`` is ``auto`` (the cluster that this machine is part of), ``local`` (one of this machine alone, started
    here), or a cluster's own. ``per_node`` rollouts run on a node at once, if it has ``cpus`` and ``resources`` (custom
    resources by name) for each. ``max_attempts`` nodes may be lost under one rollout before it counts as failed.
    ``node_wait_s`` is how long to wait for a node when there is none; ``start_s`` how long one may take to get ready.
    """

    address: str = "auto"
    per_node: int = 2
    cpus: float = 1.0
    resources: dict[str, float] = {}
    max_attempts: int = 3
    node_wait_s: float = 300.0
    start_s: float = 1800.0

    def __post_init__(self) -> None:
        for name in ("per_node", "cpus", "max_attempts", "node_wait_s", "start_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive.")
        for name, amount in self.resources.items():
            if amount <= 0:
                raise ConfigError(f"resource {name!r} is {amount}; it must be positive.")
