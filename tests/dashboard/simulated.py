"""A thousand rollouts that nobody runs: a source that makes them go on by a step at every update."""

from __future__ import annotations

import random

import msgspec

from drivetrain.dashboard.board import Board
from drivetrain.dashboard.model import EngineView, Phase, Point, RolloutView, RunView, Summary
from drivetrain.gateway.fence_types import FenceCounts, FenceStatus

START = 1_790_000_000.0
REASONS = ("message_changed", "assistant_removed", "branch", "system_changed", "tools_changed")
TASKS = ("xmltodict-0.14.2", "click-8.1.8", "attrs-24.3.0", "tomlkit-0.13.2", "rich-13.9.4")
RUN = RunView(
    name="20261201-101500-7f3a", kind="rollout", path="runs/20261201-101500-7f3a", model="SmolLM2-1.7B-Instruct",
    engine="vllm 0.31.0", config={"agents": ["pi", "codex"], "n": 8, "sandbox": "docker", "temperature": 1.0},
)  # fmt: skip


class Simulated:
    """Rollouts in groups of eight; ``width`` of them run at a time."""

    def __init__(self, count: int, *, width: int = 64, seed: int = 3) -> None:
        self._draw = random.Random(seed)
        self._width = width
        self.views = {view.id: view for view in map(_planned, range(count))}
        self._queue = list(self.views)
        self._running: list[str] = []
        self.at = START
        self.closed = False

    async def update(self, board: Board, summary: Summary) -> None:
        self.step()
        for view in self.views.values():
            board.put(view)
        running = [self.views[name] for name in self._running]
        calls = sum(view.calls for view in running)
        board.point(Point(self.at, calls * 31.0 + self._draw.random() * 90, calls))
        summary.engine = EngineView(in_flight=calls, waiting=0, context=32768, p50=1.9, p95=6.4)
        summary.fence = FenceStatus(
            state="open", policy_version=14, waiting=0, in_flight=calls, counts=FenceCounts(pauses=14)
        )
        graders = sum(view.phase == "grading" for view in running)
        summary.sandboxes = {"agent": len(running), "grader": graders}
        summary.sessions = {"open": len(running) - graders, "sealed": len(self.views) - len(self._queue) - len(running)}
        summary.journal_bytes = 730_000_000
        summary.refusals = {"context_length_exceeded": 12, "too_many_calls": 3}
        summary.lag = 0.002
        summary.finished = not self._queue and not running

    def close(self) -> None:
        self.closed = True

    def step(self, seconds: float = 1.0) -> None:
        """Go on."""
        self.at += seconds
        while self._queue and len(self._running) < self._width:
            self._running.append(self._queue.pop(0))
            self._change(self._running[-1], phase="starting", started=self.at)
        for name in list(self._running):
            self._go_on(name)

    def _go_on(self, name: str) -> None:
        view, draw = self.views[name], self._draw
        if view.phase == "grading":
            if draw.random() < 0.3:
                self._running.remove(name)
                self._end(view)
        elif view.turns > 4 and draw.random() < 0.1:
            self._change(name, phase="grading", calls=0)
        elif draw.random() < 0.6:
            forks = dict(view.forks)
            if draw.random() < 0.06:
                reason = draw.choices(REASONS, (9, 5, 4, 2, 1))[0]
                forks[reason] = forks.get(reason, 0) + 1
            tokens = draw.randint(40, 400)
            self._change(
                name,
                phase="agent",
                turns=view.turns + 1,
                prompt=view.prompt + 900 * (view.turns + 1),
                sampled=view.sampled + tokens,
                forks=forks,
                calls=draw.randint(0, 1),
                policy=14,
            )

    def _end(self, view: RolloutView) -> None:
        kind = self._draw.random()
        masked = {"undelivered": view.sampled // 40, "label:title": view.sampled // 25}
        ended = {"phase": "done", "ended": self.at, "masked": masked, "trained": view.sampled - sum(masked.values())}
        if kind < 0.02:
            error = "the sandbox was gone before the agent ended: bwrap exited with 137"
            self._change(view.id, status="infra_error", error=error, **ended)
        elif kind < 0.03:
            error = "no_results: the tests wrote no report"
            self._change(view.id, status="unscorable", error=error, **ended)
        else:
            skill = 0.15 + 0.7 * (hash_of(view.task) % 97) / 97
            reward = float(self._draw.random() < skill)
            self._change(view.id, status="truncated" if kind < 0.1 else "ok", reward=reward, **ended)

    def _change(self, name: str, **fields: object) -> None:
        self.views[name] = msgspec.structs.replace(self.views[name], **fields)


def hash_of(text: str) -> int:
    """The same in every process."""
    return sum(ord(char) * (place + 7) for place, char in enumerate(text))


def _planned(number: int) -> RolloutView:
    group, of = number % 8, number // 8
    agent = ("pi", "codex")[of % 2]
    task = f"pypi__{TASKS[of // 2 % len(TASKS)]}" + (f"-{of // 10}" if of >= 10 else "")
    phase: Phase = "queued"
    return RolloutView(
        id=f"{task}.{agent}.{group}", session=f"s-{number:04x}", task=task, agent=agent, group=group, phase=phase
    )
