"""One episode: a sandbox for the agent from ``reset`` on, and one verdict at its end, from another, sealed sandbox."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Literal

import msgspec

from drivetrain.errors import DrivetrainError
from drivetrain.sandboxes.protocol import SandboxBackend
from swe_rl_env.building.build import BuiltTask
from swe_rl_env.grading.grade import Grade
from swe_rl_env.grading.run import grade_workspace
from swe_rl_env.models import Status, SWEAction, SWEObservation, SWEState
from swe_rl_env.server.errors import EpisodeError
from swe_rl_env.server.perform import Bounds, Outcome, perform
from swe_rl_env.server.settings import Settings
from swe_rl_env.tasks.catalog import prompt_for
from swe_rl_env.work.workspace import Workspace

_log = logging.getLogger(__name__)

CLOSING_S = 600.0
"""How long a sandbox may outlive its episode's time limit, while its work is collected."""


class Episode:
    """Actions are carried out one at a time, in the order in which they come.

    Args:
        episode_id: for people and clients.
        workspace: open, and this episode's from now on.
        backend: makes the grader's sandbox.
    """

    def __init__(
        self, episode_id: str, built: BuiltTask, workspace: Workspace, backend: SandboxBackend, settings: Settings
    ) -> None:
        self.id = episode_id
        self.built = built
        self.status: Status = "running"
        self.steps = 0
        self.grade: Grade | None = None
        self.patch = b""
        self.closed = False
        self.users = 0
        """Calls that are in it now."""
        self._workspace = workspace
        self._backend = backend
        self._settings = settings
        self._turn = asyncio.Lock()
        self._deadline = time.monotonic() + settings.episode_timeout_s

    @property
    def done(self) -> bool:
        """Whether there is a verdict, or can be none."""
        return self.status != "running"

    @property
    def reward(self) -> float | None:
        """1.0, 0.0, or None where nothing was graded."""
        return self.grade.reward if self.grade is not None else None

    def first(self) -> SWEObservation:
        """What ``reset`` returns."""
        return self._observation(Outcome(), prompt=prompt_for(self.built.task), workdir=self._workspace.repo)

    def state(self) -> SWEState:
        """Where the episode stands."""
        return SWEState(
            episode_id=self.id,
            step_count=self.steps,
            task=self.built.task.instance_id,
            status=self.status,
            reward=self.reward,
            max_steps=self._settings.max_steps,
        )

    async def step(self, action: SWEAction, timeout_s: float | None = None) -> SWEObservation:
        """Carry out an action. Its last one, and whatever comes after its time limit, has the work graded.

        Args:
            timeout_s: bounds a command that asks for no time of its own.

        Raises:
            EpisodeError: the episode is over or closed.
        """
        async with self._turn:
            self._refuse_if_over()
            self.steps += 1
            left = self._deadline - time.monotonic()
            if action.type == "submit":
                return await self._end("ok", Outcome())
            if left <= 0:
                return await self._end("truncated", Outcome(error="The episode's time was over; this was not done."))
            try:
                outcome = await perform(self._workspace, _bounded(action, timeout_s), self._bounds(left))
            except (DrivetrainError, OSError) as error:
                return await self._lost(error)
            if self.steps >= self._settings.max_steps:
                return await self._end("truncated", outcome)
            return self._observation(outcome)

    async def finish(self, status: Literal["ok", "truncated"]) -> SWEObservation:
        """Grade what is there: the agent has stopped by itself, or was stopped.

        Raises:
            EpisodeError: the episode is over or closed.
        """
        async with self._turn:
            self._refuse_if_over()
            return await self._end(status, Outcome())

    async def close(self) -> None:
        """Close the sandbox; idempotent. Nothing is graded that was not."""
        self.closed = True
        await self._workspace.close()

    def _refuse_if_over(self) -> None:
        if self.done:
            raise EpisodeError("episode_over", f"Episode {self.id} is over ({self.status}).", fix="Reset.")
        if self.closed:
            raise EpisodeError(
                "closed", f"Episode {self.id} was closed, after a time in which nothing was asked of it.", fix="Reset."
            )

    def _bounds(self, left: float) -> Bounds:
        return Bounds(
            command_timeout_s=min(self._settings.command_timeout_s, left),
            output_bytes=self._settings.output_bytes,
            file_bytes=self._settings.file_bytes,
        )

    async def _end(self, status: Literal["ok", "truncated"], outcome: Outcome) -> SWEObservation:
        try:
            self.patch, self.grade = await grade_workspace(
                self._workspace,
                self.built,
                self._backend,
                timeout_s=self._settings.grading_timeout_s,
                labels={"role": "grader"},
            )
        except Exception as error:  # a defect in one grading must not look like a verdict (case row F8)
            return await self._lost(error)
        finally:
            await self._workspace.close()
        self.status = "unscorable" if self.grade.outcome == "error" else status
        if self.grade.detail:
            # For people: it may name hidden tests, so it goes to no client.
            _log.info("episode %s, %s: %s, %s", self.id, self.grade.instance_id, self.grade.reason, self.grade.detail)
        return self._observation(outcome)

    async def _lost(self, error: Exception) -> SWEObservation:
        _log.warning("episode %s, %s: %s", self.id, self.built.task.instance_id, error, exc_info=error)
        self.status, self.grade = "infra_error", None
        await self._workspace.close()
        return self._observation(Outcome(error=f"The machinery failed ({type(error).__name__}); nothing was graded."))

    def _observation(self, outcome: Outcome, **first: str) -> SWEObservation:
        return SWEObservation(
            **msgspec.structs.asdict(outcome),
            **first,
            status=self.status,
            done=self.done,
            reward=self.reward,
            steps_left=0 if self.done else self._settings.max_steps - self.steps,
            metadata={"episode_id": self.id, **(verdict(self.grade) if self.grade is not None else {})},
        )


def _bounded(action: SWEAction, timeout_s: float | None) -> SWEAction:
    if action.command is None or timeout_s is None or action.timeout_s is not None:
        return action
    return SWEAction.bash(action.command, timeout_s)


def verdict(grade: Grade) -> dict[str, Any]:
    """What of a grade is no secret of the grader: no test names, no log, no detail."""
    return {
        "reason": grade.reason,
        "findings": [msgspec.structs.asdict(finding) for finding in grade.findings],
        "dropped_paths": list(grade.dropped_paths),
        "fail_to_pass": [grade.f2p_passed, grade.f2p_total],
        "pass_to_pass": [grade.p2p_passed, grade.p2p_total],
        "patch_bytes": grade.patch_bytes,
        "timings": dict(grade.timings),
    }
