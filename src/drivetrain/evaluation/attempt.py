"""One attempt: a fresh workspace, the unmodified agent against the endpoint, and grading in a sealed sandbox."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from drivetrain.errors import ConfigError, DrivetrainError
from drivetrain.evaluation.config import EvalConfig
from drivetrain.evaluation.folder import Attempt, EvalFolder
from drivetrain.sandboxes.protocol import Limits, NetworkPolicy, SandboxBackend
from swe_rl_agent.harness import CLIHarness, HarnessOutcome
from swe_rl_env.building.build import BuiltTask
from swe_rl_env.grading.run import grade_workspace
from swe_rl_env.tasks.catalog import prompt_for
from swe_rl_env.work.agents import AGENTS
from swe_rl_env.work.workspace import Workspace, open_workspace

_CLOSING_S = 600.0


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How a sandbox reaches the model: ``socket`` is the host's way out of it, None when it has the host's network."""

    api_key: str
    socket: Path | None = None


class Attempter:
    """Makes attempts; stateless apart from the folder it writes to.

    Args:
        harness: prepared; None for a reference agent.
        endpoint: None for a reference agent.
    """

    def __init__(
        self,
        config: EvalConfig,
        backend: SandboxBackend,
        folder: EvalFolder,
        harness: CLIHarness | None,
        endpoint: Endpoint | None,
    ) -> None:
        self._config = config
        self._backend = backend
        self._folder = folder
        self._harness = harness
        self._endpoint = endpoint

    async def run(self, built: BuiltTask, index: int) -> Attempt:
        """Attempt a task until it is graded or the tries are used up. Never raises for what fails inside.

        Raises:
            ConfigError: the agent or the sandbox cannot do what is asked; trying again would not help.
        """
        started, attempt = time.monotonic(), None
        for number in range(1, self._config.infra_tries + 1):
            attempt = msgspec.structs.replace(await self._once(built, index), tries=number)
            if attempt.counts:
                break
        assert attempt is not None
        return msgspec.structs.replace(attempt, seconds=round(time.monotonic() - started, 2))

    async def _once(self, built: BuiltTask, index: int) -> Attempt:
        name, outcome = built.task.instance_id, None
        try:
            workspace = await self._workspace(built)
            try:
                if self._harness is None:
                    await AGENTS[self._config.agent](workspace, built)
                else:
                    outcome = await self._agent(self._harness, workspace, built)
                    self._folder.keep(name, index, _logs(outcome))
                    if outcome.infrastructure:
                        return _failed(name, index, f"{outcome.stop}: {outcome.detail}", outcome)
                patch, grade = await grade_workspace(workspace, built, self._backend, labels={"role": "grader"})
            finally:
                await workspace.close()
        except ConfigError:
            raise
        except (DrivetrainError, OSError) as error:
            return _failed(name, index, f"{type(error).__name__}: {error}", outcome)
        self._folder.keep(name, index, {"work.patch": patch, "tests.log": grade.log_tail.encode()})
        if grade.outcome == "error":
            return _failed(name, index, f"{grade.reason}: {grade.detail}", outcome)
        return Attempt(
            task_id=name,
            index=index,
            status="resolved" if grade.reward == 1.0 else "unresolved",
            reason=grade.reason,
            stop=outcome.stop if outcome else "",
            detail=grade.detail[:300],
            patch_bytes=len(patch),
            agent_s=round(outcome.duration_s, 2) if outcome else 0.0,
        )

    async def _workspace(self, built: BuiltTask) -> Workspace:
        network: NetworkPolicy = "none"
        if self._endpoint is not None:
            network = "gateway" if self._endpoint.socket is not None else "open"
        return await open_workspace(
            self._backend,
            built,
            network=network,
            gateway_socket=self._endpoint.socket if self._endpoint is not None else None,
            extra_mounts=self._harness.mounts() if self._harness is not None else (),
            limits=Limits(ttl_s=self._config.deadline_s + _CLOSING_S),
            labels={"role": "agent"},
        )

    async def _agent(self, harness: CLIHarness, workspace: Workspace, built: BuiltTask) -> HarnessOutcome:
        assert self._endpoint is not None
        config, box = self._config, workspace.sandbox
        return await harness.run(
            box,
            task=prompt_for(built.task),
            base_url=box.gateway_url() if self._endpoint.socket is not None else config.base_url.rstrip("/"),
            api_key=self._endpoint.api_key,
            model=config.model,
            context_length=config.context_length,
            cwd=workspace.repo,
            deadline_s=config.deadline_s,
            max_output_tokens=config.max_tokens,
            max_turns=config.max_turns,
        )


def _failed(name: str, index: int, detail: str, outcome: HarnessOutcome | None) -> Attempt:
    return Attempt(
        task_id=name, index=index, status="infra_error", detail=detail[:1000], stop=outcome.stop if outcome else ""
    )


def _logs(outcome: HarnessOutcome) -> dict[str, bytes]:
    return {**outcome.files, "stdout.log": outcome.stdout_tail, "stderr.log": outcome.stderr_tail}
