"""Options of `drivetrain rollout` that concern a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import typer

from drivetrain.cli.console import tell
from drivetrain.errors import ConfigError
from drivetrain.rollout.config import EpisodeSpec, RolloutConfig
from drivetrain.rollout.mask_guard import MaskGuard
from drivetrain.rollout.on_ray.node import Job
from drivetrain.rollout.on_ray.options import RayOptions
from drivetrain.rollout.on_ray.run import RolloutsOnCluster
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from swe_rl_env.tasks.model import SweTask

RAY: str | None = typer.Option(
    None,
    "--ray",
    metavar="ADDRESS",
    help="Run on this Ray cluster: auto (the one this machine is part of), local, or an address. "
    "--concurrency then counts rollouts on each node.",
)
CPUS: float = typer.Option(1.0, "--ray-cpus", help="With --ray: CPUs that a rollout reserves on its node.")
RESOURCE: list[str] = typer.Option(
    [],
    "--ray-resource",
    metavar="NAME=AMOUNT",
    help="With --ray: custom resource that a rollout needs: sandbox=1.",
)
ATTEMPTS: int = typer.Option(
    3, "--ray-attempts", help="With --ray: how many nodes may die under a rollout before it counts as failed."
)


def ray_options(
    address: str | None, cpus: float, resource: Sequence[str], attempts: int, *, concurrency: int
) -> RayOptions | None:
    """What the options say; None without --ray.

    Raises:
        ConfigError: a resource is not NAME=AMOUNT, or a number makes no sense.
    """
    if address is None:
        return None
    return RayOptions(
        address=address,
        per_node=concurrency,
        cpus=cpus,
        resources=dict(_resource(each) for each in resource),
        max_attempts=attempts,
    )


async def run_on_ray(
    config: RolloutConfig,
    tasks: Sequence[SweTask],
    run: RunDir,
    specs: Sequence[EpisodeSpec],
    options: RayOptions,
    *,
    on_start: Callable[[EpisodeSpec], None],
    on_done: Callable[[RolloutResult], None],
) -> tuple[list[RolloutResult], MaskGuard]:
    """Run the rollouts on the cluster.

    Raises:
        MissingDependency: Ray is not installed.
        DrivetrainError: see :meth:`drivetrain.rollout.on_ray.run.RolloutsOnCluster.run`.
    """
    from drivetrain.rollout.on_ray.cluster import RayCluster

    cluster = RayCluster.join(options)
    try:
        driver = RolloutsOnCluster(cluster, Job(config=config, tasks=tuple(tasks)), run, options, tell)
        return await driver.run(specs, on_start=on_start, on_done=on_done), driver.guard
    finally:
        cluster.leave()


def _resource(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    try:
        return name, float(amount)
    except ValueError:
        raise ConfigError(f"--ray-resource {text} is not NAME=AMOUNT.", fix="For example: sandbox=1.") from None
