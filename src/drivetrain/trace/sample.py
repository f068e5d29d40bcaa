"""Rows: what a trainer eats (design section 4, "Rows")."""

from __future__ import annotations

from typing import Any

import msgspec


class HarnessTrace(msgspec.Struct, kw_only=True):
    """One training row: one chain of a rollout's turn graph that has something to train.

    ``response_ids``, ``loss_mask`` and ``response_logprobs`` have equal length. ``loss_mask[i]`` is 1 exactly where
    ``response_ids[i]`` was sampled by the policy *and* is trained in this row; environment and template tokens and
    sampled tokens that another row of the rollout trains are 0. ``response_logprobs[i]`` is the sampler's log-prob of
    the full post-temperature distribution where the mask is 1 and exactly 0.0 elsewhere. ``reward`` is None when the
    rollout is ungraded (never 0.0 for an infrastructure failure). ``metadata`` holds ``session_id``, ``chain``
    (index of the row in its rollout, parents first), ``turns`` (turn ids), ``policy_versions`` and ``masked``
    (reason -> number of sampled tokens left out).
    """

    prompt_ids: list[int]
    response_ids: list[int]
    loss_mask: list[int]
    response_logprobs: list[float]
    reward: float | None = None
    metadata: dict[str, Any] = {}
