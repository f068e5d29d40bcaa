"""A :class:`~drivetrain.engines.fingerprint.Fingerprint` of a torch model, for trainers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drivetrain.engines.fingerprint import Fingerprint


def fingerprint_of(model: Any, token_ids: Sequence[int], *, tolerance: float) -> Fingerprint:
    """Score a fixed text with a transformers causal language model as it is now; its mode is left as it was.

    Args:
        token_ids: two or more, the same ones after every update. A rendered prompt of 50 to 500 tokens will do.
        tolerance: see :class:`Fingerprint`.
    """
    import torch

    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            ids = torch.tensor([list(token_ids)], device=model.device)
            logits = model(ids).logits[0, :-1].float()
            told = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]
    finally:
        model.train(training)
    return Fingerprint(
        token_ids=tuple(token_ids), logprobs=tuple(min(0.0, value) for value in told.tolist()), tolerance=tolerance
    )
