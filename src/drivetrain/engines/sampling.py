"""Sample one token of one row, in fp32, with the request's own generator."""

from __future__ import annotations

import secrets
from typing import Any

import torch

from drivetrain.engines.protocol import EngineError


def generator(seed: int | None) -> Any:
    """A CPU generator for one request; ``None`` draws a fresh seed."""
    return torch.Generator().manual_seed((secrets.randbits(63) if seed is None else seed) % 2**63)


def sample(logits: Any, temperature: float, random: Any) -> tuple[int, float]:
    """Draw an id from ``softmax(logits / temperature)`` and say its log-prob; ``logits`` is ``[vocab]``.

    Inverse CDF with one uniform per token: which id is drawn depends on the seed, the step and the distribution only,
    and a perturbation of 1e-6 changes it with a probability of that order.

    Raises:
        EngineError: the model produced no distribution (NaN or infinity).
    """
    logprobs = torch.log_softmax(logits.float().cpu() / temperature, dim=-1)
    cdf = logprobs.double().exp().cumsum(0)
    point = torch.rand((), generator=random, dtype=torch.float64) * cdf[-1]
    token = min(int(torch.searchsorted(cdf, point, right=True)), len(cdf) - 1)
    logprob = min(float(logprobs[token]), 0.0)
    if not logprob > float("-inf"):
        raise EngineError(
            "the model's logits are not finite.",
            fix="Check the last weight update: did training diverge?",
            retryable=False,
        )
    return token, logprob
