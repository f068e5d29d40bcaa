"""Reference agents: the oracle applies the reference fix, the no-op does nothing.

They work through the sandbox like any agent, so an episode with one of them exercises everything but the model.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from drivetrain.errors import ConfigError
from drivetrain.sandboxes.protocol import SandboxError
from swe_rl_env.building.build import BuiltTask
from swe_rl_env.work.workspace import Workspace

ReferenceAgent = Callable[[Workspace, BuiltTask], Awaitable[None]]


def oracle_patch(built: BuiltTask) -> bytes:
    """The reference fix."""
    return built.gold_patch


async def oracle(workspace: Workspace, built: BuiltTask) -> None:
    """Apply the reference fix in the checkout.

    Raises:
        SandboxError: git is missing inside or the patch does not apply.
    """
    done = await workspace.sandbox.exec(
        ["git", "apply", "--whitespace=nowarn", "-"], cwd=workspace.repo, stdin=oracle_patch(built)
    )
    if done.exit_code != 0:
        raise SandboxError(f"The oracle could not apply its patch: {done.stderr.decode('utf-8', 'replace')[-500:]}")


async def noop(workspace: Workspace, built: BuiltTask) -> None:
    """Do nothing."""
    del workspace, built


AGENTS: dict[str, ReferenceAgent] = {"oracle": oracle, "noop": noop}


def reference_agent(name: str) -> ReferenceAgent:
    """The reference agent of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in AGENTS:
        raise ConfigError(f"Unknown reference agent {name!r}.", fix=f"Choose one of: {', '.join(AGENTS)}.")
    return AGENTS[name]
