"""An agent that ended badly: what it left is graded, and how it ended stays with the result."""

from __future__ import annotations

import pytest

from drivetrain.rollout.config import EpisodeSpec
from drivetrain.rollout.episode import _Draft
from drivetrain.rollout.selection import Selection
from swe_rl_agent.harness import HarnessOutcome
from swe_rl_env import Grade
from swe_rl_env.work.findings import Finding


@pytest.mark.case("G10", "G9")
@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_the_state_is_graded_and_the_exit_carried(reward: float) -> None:
    draft = _Draft(EpisodeSpec(rollout_id="r", task_id="t", agent="pi", group=0))
    draft.harness(
        HarnessOutcome(
            stop="format_error", word="gave up", detail="x", exit_code=3, duration_s=1.0, stdout_tail=b"",
            stderr_tail=b"", files={}, config_sha256="0", versions={},
        )
    )  # fmt: skip
    outcome = "resolved" if reward else "unresolved"
    finding = Finding(kind="test_edit", path="tests/test_a.py")
    grade = Grade(instance_id="t", outcome=outcome, reward=reward, reason="resolved", findings=(finding,))  # type: ignore[arg-type]
    draft.grade(grade)
    result = draft.finish(Selection())
    assert (result.reward, result.harness["exit_code"], result.harness["stop"]) == (reward, 3, "format_error")
    assert list(result.grade["findings"]) == [{"kind": "test_edit", "path": "tests/test_a.py", "detail": ""}]
