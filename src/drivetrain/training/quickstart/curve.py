"""Learning curves as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from drivetrain.errors import ConfigError, MissingDependency
from drivetrain.training.quickstart.heldout import Point


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """What ``learning.json`` says about one run: held-out points, mean reward of each update's episodes (None: none was
    graded), mean reward of the recorded agent."""

    heldout: list[Point]
    train: list[float | None]
    oracle_reward: float


def read_curve(path: Path) -> Curve:
    """The curve in a ``learning.json``.

    Raises:
        ConfigError: it is not one.
    """
    try:
        return msgspec.convert(json.loads(path.read_bytes()), Curve)  # json reads NaN, msgspec does not
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} holds no learning curve: {error}.", fix="Name a learning.json.") from error


def draw_curves(curves: Sequence[Curve], path: Path) -> None:
    """Write a PNG: of each run the held-out reward with its standard error and, faint, the reward of each update's own
    episodes; the recorded agents' mean reward as a line.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency(
            "matplotlib draws the learning curve and is not installed.", fix="Run: pip install 'drivetrain[plot]'."
        ) from error
    figure = Figure(figsize=(7, 4), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    for number, curve in enumerate(curves):
        name = "held-out instances" + (f", run {number}" if len(curves) > 1 else "")
        axes.errorbar(
            [at.step for at in curve.heldout],
            [at.reward for at in curve.heldout],
            yerr=[at.stderr for at in curve.heldout],
            color=f"C{number}",
            marker="o",
            capsize=3,
            label=name,
        )
        graded = [(step, reward) for step, reward in enumerate(curve.train) if reward is not None]
        axes.plot([step for step, _ in graded], [reward for _, reward in graded], color=f"C{number}", alpha=0.3)
    recorded = sum(curve.oracle_reward for curve in curves) / len(curves)
    axes.axhline(recorded, color="grey", linestyle=":", label="the recorded agent")
    axes.set(xlabel="GRPO updates", ylabel="mean reward (hidden tests pass)", ylim=(-0.02, 1.02))
    axes.legend(loc="lower right", title="faint: the updates' own episodes", fontsize="small")
    figure.savefig(path)
