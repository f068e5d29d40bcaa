"""Effective sampling of a call: what the policy pins, beside what the harness asked for."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import msgspec

from drivetrain.engines.protocol import Sampling
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.messages import Call


class Effective(msgspec.Struct, frozen=True):
    """``sampling`` goes to the engine, ``record`` into the trace; ``notes`` say why the turn cannot be trained."""

    sampling: Sampling
    record: dict[str, Any]
    notes: tuple[str, ...] = ()


def effective_sampling(
    call: Call, policy: SessionPolicy, *, max_tokens: int, stop_ids: tuple[int, ...], identity: str
) -> Effective:
    """Pin the full distribution (design section 4, "Generate").

    Args:
        call: what the harness asked for.
        policy: what the session allows.
        max_tokens: reserved for this turn.
        stop_ids: the model's stop tokens.
        identity: of the turn; with the policy's seed it gives the turn's.
    """
    del call
    seed = secrets.randbits(62) if policy.seed is None else _derive_seed(policy.seed, identity)
    sampling = Sampling(max_tokens=max_tokens, temperature=policy.temperature, seed=seed, stop_token_ids=stop_ids)
    return Effective(sampling, msgspec.structs.asdict(sampling) | {"top_p": 1.0, "top_k": 0, "min_p": 0.0})


def _derive_seed(seed: int, identity: str) -> int:
    text = f"{seed}:{identity}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 2
