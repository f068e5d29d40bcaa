"""Weights move while the gateway's fence is closed; tokens of weights that are too old are withheld."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.gateway.fence_threads import ThreadFence
from drivetrain.gateway.fence_types import OnDeadline, PauseMode
from drivetrain.rollout.result import RolloutResult
from drivetrain.trace.sample import HarnessTrace

STALE = "stale_policy"
"""Reason under which withheld tokens are counted in a row's ``masked``."""


def fenced_sync(
    fence: ThreadFence,
    publish: Callable[[int], None],
    *,
    mode: PauseMode = "drain",
    deadline_s: float = 60.0,
    on_deadline: OnDeadline = "error",
) -> Callable[[int], None]:
    """A ``sync`` for :func:`~drivetrain.training.grpo.attach_engine` and ``train_live``: close the gate, move the
    weights with ``publish(step)``, open it with policy version ``step``.

    Raises (from the returned function):
        FenceTimeout, FenceBusy: see :meth:`drivetrain.gateway.fence.Fence.pause`; the weights were not moved.
        Anything ``publish`` raises: the gate then stays closed, because nobody knows what the weights are.
    """

    def sync(step: int) -> None:
        with fence.paused(mode, deadline_s=deadline_s, on_deadline=on_deadline) as update:
            publish(step)
            update.version = step

    return sync


def withhold_stale(result: RolloutResult, policy_version: int, max_lag: int) -> RolloutResult:
    """Take the tokens that were sampled more than ``max_lag`` versions ago out of the loss, and nothing else.

    The rollout keeps its reward and its place in the group's baseline: its score says how hard the task is, whoever
    sampled it (case row E5). What was withheld is counted in the row's ``masked`` as ``stale_policy``. A token whose
    version is only known to lie in a span is as old as the span's start.

    Args:
        result: its rows' metadata hold ``policy_spans``.
        policy_version: of the weights that are about to be trained.
        max_lag: versions; 0 = on-policy tokens only.

    Raises:
        ConfigError: a negative lag.
    """
    if max_lag < 0:
        raise ConfigError(f"max_policy_lag is {max_lag}.", fix="Give 0 for on-policy tokens only, or more.")
    oldest = policy_version - max_lag
    rows = [_withhold(row, oldest) for row in result.rows]
    return msgspec.structs.replace(result, rows=rows)


def _withhold(row: HarnessTrace, oldest: int) -> HarnessTrace:
    stale = [(start, stop) for start, stop, version, _ in row.metadata.get("policy_spans", ()) if version < oldest]
    mask, logprobs = list(row.loss_mask), list(row.response_logprobs)
    for start, stop in stale:
        here = slice(start, min(stop, len(mask)))
        width = len(mask[here])
        mask[here] = [0] * width
        logprobs[here] = [0.0] * width
    withheld = sum(row.loss_mask) - sum(mask)
    if not withheld:
        return row
    masked = dict(row.metadata.get("masked", {}))
    masked[STALE] = masked.get(STALE, 0) + withheld
    metadata = {**row.metadata, "masked": masked}
    return msgspec.structs.replace(row, loss_mask=mask, response_logprobs=logprobs, metadata=metadata)
