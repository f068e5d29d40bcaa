"""Rows as TRL's ``rollout_func`` wants them: validate strictly, then convert.

TRL 1.16 validates almost nothing of what a ``rollout_func`` returns: short log-probs are padded with 0.0, one row too
few trains on misaligned advantages, a nested list is accepted. All of that is refused here, before TRL sees it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from drivetrain.errors import DrivetrainError
from drivetrain.rollout.result import RolloutResult
from drivetrain.trace import row_check
from drivetrain.trace.findings import RowCode
from drivetrain.trace.sample import HarnessTrace

RowFault = RowCode | Literal["bad_reward", "reward_on_failure", "forked"]
ForkMode = Literal["refuse", "rows"]

#: Statuses whose rollout was graded; the others carry reward None (design invariant 8).
GRADED: frozenset[str] = frozenset({"ok", "truncated"})


_FIXES: dict[RowCode, str] = {
    "empty_response": "Drop the row or mask the rollout.",
    "bad_token_id": "Train the model that sampled these rollouts.",
}


class RowError(DrivetrainError):
    """A row (or its rollout) breaks the contract of design invariants 3, 4 and 8.

    ``code`` is stable and names the fault; ``where`` says which rollout and row.
    """

    def __init__(self, code: RowFault, what: str, *, where: str = "row", fix: str = "") -> None:
        super().__init__(f"{where}: {what} [{code}]", fix=fix)
        self.code: RowFault = code
        self.where = where


class ForkedRollout(RowError):
    """A rollout has several rows, but plain TRL takes exactly one row per rollout (trl issue 4543)."""

    def __init__(self, rollout_id: str, rows: int) -> None:
        super().__init__(
            "forked",
            f"the rollout forked into {rows} rows; TRL's own trainer takes one row per rollout.",
            where=f"rollout {rollout_id}",
            fix="Train it with ForkGRPOTrainer and forks='rows'.",
        )


def check_row(row: HarnessTrace, *, where: str = "row", vocab_size: int | None = None) -> None:
    """Check one row: equal lengths, 0/1 mask, finite log-probs <= 0 at mask 1, exactly 0.0 at mask 0.

    Args:
        row: the row; ``prompt_ids`` has shape (P,), the three response lists have shape (C,).
        where: how errors name the row.
        vocab_size: upper bound (exclusive) of token ids, when the model is known.

    Raises:
        RowError: the first fault found, with its ``code``.
    """
    for finding in row_check.check_row(row, where, vocab_size=vocab_size):
        raise RowError(finding.code, f"{finding.detail}.", where=where, fix=_FIXES.get(finding.code, ""))


def check_result(result: RolloutResult, *, vocab_size: int | None = None) -> None:
    """Check a rollout: its reward agrees with its status, and every row passes :func:`check_row`.

    Raises:
        RowError: with code ``bad_reward``, ``reward_on_failure`` or a row's code.
    """
    where = f"rollout {result.rollout_id}"
    if result.reward is not None:
        if not _is_number(result.reward) or not math.isfinite(result.reward):
            raise RowError("bad_reward", f"the reward is {result.reward!r}, not a finite number.", where=where)
        if result.status not in GRADED:
            raise RowError(
                "reward_on_failure",
                f"status {result.status} carries reward {result.reward}; an ungraded rollout has none.",
                where=where,
            )
    for index, row in enumerate(result.rows):
        check_row(row, where=f"{where} row {index}", vocab_size=vocab_size)


def is_trainable(result: RolloutResult) -> bool:
    """Whether a rollout takes part in its group's baseline: graded, and with something to train."""
    return result.status in GRADED and result.reward is not None and bool(result.rows)


def to_rollout_func_dict(
    results: Sequence[RolloutResult], *, eos_id: int, pad_id: int, forks: ForkMode
) -> dict[str, list[Any]]:
    """Convert N rollouts to the dict TRL 1.16 expects from a ``rollout_func``.

    ``prompt_ids``, ``completion_ids``, ``env_mask`` and ``logprobs`` have one entry per row; every other field has
    one entry per rollout: ``env_reward`` (float or None), ``rollout_id``, ``status``, ``turns``, ``forks`` (rows
    beyond the first) and ``error``. With ``forks="refuse"`` there are exactly N rows in the order of ``results``.
    With ``forks="rows"`` there are N or more, and ``row_rollout`` gives for each row the index of its rollout;
    only ForkGRPOTrainer understands that field.

    A rollout that failed, was not graded or has no row becomes one fully masked row with reward None: TRL leaves it
    out of the baseline and trains nothing on it.

    Raises:
        RowError: a rollout or row breaks the contract.
        ForkedRollout: a rollout has several rows and ``forks`` is ``"refuse"``.
    """
    out: dict[str, list[Any]] = {
        name: [] for name in ("prompt_ids", "completion_ids", "env_mask", "logprobs", "env_reward", "row_rollout")
    }
    for index, result in enumerate(results):
        check_result(result)
        trainable = is_trainable(result)
        rows = result.rows if trainable else [masked_row(eos_id=eos_id, pad_id=pad_id)]
        if len(rows) > 1 and forks == "refuse":
            raise ForkedRollout(result.rollout_id, len(rows))
        for row in rows:
            append_row(out, row)
            out["row_rollout"].append(index)
        out["env_reward"].append(float(result.reward) if trainable and result.reward is not None else None)
    if forks == "refuse":
        del out["row_rollout"]
    out["rollout_id"] = [result.rollout_id for result in results]
    out["status"] = [result.status for result in results]
    out["turns"] = [result.turns for result in results]
    out["forks"] = [max(len(result.rows) - 1, 0) for result in results]
    out["error"] = [result.error for result in results]
    return out


def masked_row(*, eos_id: int, pad_id: int) -> HarnessTrace:
    """The smallest row TRL accepts that trains nothing: prompt ``[pad]``, completion ``[eos]`` with mask 0."""
    return HarnessTrace(prompt_ids=[pad_id], response_ids=[eos_id], loss_mask=[0], response_logprobs=[0.0])


def append_row(out: dict[str, list[Any]], row: HarnessTrace) -> None:
    """Append one row's four lists to the per-row fields of a ``rollout_func`` dict."""
    out["prompt_ids"].append(list(row.prompt_ids))
    out["completion_ids"].append(list(row.response_ids))
    out["env_mask"].append([int(value) for value in row.loss_mask])
    out["logprobs"].append(list(row.response_logprobs))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
