# ruff: noqa: E402
"""Two ranks with different numbers of forks give the same gradient as one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from drivetrain.rollout.result import RolloutResult

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from drivetrain.training.grpo import BatchSummary


@pytest.mark.real
def test_two_ranks_match_one(
    make_group: Callable[..., list[RolloutResult]],
    model_dir: Path,
    tmp_path: Path,
    gradient_by_hand: Callable[..., dict],
) -> None:
    results = make_group([1.0, 0.0, 0.3, 0.0], rows=(2, 1, 3, 1))  # rank 0 holds 3 rows, rank 1 holds 4
    rollouts = tmp_path / "rollouts.json"
    rollouts.write_bytes(msgspec.json.encode(results))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    script = str(Path(__file__).with_name("two_ranks.py"))
    done = subprocess.run(
        [*command, script, str(model_dir), str(rollouts), str(tmp_path)], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr[-3000:]
    got = torch.load(tmp_path / "gradient.pt")
    want = gradient_by_hand(results, model_dir)
    assert got.keys() == want.keys()
    assert max(float((got[name] - want[name]).abs().max()) for name in want) < 1e-6
    batches = [msgspec.json.decode((tmp_path / f"rank{rank}.json").read_bytes(), type=BatchSummary) for rank in (0, 1)]
    assert [batch.rows for batch in batches] == [3, 4]
    assert [len(batch.row_rollout) for batch in batches] == [4, 4]
