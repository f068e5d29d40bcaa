"""The accept / reject matrix of our validation, and the shape of what TRL receives."""

from __future__ import annotations

import math
from typing import Any

import pytest

from drivetrain.errors import DrivetrainError
from drivetrain.rollout.result import RolloutResult
from drivetrain.trace.sample import HarnessTrace
from drivetrain.training.rows import ForkedRollout, RowError, check_result, check_row, to_rollout_func_dict


def row(**changes: Any) -> HarnessTrace:
    fields: dict[str, Any] = {
        "prompt_ids": [1, 2, 3],
        "response_ids": [4, 5, 6],
        "loss_mask": [1, 0, 1],
        "response_logprobs": [-0.5, 0.0, -1.5],
    }
    return HarnessTrace(**{**fields, **changes})


def result(index: int = 0, **changes: Any) -> RolloutResult:
    fields: dict[str, Any] = {
        "rollout_id": f"r{index}",
        "session_id": f"s{index}",
        "task_id": "t",
        "agent": "pi",
        "group": index,
        "status": "ok",
        "reward": 1.0,
        "rows": [row()],
    }
    return RolloutResult(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"prompt_ids": []}, "empty_prompt"),
        ({"response_ids": [], "loss_mask": [], "response_logprobs": []}, "empty_response"),
        ({"loss_mask": [1, 0]}, "length_mismatch"),
        ({"loss_mask": [1, 0, 1, 1]}, "length_mismatch"),
        ({"response_logprobs": [-0.5, 0.0]}, "length_mismatch"),
        ({"response_ids": [4, 5]}, "length_mismatch"),
        ({"prompt_ids": [1, -2]}, "bad_token_id"),
        ({"prompt_ids": [1, True]}, "bad_token_id"),
        ({"response_ids": [4, 5, 6.0]}, "bad_token_id"),
        ({"response_ids": [4, 5, 600]}, "bad_token_id"),
        ({"loss_mask": [1, 0, 2]}, "bad_mask"),
        ({"loss_mask": [1, 0, 0.5]}, "bad_mask"),
        ({"loss_mask": [1, 0, None]}, "bad_mask"),
        ({"response_logprobs": [0.1, 0.0, -1.5]}, "bad_logprob"),
        ({"response_logprobs": [math.nan, 0.0, -1.5]}, "bad_logprob"),
        ({"response_logprobs": [-math.inf, 0.0, -1.5]}, "bad_logprob"),
        ({"response_logprobs": [None, 0.0, -1.5]}, "bad_logprob"),
        ({"response_logprobs": [[-0.5], 0.0, -1.5]}, "bad_logprob"),
        ({"response_logprobs": [-0.5, -0.1, -1.5]}, "nonzero_filler"),
        ({"response_logprobs": [-0.5, math.nan, -1.5]}, "nonzero_filler"),
        ({"response_logprobs": [-0.5, -math.inf, -1.5]}, "nonzero_filler"),
    ],
)
def test_bad_rows_are_refused_with_a_code(changes: dict[str, Any], code: str) -> None:
    with pytest.raises(RowError) as caught:
        check_row(row(**changes), where="rollout r0 row 0", vocab_size=512)
    assert caught.value.code == code
    assert "rollout r0 row 0" in str(caught.value)
    assert isinstance(caught.value, DrivetrainError)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss_mask": [True, False, True]},
        {"loss_mask": [0, 0, 0], "response_logprobs": [0.0, 0.0, 0.0]},
        {"response_logprobs": [0.0, 0.0, -0.0]},
        {"response_logprobs": [-900.0, 0, -1]},
    ],
)
def test_good_rows_pass(changes: dict[str, Any]) -> None:
    check_row(row(**changes), vocab_size=512)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"reward": math.nan}, "bad_reward"),
        ({"reward": math.inf}, "bad_reward"),
        ({"reward": True}, "bad_reward"),
        ({"status": "infra_error", "reward": 0.0}, "reward_on_failure"),
        ({"status": "unscorable", "reward": 1.0}, "reward_on_failure"),
        ({"rows": [row(), row(loss_mask=[1])]}, "length_mismatch"),
    ],
)
def test_bad_rollouts_are_refused(changes: dict[str, Any], code: str) -> None:
    with pytest.raises(RowError) as caught:
        check_result(result(**changes))
    assert caught.value.code == code


def test_one_row_per_rollout_in_order() -> None:
    results = [result(0), result(1, status="truncated", reward=0.0, rows=[row(prompt_ids=[9])]), result(2)]
    out = to_rollout_func_dict(results, eos_id=2, pad_id=0, forks="refuse")
    assert out["prompt_ids"] == [[1, 2, 3], [9], [1, 2, 3]]
    assert out["env_mask"] == [[1, 0, 1]] * 3
    assert out["env_reward"] == [1.0, 0.0, 1.0]
    assert out["rollout_id"] == ["r0", "r1", "r2"]
    assert "row_rollout" not in out
    assert {name: len(values) for name, values in out.items()} == dict.fromkeys(out, 3)
    assert all(isinstance(values, list) for values in out.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "infra_error", "reward": None},
        {"status": "unscorable", "reward": None},
        {"status": "ok", "reward": None},
        {"status": "ok", "reward": 1.0, "rows": []},
    ],
)
def test_what_cannot_be_trained_becomes_a_masked_row(changes: dict[str, Any]) -> None:
    out = to_rollout_func_dict([result(**changes), result(1)], eos_id=2, pad_id=0, forks="refuse")
    assert (out["prompt_ids"][0], out["completion_ids"][0]) == ([0], [2])
    assert (out["env_mask"][0], out["logprobs"][0]) == ([0], [0.0])
    assert out["env_reward"] == [None, 1.0]


def test_forks_are_refused_or_become_rows() -> None:
    results = [result(0, rows=[row(), row(prompt_ids=[7])]), result(1), result(2, rows=[row()] * 3)]
    with pytest.raises(ForkedRollout, match=r"rollout r0.*2 rows.*ForkGRPOTrainer"):
        to_rollout_func_dict(results, eos_id=2, pad_id=0, forks="refuse")
    out = to_rollout_func_dict(results, eos_id=2, pad_id=0, forks="rows")
    assert out["row_rollout"] == [0, 0, 1, 2, 2, 2]
    assert len(out["prompt_ids"]) == len(out["logprobs"]) == len(out["env_mask"]) == 6
    assert out["env_reward"] == [1.0, 1.0, 1.0]
    assert out["forks"] == [1, 0, 2]
