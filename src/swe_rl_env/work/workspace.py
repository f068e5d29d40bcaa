"""The agent's sandbox: the checkout with a one-commit history, the task's environment, and nothing that grades."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from drivetrain.sandboxes.protocol import Limits, Mount, NetworkPolicy, SandboxBackend, SandboxHandle, SandboxSpec
from swe_rl_env.building.build import BuiltTask
from swe_rl_env.building.image import flatten
from swe_rl_env.work.survey import running

ROOT = "/work"


class Workspace(msgspec.Struct, frozen=True, kw_only=True):
    """An open sandbox with the task's checkout at ``repo`` (inside path).

    ``env`` is the environment every command in it gets on top of the sandbox's defaults; ``image`` what the sandbox
    was started from, and the grader's is (None = the backend's default). ``resident`` are the processes of the sandbox
    itself, which stay when the work is taken; ``pids`` is the limit of processes.
    """

    sandbox: SandboxHandle
    repo: str
    env: Mapping[str, str]
    image: str | None = None
    resident: tuple[str, ...] = ()
    pids: int = Limits().pids

    async def close(self) -> None:
        """Close the sandbox; idempotent."""
        await self.sandbox.close()


async def open_workspace(
    backend: SandboxBackend,
    built: BuiltTask,
    *,
    network: NetworkPolicy = "none",
    gateway_socket: Path | None = None,
    image: str | None = None,
    extra_mounts: Sequence[Mount] = (),
    extra_env: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    limits: Limits | None = None,
) -> Workspace:
    """Start a sandbox with the base commit checked out.

    Only the public part of the task enters: hidden tests, patches, test ids and the instance id (it names the fix
    version) stay outside, so do not put them into ``labels`` or ``extra_env`` either.

    Args:
        image: container image or template; None = the backend's default.
        extra_mounts: for example the agent's bundle.
        extra_env: added last, wins over the task's own variables.

    Raises:
        BuildError: the history in the task's image cannot be flattened.
        SandboxError: the sandbox did not start or the upload failed; nothing is left behind.
    """
    spec = workspace_spec(
        built,
        network=network,
        gateway_socket=gateway_socket,
        image=image,
        extra_mounts=extra_mounts,
        extra_env=extra_env,
        labels=labels,
        limits=limits,
    )
    sandbox = await backend.create(spec)
    try:
        return await check_out(sandbox, built, spec)
    except BaseException:
        await sandbox.close()
        raise


def workspace_spec(
    built: BuiltTask,
    *,
    network: NetworkPolicy = "none",
    gateway_socket: Path | None = None,
    image: str | None = None,
    extra_mounts: Sequence[Mount] = (),
    extra_env: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    limits: Limits | None = None,
) -> SandboxSpec:
    """What a sandbox must have for the task; arguments as of :func:`open_workspace`."""
    repo = built.task.checkout
    if built.task.image is not None:
        image = built.task.image
        env = dict(extra_env or {})  # the image has its own
    else:
        env = {**built.environment.variables(built.task, repo), **(extra_env or {})}
    return SandboxSpec(
        image=image,
        workdir=ROOT if built.task.image is None else repo,
        mounts=(*built.environment.mounts, *extra_mounts),
        env=env,
        network=network,
        gateway_socket=gateway_socket,
        limits=limits or Limits(),
        labels=dict(labels or {}),
    )


async def check_out(sandbox: SandboxHandle, built: BuiltTask, spec: SandboxSpec) -> Workspace:
    """Put the base commit into a sandbox that was made from ``spec`` (of :func:`workspace_spec`).

    Raises:
        BuildError: the history in the task's image cannot be flattened.
        SandboxError: the upload failed.
    """
    repo = built.task.checkout
    if built.task.image is not None:
        await flatten(sandbox, repo)
    else:
        await sandbox.upload(await asyncio.to_thread(built.workspace_tar.read_bytes), repo)
    return Workspace(
        sandbox=sandbox,
        repo=repo,
        env=spec.env,
        image=spec.image,
        resident=await running(sandbox),
        pids=spec.limits.pids,
    )
