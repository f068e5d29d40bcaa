"""The learning curve as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drivetrain.errors import MissingDependency
from drivetrain.training.quickstart.heldout import Point


def draw_curve(heldout: Sequence[Point], train: Sequence[float | None], oracle: float, path: Path) -> None:
    """Write a PNG: held-out reward with its standard error, the reward of each update's episodes, the oracle's.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency(
            "matplotlib draws the learning curve and is not installed.", fix="Run: pip install 'drivetrain[plot]'."
        ) from error
    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    steps = [at.step for at in heldout]
    axes.errorbar(
        steps,
        [at.reward for at in heldout],
        yerr=[at.stderr for at in heldout],
        marker="o",
        capsize=3,
        label="held-out instances",
    )
    graded = [(step, reward) for step, reward in enumerate(train) if reward is not None]
    axes.plot([step for step, _ in graded], [reward for _, reward in graded], alpha=0.4, label="training episodes")
    axes.axhline(oracle, color="grey", linestyle=":", label="the recorded agent")
    axes.set(xlabel="GRPO updates", ylabel="mean reward (hidden tests pass)", ylim=(-0.02, 1.02))
    axes.legend(loc="lower right")
    figure.savefig(path)
