"""A running gateway, its engine and more than fifty agents, and everything that can go wrong: nothing lost, nothing
duplicated (issue "Nothing lost, no one in", item 2).

``make chaos SECONDS=600`` is the long form. ``DRIVETRAIN_CHAOS_SECONDS`` and ``DRIVETRAIN_CHAOS_SEED`` change this one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.engines.models import ModelDir
from tests.chaos.stack.plan import Plan
from tests.chaos.stack.run import run
from tests.chaos.stack.schedule import KINDS, draw


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a Unix socket is in it. Kept when the test fails."""
    made = Path(tempfile.mkdtemp(prefix="dt-chaos-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize("seconds", [10, 60, 600])
def test_a_schedule_is_drawn_from_its_seed(seconds: float) -> None:
    faults = draw(7, seconds)
    assert faults == draw(7, seconds)
    assert faults != draw(8, seconds)
    assert {fault.kind for fault in faults} == set(KINDS)
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
    assert all(0 <= fault.at < seconds for fault in faults)


@pytest.mark.real
@pytest.mark.timeout(1500)
def test_nothing_is_lost_or_duplicated(folder: Path, tiny_model: ModelDir, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = float(os.environ.get("DRIVETRAIN_CHAOS_SECONDS", "45"))
    seed = int(os.environ.get("DRIVETRAIN_CHAOS_SEED", "10"))
    outcome = asyncio.run(run(Plan(folder=folder, seed=seed, seconds=seconds, model=tiny_model.path)))
    with capsys.disabled():
        print("", f"chaos, seed {seed}:", *outcome.summary(), sep="\n  ")
    assert [str(finding) for finding in outcome.report.findings] == []
    assert set(outcome.faults) == set(KINDS)
    counts = outcome.report.counts
    assert counts["agents"] >= 52
    assert counts["seen"] >= 100
    assert counts["trained"] >= 0.8 * counts["seen"]
