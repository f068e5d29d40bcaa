"""What makes one training row sound by itself; rows may come from a file, so types are checked too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from drivetrain.trace.findings import RowFinding
from drivetrain.trace.sample import HarnessTrace


def check_row(row: HarnessTrace, where: str = "row", *, vocab_size: int | None = None) -> list[RowFinding]:
    """Check one row: equal lengths, token ids, 0/1 mask, finite log-probs <= 0 at mask 1, exactly 0.0 at mask 0.

    Args:
        row: ``prompt_ids`` has shape (P,), the three response lists have shape (C,).
        where: how findings name the row.
        vocab_size: upper bound (exclusive) of token ids, when the model is known.

    Returns:
        The defects found; only the first of each kind. Lengths that differ end the check.
    """
    if not row.prompt_ids:
        return [RowFinding("empty_prompt", where, "prompt_ids is empty")]
    if not row.response_ids:
        return [RowFinding("empty_response", where, "response_ids is empty")]
    size = len(row.response_ids)
    if len(row.loss_mask) != size or len(row.response_logprobs) != size:
        counts = f"{size} response ids, {len(row.loss_mask)} mask values, {len(row.response_logprobs)} log-probs"
        return [RowFinding("length_mismatch", where, counts)]
    found = [
        *_bad_ids(row.prompt_ids, "prompt_ids", where, vocab_size),
        *_bad_ids(row.response_ids, "response_ids", where, vocab_size),
        *_bad_slots(row, where),
    ]
    return list({finding.code: finding for finding in reversed(found)}.values())[::-1]


def _bad_ids(ids: Sequence[int], name: str, where: str, vocab_size: int | None) -> Iterator[RowFinding]:
    for index, token in enumerate(ids):
        known = isinstance(token, int) and not isinstance(token, bool) and token >= 0
        if not known or (vocab_size is not None and token >= vocab_size):
            limit = "" if vocab_size is None else f" below {vocab_size}"
            yield RowFinding("bad_token_id", where, f"{name}[{index}] is {token!r}, not a token id{limit}")
            return


def _bad_slots(row: HarnessTrace, where: str) -> Iterator[RowFinding]:
    for index, (mask, logprob) in enumerate(zip(row.loss_mask, row.response_logprobs, strict=True)):
        name = f"response_logprobs[{index}] is {logprob!r}"
        if not isinstance(mask, int) or mask not in (0, 1):
            yield RowFinding("bad_mask", where, f"loss_mask[{index}] is {mask!r}, not 0 or 1")
        elif not isinstance(logprob, int | float) or isinstance(logprob, bool):
            yield RowFinding("bad_logprob", where, f"{name}, not a number")
        elif mask and not (math.isfinite(logprob) and logprob <= 0.0):
            yield RowFinding("bad_logprob", where, f"{name} at mask 1, not a finite log-prob <= 0")
        elif not mask and logprob != 0.0:
            yield RowFinding("nonzero_filler", where, f"{name} at mask 0, where 0.0 belongs")
