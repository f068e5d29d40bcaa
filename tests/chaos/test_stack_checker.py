"""The checker can fail: every wrong that is done to a recorded run, or by the gateway that records one, is found."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.engines.models import ModelDir
from tests.chaos.stack.checker import check
from tests.chaos.stack.edits import EDITS, Record
from tests.chaos.stack.leaks import leaks
from tests.chaos.stack.plan import Plan
from tests.chaos.stack.run import Outcome, run
from tests.conformance.sandbox.kits.local import LocalKit


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="dt-chaos-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def small(folder: Path, model: ModelDir, **changes: object) -> Plan:
    """A few agents of one SDK, for a few seconds, and no fault but those that are asked for."""
    options: dict[str, object] = {
        "seed": 3,
        "seconds": 1.0,
        "harnesses": 12,
        "groups": 1,
        "boxes": 0,
        "wires": ("chat",),
        "kinds": (),
    }
    options |= {"least_turns": 30, "gives_up": 0.0, "thinks_s": 0.1, "model": model.path, **changes}
    return Plan(folder=folder, **options)  # type: ignore[arg-type]


def record(plan: Plan) -> Outcome:
    return asyncio.run(run(plan))


@pytest.mark.real
@pytest.mark.timeout(1200)
def test_every_wrong_is_found_in_a_recorded_run(folder: Path, tiny_model: ModelDir) -> None:
    plan = small(folder / "good", tiny_model)
    assert [str(finding) for finding in record(plan).report.findings] == []
    missed = []
    for code, edits in EDITS.items():
        for edit in edits:
            copy = folder / edit.__name__
            shutil.copytree(plan.folder, copy, ignore=shutil.ignore_patterns("socket", "model", "sandboxes"))
            edit(Record(copy))
            found = {finding.code for finding in check(copy).findings}
            if code not in found:
                missed.append(f"{edit.__name__}: {found or 'nothing'} instead of {code}")
    assert missed == []


@pytest.mark.real
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("mistake", "code", "changes"),
    [
        ("drop_commit", "lost", {}),
        ("reply_first", "lost", {"kinds": ("gateway_kill",), "seconds": 3.0, "least_turns": 50}),
        (
            "early_delivery",
            "undelivered_trained",
            {"kinds": ("slow_disk",), "seconds": 5.0, "gives_up": 0.5, "relayed_share": 1.0},
        ),
    ],
)
def test_a_gateway_that_makes_a_mistake_is_found(
    folder: Path, tiny_model: ModelDir, mistake: str, code: str, changes: dict[str, object]
) -> None:
    outcome = record(small(folder / "run", tiny_model, mistake=mistake, **changes))
    assert outcome.report.of(code) > 0, outcome.summary()


@pytest.mark.real
def test_what_a_run_leaves_behind_is_found(tmp_path: Path, tiny_model: ModelDir) -> None:
    plan = small(tmp_path, tiny_model)
    assert leaks(plan, LocalKit(), []) == []
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(tmp_path)])
    try:
        (finding,) = leaks(plan, LocalKit(), [], patience_s=0.5)
    finally:
        left.kill()
        left.wait()
    assert (finding.code, finding.what) == ("leaked", f"process {left.pid}")
