"""pass@k and how sure it is.

Both are means over tasks, and tasks are what an evaluation draws from: the interval says how the number would move
with another sample of tasks of this kind, not with other seeds on the same tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

Method = Literal["wilson", "bootstrap"]
_RESAMPLES = 10_000
_CHUNK = 500
_Z95 = 1.959963984540054


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A share between 0 and 1 with a 95 % interval; ``tasks`` is how many it is the mean of."""

    value: float
    low: float
    high: float
    method: Method
    tasks: int


def pass_at_k(attempts: int, resolved: int, k: int) -> float:
    """The chance that at least one of ``k`` attempts resolves a task, unbiased: ``1 - C(n-c, k) / C(n, k)``.

    Args:
        attempts: graded attempts n; at least ``k``.
        resolved: how many of them resolved it, c.

    Raises:
        ValueError: ``k`` is not in 1..n, or c not in 0..n.
    """
    if not 1 <= k <= attempts or not 0 <= resolved <= attempts:
        raise ValueError(f"pass@{k} of {resolved} resolved among {attempts} attempts")
    # The product form: no large binomials.
    failing = 1.0
    for i in range(attempts - resolved + 1, attempts + 1):
        failing *= max(0.0, 1.0 - k / i)
    return 1.0 - failing


def wilson(successes: float, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval for a share."""
    p, z2 = successes / trials, _Z95 * _Z95
    middle = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z95 * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials * trials)) / (1 + z2 / trials)
    # At the ends the formula gives 0 and 1 but for rounding.
    return 0.0 if successes == 0 else middle - half, 1.0 if successes == trials else middle + half


def bootstrap(scores: Sequence[float], *, seed: int = 0, resamples: int = _RESAMPLES) -> tuple[float, float]:
    """The 95 % percentile interval of the mean when tasks are drawn again, with a fixed seed."""
    draw, values = np.random.default_rng(seed), np.asarray(scores, dtype=np.float64)
    means: list[np.ndarray] = []
    for start in range(0, resamples, _CHUNK):  # in parts: thousands of tasks times all resamples would not fit
        count = min(_CHUNK, resamples - start)
        means.append(values[draw.integers(0, len(values), size=(count, len(values)))].mean(axis=1))
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return float(low), float(high)


def estimate(scores: Sequence[float]) -> Estimate | None:
    """Mean and interval of one score per task; None without tasks.

    Scores that are all 0 or 1 (one attempt each, or all alike) are trials: Wilson, which also holds for few tasks and
    for 0 of n, where a bootstrap would claim to be certain. Others: bootstrap over tasks.
    """
    if not scores:
        return None
    value = sum(scores) / len(scores)
    if all(score in (0.0, 1.0) for score in scores):
        low, high = wilson(sum(scores), len(scores))
        return Estimate(value=value, low=low, high=high, method="wilson", tasks=len(scores))
    low, high = bootstrap(scores)
    return Estimate(value=value, low=low, high=high, method="bootstrap", tasks=len(scores))
