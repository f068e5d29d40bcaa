"""Rows for supervised fine-tuning on the very tokens that were sampled: columns ``input_ids`` and ``labels``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from drivetrain.trace.sample import HarnessTrace

IGNORED = -100
"""Label of a position without loss, as transformers and TRL have it."""


def sft_token_lines(rows: Iterable[HarnessTrace]) -> list[dict[str, Any]]:
    """One record per row: ``input_ids`` (prompt and response) and ``labels`` of the same length, the id where
    ``loss_mask`` is 1 and -100 elsewhere. TRL's SFTTrainer takes such a data set as it is, without a template, so
    nothing is tokenised a second time. Forks are exact as in GRPO: what another row trains is context here.
    """
    return [
        {
            "input_ids": [*row.prompt_ids, *row.response_ids],
            "labels": [IGNORED] * len(row.prompt_ids)
            + [token if kept else IGNORED for token, kept in zip(row.response_ids, row.loss_mask, strict=True)],
        }
        for row in rows
    ]
