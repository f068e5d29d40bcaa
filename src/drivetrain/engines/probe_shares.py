"""A top-p that acts whatever requests say, seen without a flat distribution: tokens made equally likely by a bias."""

from __future__ import annotations

import asyncio
import math
import statistics
from typing import Literal

from drivetrain.engines.probe_sampler import DRAWS, NoEvidence, Sampler

_TOKENS = 64
_ENOUGH = 16
_LIFT = 30.0  # logits above the likeliest token seen: the rest of the vocabulary has no share left
_MOST = 100.0  # vLLM clips a bias there
_SHARE_NATS = 0.04  # bf16 log-probs are off by as much, each way; three of 64 tokens cut off give 0.05


async def equal_shares(sampler: Sampler, heat: float) -> tuple[Literal["passed", "failed"], str]:
    """Of tokens with equal shares a top-p cuts some off, and the others are told larger shares.

    Which bias makes them equal follows from their log-probs, which must be of the softened distribution (check
    ``temperature``). A top-p of 0.9 is seen, one above 0.95 is not, nor is a top-k: it hides tokens from the first look
    as well.

    Raises:
        NoEvidence: too few tokens were seen at this temperature, or a bias does not act.
    """
    seen = (await sampler.pool(heat, draws=_TOKENS)).logprobs
    best = max(seen.values())
    lifts = {token: _LIFT + heat * (best - logprob) for token, logprob in seen.items()}
    bias = {str(token): lift for token, lift in lifts.items() if lift <= _MOST}
    if len(bias) < _ENOUGH:
        raise NoEvidence(f"only {len(bias)} tokens were seen at T={heat:g}; a filter may hide the rest.")
    asked = [
        sampler.sample(max_tokens=1, seed=seed, temperature=heat, extra={"logit_bias": bias}) for seed in range(DRAWS)
    ]
    told = []
    for done in await asyncio.gather(*asked):
        if len(done.token_ids) != 1 or str(done.token_ids[0]) not in bias or len(done.logprobs) != 1:
            raise NoEvidence("a bias on tokens does not act.")
        told.append(done.logprobs[0])
    level, equal = statistics.fmean(told), -math.log(len(bias))
    if level < equal - 3 * _SHARE_NATS:
        raise NoEvidence("log-probs do not tell of a bias on tokens.")
    if level > equal + _SHARE_NATS:
        return (
            "failed",
            f"of {len(bias)} tokens made equally likely about {math.exp(-level):.0f} can be sampled: a top-p is "
            "active, whatever requests say.",
        )
    return "passed", f"filters act as each request says, and {len(bias)} tokens made equally likely have equal shares."
