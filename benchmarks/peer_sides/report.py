"""What was measured, condensed: a table, ratios, a plot, and the comparison with the committed baseline."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from benchmarks.peer_sides.load import CallCost

TOLERANCE = 0.25
"""A ratio may be this much worse than the baseline's before the comparison fails."""


class SideResult(msgspec.Struct):
    """One side. ``memory`` is (tokens of all conversations so far, resident bytes) after each conversation."""

    side: str
    short: list[list[CallCost]]
    long: list[list[CallCost]]
    memory: list[tuple[int, int]]

    def mean_cpu(self) -> float:
        """Milliseconds of CPU per call, averaged over the 50-turn conversations."""
        return statistics.mean(call.cpu_ms for calls in self.short for call in calls)

    def last_cpu(self) -> float:
        """Milliseconds of CPU per call in the last five turns of the short conversations."""
        return statistics.mean(call.cpu_ms for calls in self.short for call in calls[-5:])

    def near(self, turn: int) -> float:
        """Milliseconds of CPU per call around a turn of the long conversations (five turns on each side)."""
        window = [call.cpu_ms for calls in self.long for call in calls if abs(call.turn - turn) <= 5]
        return statistics.mean(window)

    def wall(self) -> tuple[float, float]:
        """Median and 99th percentile of milliseconds until the reply, short conversations."""
        ordered = sorted(call.wall_ms for calls in self.short for call in calls)
        return statistics.median(ordered), ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))]

    def bytes_per_token(self) -> float | None:
        """Slope of resident memory over the tokens of the conversations kept; None with too few of them."""
        seen = self.memory[1:]
        if len(seen) < 3:
            return None
        slope, _ = statistics.linear_regression([tokens for tokens, _ in seen], [size for _, size in seen])
        return slope


class Results(msgspec.Struct):
    """A whole run. ``floor`` is milliseconds of CPU to read and parse a body, for some turns."""

    cpus: int
    others: float
    seconds: float
    versions: dict[str, str]
    floor: dict[int, float]
    sides: list[SideResult]

    def side(self, name: str) -> SideResult | None:
        """One side's results; None when it did not run."""
        return next((side for side in self.sides if side.side == name), None)


def growth(results: Results, side: SideResult) -> tuple[float, float] | None:
    """Cost at the last turn of the long conversations over that at turn 10: as it is, and without reading the body."""
    if not side.long:
        return None
    last = side.long[0][-1].turn
    late, early = side.near(last), side.near(10)
    floor = results.floor
    return late / early, (late - floor[last]) / (early - floor[10])


def ratios(results: Results) -> dict[str, float]:
    """The figures that are compared with the baseline; larger is better for ``than_*``, smaller for the others."""
    ours = results.side("drivetrain")
    if ours is None:
        return {}
    found = {
        f"than_{side.side}": round(side.mean_cpu() / ours.mean_cpu(), 2) for side in results.sides if side is not ours
    }
    if (grown := growth(results, ours)) is not None:
        found["growth"] = round(grown[1], 2)
    if (size := ours.bytes_per_token()) is not None:
        found["bytes_per_token"] = round(size, 1)
    return found


def table(results: Results) -> str:
    """For people."""
    ours = results.side("drivetrain")
    head = f"{'CPU ms per call':<16}{'mean':>8}{'last 5':>8}{'ours x':>8}{'turn 10':>9}{'turn 200':>9}{'growth':>8}"
    lines = [f"{head}{'less body':>10}{'B/token':>9}{'p50 ms':>8}{'p99 ms':>8}"]
    for side in results.sides:
        times = side.mean_cpu() / ours.mean_cpu() if ours else float("nan")
        cells = f"{side.side:<16}{side.mean_cpu():>8.2f}{side.last_cpu():>8.2f}{times:>8.2f}"
        grown = growth(results, side)
        if grown is None:
            cells += f"{'':>36}"
        else:
            last = side.long[0][-1].turn
            cells += f"{side.near(10):>9.2f}{side.near(last):>9.2f}{grown[0]:>8.2f}{grown[1]:>10.2f}"
        size = side.bytes_per_token()
        cells += f"{'' if size is None else format(size, '.1f'):>9}{side.wall()[0]:>8.1f}{side.wall()[1]:>8.1f}"
        lines.append(cells)
    floors = ", ".join(f"turn {turn}: {cost:.2f}" for turn, cost in sorted(results.floor.items()))
    lines.append(f"to read and parse a body alone: {floors} ms")
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    lines.append(
        f"{versions}; {results.seconds:.0f} s on {results.cpus} CPUs, others used {results.others:.0%} of them"
    )
    return "\n".join(lines)


def regressions(found: dict[str, float], baseline: dict[str, float]) -> list[str]:
    """What is more than :data:`TOLERANCE` worse than the baseline, in words; a ratio that is missing is not."""
    said = []
    for name, before in baseline.items():
        now = found.get(name)
        if now is None:
            continue
        if name.startswith("than_"):
            if now < before * (1 - TOLERANCE):
                said.append(f"{name.removeprefix('than_')} cost {now:g} times as much as drivetrain; it was {before:g}")
        elif now > before * (1 + TOLERANCE):
            said.append(f"{name} is {now:g}; it was {before:g}")
    return said


def plot(results: Results, path: Path) -> None:
    """CPU per call over the turns of the longest conversations, one line a side; needs matplotlib.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    import matplotlib as mpl

    mpl.use("svg" if path.suffix == ".svg" else "agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for side in results.sides:
        runs = side.long or side.short
        turns = [call.turn for call in runs[0]]
        means = [statistics.mean(calls[place].cpu_ms for calls in runs) for place in range(len(turns))]
        axes.plot(turns, _smooth(means), label=side.side)
    axes.set_xlabel("turn")
    axes.set_ylabel("server CPU per call, ms")
    axes.set_ylim(bottom=0)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _smooth(values: Sequence[float], width: int = 5) -> list[float]:
    half = width // 2
    return [statistics.median(values[max(0, place - half) : place + half + 1]) for place in range(len(values))]


def as_json(results: Results) -> bytes:
    """Everything, with the ratios."""
    whole: dict[str, Any] = {"ratios": ratios(results), **msgspec.to_builtins(results, str_keys=True)}
    return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"
