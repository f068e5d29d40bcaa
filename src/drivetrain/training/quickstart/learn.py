"""The whole demo: record a mediocre agent, imitate it, then learn from graded episodes of the real harness."""

from __future__ import annotations

import asyncio
import json
import os
import time
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from drivetrain.cache import Progress
from drivetrain.engines.models import ModelDir
from drivetrain.engines.tiny import build_tiny_model
from drivetrain.errors import ConfigError
from drivetrain.rollout.config import RolloutConfig
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from drivetrain.tokens.tokenizer import Tokenizer
from drivetrain.trace.export.sft_tokens import sft_token_lines
from drivetrain.training.alarm import DeltaAlarm
from drivetrain.training.episodes import LiveRollouts
from drivetrain.training.live import LiveTask, train_live
from drivetrain.training.quickstart.curve import draw_curves, read_curve
from drivetrain.training.quickstart.fine_tune import fine_tune
from drivetrain.training.quickstart.heldout import HeldOut, Point, point
from drivetrain.training.quickstart.lessons import reading_lessons
from drivetrain.training.quickstart.oracle import OPERATOR_OF, MediocreOracle, first_reply
from drivetrain.training.quickstart.policy import build_policy
from drivetrain.training.quickstart.record import record
from drivetrain.training.quickstart.settings import QuickstartSettings
from drivetrain.training.report import TrainReport, peak_memory
from drivetrain.training.sources import EpisodeRequest
from swe_rl_env.sources.operators import WORDS, Split, operator_rows
from swe_rl_env.tasks.loading import tasks_from_rows
from swe_rl_env.tasks.model import SweTask

_SAMPLES = 8
"""Episodes whose text the tokenizer is trained on, beside all replies: every word of those becomes one token."""

_GRPO = {"optim": "sgd", "max_grad_norm": 0.08, "beta": 0.1}
"""What the rollouts of a group write alike cancels in their advantages, and stays as it is. Adam divides by the size of
the rest, momentum carries it on: with either the policy forgets in a few updates how to write the command. One broken
command among eight can do the same, late, when failures are rare and count for much: hence the KL term. The norm is
usually half of the bound; one lucky rollout of eight gives three times as much.
"""


class LearningReport(msgspec.Struct, kw_only=True):
    """What was learned.

    ``oracle_reward`` is the mean reward of the recorded episodes; ``heldout`` the curve on held-out instances, the
    first point before any update; ``train`` the mean reward of each update's own episodes. ``logp_diff_max`` is the
    largest difference between trainer and sampler in the first step, nats. ``seconds`` is the wall time of each stage,
    ``cpu_seconds`` what this process and the ones it waited for used, ``peak_memory`` that of this process in bytes.
    ``episodes`` counts real harness runs, ``failed`` those without a reward.
    """

    settings: QuickstartSettings
    oracle_reward: float
    sft_losses: list[float]
    heldout: list[Point]
    train: list[float | None]
    logp_diff_max: float
    logp_diff_mean: float
    episodes: int
    failed: int
    seconds: dict[str, float]
    cpu_seconds: float
    peak_memory: int
    model: str
    curve: str

    @property
    def before(self) -> float:
        """Held-out reward of the warm start."""
        return self.heldout[0].reward

    @property
    def after(self) -> float:
        """Held-out reward after the last update."""
        return self.heldout[-1].reward


def learn(settings: QuickstartSettings, out: Path, tell: Progress) -> LearningReport:
    """Run the demo; ``out`` gets ``model/``, ``learning.json``, ``learning.png`` and the run folders of every stage.

    Blocking, minutes; everything but the weights of other libraries is seeded.

    Args:
        out: a folder that does not exist, or is empty.

    Raises:
        ConfigError: ``out`` is in use, or no episode of the oracle left a row.
        MissingDependency: TRL or matplotlib is not installed.
    """
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty.", fix="Name another folder with --out.")
    out.mkdir(parents=True, exist_ok=True)
    clock, cpu = _Clock(), sum(os.times()[:4])
    tell(f"1/4 recording {settings.traces} episodes of a mediocre agent through {settings.agent}")
    train = _tasks(settings, "train", settings.traces)
    model, recorded = _imitated(settings, train, out, tell)
    clock.lap("record")
    tell("2/4 imitating them")
    rows = [row for result in recorded for row in result.rows]
    if not rows:
        raise ConfigError(f"no recorded episode left a row: {recorded[0].error or recorded[0].status}.")
    taught = partial(
        fine_tune, model, out_dir=out / "sft", learning_rate=settings.sft_learning_rate, seed=settings.seed
    )
    lessons = reading_lessons(model, train[0], rows[0].prompt_ids, settings.lessons, settings.seed)
    taught(list(lessons), epochs=1.0, batch=8)
    losses = taught(sft_token_lines(rows), epochs=settings.sft_epochs, batch=8)
    clock.lap("imitate")
    tell(f"3/4 {settings.steps} GRPO steps, {settings.tasks_per_step} x {settings.group} episodes each")
    heldout, trained, episodes = _reinforced(settings, model, train, out, tell)
    clock.lap("learn")
    imitated, learned = point(0, recorded), point(settings.steps, episodes)
    report = LearningReport(
        settings=settings,
        oracle_reward=imitated.reward,
        sft_losses=losses,
        heldout=heldout,
        train=[entry.get("reward") for entry in trained.history],
        logp_diff_max=trained.logp_diff_max,
        logp_diff_mean=trained.logp_diff_mean,
        episodes=len(recorded) + len(episodes),
        failed=imitated.failed + learned.failed,
        seconds=clock.laps,
        cpu_seconds=round(sum(os.times()[:4]) - cpu, 1),
        peak_memory=peak_memory(),
        model=str(out / "model"),
        curve=str(out / "learning.png"),
    )
    tell("4/4 drawing the curve")
    (out / "learning.json").write_text(json.dumps(msgspec.to_builtins(report), indent=1) + "\n", encoding="utf-8")
    draw_curves([read_curve(out / "learning.json")], out / "learning.png")
    return report


def _tasks(settings: QuickstartSettings, split: Split, count: int) -> tuple[SweTask, ...]:
    rows = operator_rows(count, split=split, seed=settings.seed)
    return tasks_from_rows([(row["instance_id"], row) for row in rows]).tasks


def _config(settings: QuickstartSettings, tasks: Sequence[SweTask], **changes: Any) -> RolloutConfig:
    config: dict[str, Any] = {
        "tasks": tuple(task.instance_id for task in tasks),
        "agents": (settings.agent,),
        "variant": settings.variant,
        "concurrency": settings.concurrency,
        "max_turns": 4,
        "max_tokens": 96,
        "deadline_s": 120.0,
        "seed": settings.seed,
        "threads": 1,
    }
    return RolloutConfig(**{**config, **changes})


def _imitated(
    settings: QuickstartSettings, tasks: Sequence[SweTask], out: Path, tell: Progress
) -> tuple[ModelDir, list[RolloutResult]]:
    """The policy before any training, and the oracle's episodes in its tokens."""
    stand_in = build_tiny_model(out / "stand-in", context=4096)
    oracle = partial(MediocreOracle, settings.right, settings.seed)
    # The stand-in spells words out, so that a reply takes several times as many tokens as the policy's.
    config = _config(settings, tasks[:_SAMPLES], max_tokens=512)
    sampled = asyncio.run(record(config, stand_in, oracle(), tasks, RunDir.create(out / "record-sample"), tell))
    tokenizer = Tokenizer.from_file(stand_in.tokenizer_path)
    texts = [tokenizer.decode([*row.prompt_ids, *row.response_ids]) for result in sampled for row in result.rows]
    if not texts:
        raise ConfigError(f"no episode left a row: {sampled[0].error or sampled[0].status}.")
    texts += [first_reply(word, operator) for word in OPERATOR_OF for operator in WORDS]
    model = build_policy(out / "warm-start", texts, seed=settings.seed)
    recorded = asyncio.run(
        record(_config(settings, tasks), model, oracle(), tasks, RunDir.create(out / "record"), tell)
    )
    return model, recorded


def _reinforced(
    settings: QuickstartSettings, model: ModelDir, train: Sequence[SweTask], out: Path, tell: Progress
) -> tuple[list[Point], TrainReport, list[RolloutResult]]:
    """GRPO with held-out episodes in between: the curve, the trainer's report, all episodes."""
    heldout = _tasks(settings, "heldout", settings.heldout)
    config = _config(settings, [*train, *heldout], n=settings.group)
    run = RunDir.create(out / "learn")
    requests = [_request(task, settings) for task in heldout]
    with LiveRollouts(config, model, run, _quiet, [*train, *heldout]) as live:

        def told(at: Point) -> None:
            tell(f"held-out reward after {at.step} updates: {at.reward:.2f} ± {at.stderr:.2f} ({at.episodes} episodes)")

        curve = HeldOut(
            lambda: live.source,
            live.sync,
            requests,
            every=settings.eval_every,
            attempts=settings.attempts,
            on_point=told,
        )
        report = train_live(
            live.make_source,
            [LiveTask(task_id=task.instance_id, agent=settings.agent) for task in train],
            model.path,
            out_dir=out,
            steps=settings.steps,
            num_generations=settings.group,
            tasks_per_step=settings.tasks_per_step,
            micro_batch=settings.group,
            learning_rate=settings.learning_rate,
            sync=live.sync,
            gradient_checkpointing=False,
            save_model=True,
            seed=settings.seed,
            callbacks=[curve],
            alarm=DeltaAlarm(),
            settings=_GRPO,
            progress=_steps_only(tell),
        )
    return curve.points, report, run.results()


def _request(task: SweTask, settings: QuickstartSettings) -> EpisodeRequest:
    seed = zlib.crc32(f"{settings.seed}:{task.instance_id}".encode())
    return EpisodeRequest(task_id=task.instance_id, agent=settings.agent, group=0, seed=seed, prompt="", training=False)


def _quiet(_line: str) -> None:
    """A thousand episodes need no line each; they are in the run folder."""


def _steps_only(tell: Progress) -> Progress:
    return lambda line: tell(line) if line.startswith("step ") else None


class _Clock:
    """Wall time of stages, seconds."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._since = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = round(now - self._since, 1)
        self._since = now
