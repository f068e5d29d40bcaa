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
from drivetrain.trace.sample import HarnessTrace

RowFault = Literal[
    "empty_prompt",
    "empty_response",
    "length_mismatch",
    "bad_token_id",
    "bad_mask",
    "bad_logprob",
    "nonzero_filler",
    "bad_reward",
    "reward_on_failure",
    "forked",
]
ForkMode = Literal["refuse", "rows"]

#: Statuses whose rollout was graded; the others carry reward None (design invariant 8).
GRADED: frozenset[str] = frozenset({"ok", "truncated"})


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
    if not row.prompt_ids:
        raise RowError("empty_prompt", "prompt_ids is empty.", where=where)
    if not row.response_ids:
        raise RowError("empty_response", "response_ids is empty.", where=where, fix="Drop the row or mask the rollout.")
    size = len(row.response_ids)
    if len(row.loss_mask) != size or len(row.response_logprobs) != size:
        raise RowError(
            "length_mismatch",
            f"{size} response ids, {len(row.loss_mask)} mask values, {len(row.response_logprobs)} log-probs.",
            where=where,
        )
    _check_ids(row.prompt_ids, "prompt_ids", where, vocab_size)
    _check_ids(row.response_ids, "response_ids", where, vocab_size)
    for index, (mask, logprob) in enumerate(zip(row.loss_mask, row.response_logprobs, strict=True)):
        _check_slot(index, mask, logprob, where)


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


def _check_ids(ids: Sequence[int], name: str, where: str, vocab_size: int | None) -> None:
    for index, token in enumerate(ids):
        known = isinstance(token, int) and not isinstance(token, bool) and token >= 0
        if not known or (vocab_size is not None and token >= vocab_size):
            limit = "" if vocab_size is None else f" below {vocab_size}"
            raise RowError(
                "bad_token_id",
                f"{name}[{index}] is {token!r}, not a token id{limit}.",
                where=where,
                fix="" if vocab_size is None else "Train the model that sampled these rollouts.",
            )


def _check_slot(index: int, mask: int, logprob: float, where: str) -> None:
    if not isinstance(mask, int) or mask not in (0, 1):
        raise RowError("bad_mask", f"loss_mask[{index}] is {mask!r}, not 0 or 1.", where=where)
    if not _is_number(logprob):
        raise RowError("bad_logprob", f"response_logprobs[{index}] is {logprob!r}, not a number.", where=where)
    if mask and not (math.isfinite(logprob) and logprob <= 0.0):
        raise RowError(
            "bad_logprob",
            f"response_logprobs[{index}] is {logprob!r} at mask 1, not a finite log-prob <= 0.",
            where=where,
        )
    if not mask and logprob != 0.0:
        raise RowError(
            "nonzero_filler", f"response_logprobs[{index}] is {logprob!r} at mask 0, where 0.0 belongs.", where=where
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
