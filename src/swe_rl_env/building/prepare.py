"""A task made ready, whatever it is made from: published archives or a container image."""

from __future__ import annotations

import asyncio
from pathlib import Path

from drivetrain.cache import Progress
from drivetrain.sandboxes.protocol import SandboxBackend
from swe_rl_env.building.build import BuiltTask, build_task
from swe_rl_env.building.image import build_image_task
from swe_rl_env.tasks.model import SweTask


async def prepare_task(
    task: SweTask, backend: SandboxBackend, cache: Path | None = None, progress: Progress | None = None
) -> BuiltTask:
    """Build a task or take it from the cache; an image is read in a sandbox of ``backend``.

    Raises:
        ConfigError, BuildError, InfrastructureError: see :func:`swe_rl_env.building.build.build_task`.
        SandboxError: see :func:`swe_rl_env.building.image.build_image_task`.
    """
    if task.image is not None:
        if progress is not None:
            progress(f"reading the checkout of {task.instance_id} from {task.image}")
        return await build_image_task(task, backend, cache)
    return await asyncio.to_thread(build_task, task, cache, progress)
