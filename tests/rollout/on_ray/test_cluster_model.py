"""``benchmarks/cluster_model.py``: the simulation agrees with what can be computed, and the script runs here."""

from __future__ import annotations

import sys

import msgspec
import pytest
from benchmarks import cluster_model
from benchmarks.cluster_model import Size, Times, carried, rate_bound, simulate

TIMES = Times(boot=1.0, call=0.02, think=2.0, tool=0.1, grade=2.0, ship=0.01, turns=5)
SIZE = Size(nodes=8, cores=16, slots=8, engine_slots=1000)


def test_without_waiting_the_rate_is_that_of_the_slots() -> None:
    found = simulate(SIZE, TIMES, 0)
    assert TIMES.node == pytest.approx(3.6) and TIMES.alone == pytest.approx(13.61)
    assert found["rollouts_per_s"] == pytest.approx(8 * 8 / 13.61, rel=0.1)
    assert found["engine"] == pytest.approx(found["rollouts_per_s"] * 10 / 1000, rel=0.15)


def test_a_full_engine_bounds_the_rate() -> None:
    found = simulate(msgspec.structs.replace(SIZE, engine_slots=20), TIMES, 0)
    assert found["engine"] > 0.95
    assert found["rollouts_per_s"] == pytest.approx(
        rate_bound(msgspec.structs.replace(SIZE, engine_slots=20), TIMES), rel=0.1
    )


def test_a_full_driver_bounds_the_rate() -> None:
    slow = msgspec.structs.replace(TIMES, ship=1.0)
    found = simulate(SIZE, slow, 0)
    assert found["driver"] > 0.95 and found["rollouts_per_s"] == pytest.approx(1.0, rel=0.15)
    assert carried(SIZE, slow)["driver"] == pytest.approx(slow.alone / 8)


def test_it_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["cluster_model.py", "--quick"])
    assert cluster_model.main() == 0
    said = capsys.readouterr().out
    assert "ms CPU per rollout of 3 turns" in said and "4 nodes" in said
