"""The vocabulary of findings: stable codes, one sentence each."""

from __future__ import annotations

from typing import Literal

import msgspec

TurnCode = Literal[
    "empty_sample",
    "logprob_count",
    "logprob_not_finite",
    "logprob_positive",
    "token_out_of_range",
    "prompt_length",
    "prompt_mismatch",
]
RowCode = Literal[
    "empty_prompt",
    "empty_response",
    "length_mismatch",
    "bad_token_id",
    "bad_mask",
    "bad_logprob",
    "nonzero_filler",
]
RolloutCode = Literal[
    "row_not_from_stored_ids",
    "mask_on_unsampled_token",
    "logprob_not_as_stored",
    "token_trained_twice",
    "token_not_trained",
]


class Finding(msgspec.Struct, frozen=True):
    """One defect. ``where`` is ``turn N`` or ``row N``."""

    code: TurnCode | RowCode | RolloutCode
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.code} at {self.where}: {self.detail}"


class RowFinding(Finding, frozen=True):
    """A defect of one row by itself."""

    code: RowCode
