"""Effective sampling of a call: what the policy's rules make of what the harness asked for."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from drivetrain.engines.protocol import Sampling
from drivetrain.gateway.knobs import ALWAYS_HONOURED, DISTRIBUTION, KNOBS, KnobName
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.refusal import Refusal
from drivetrain.messages import Call, RequestedSampling
from drivetrain.trace.sample import EVAL_SESSION, SAMPLING_NOT_PINNED

GREEDY_TEMPERATURE = 0.01
"""What an honoured temperature of 0 becomes: log-probs of a distribution without full support mean nothing."""

_PINNED: Mapping[KnobName, Any] = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "n": 1,
}
"""The full distribution, one sample (design section 4, "Generate")."""

_FREE = frozenset({"auto", "none", "mode_unspecified"})


class Effective(msgspec.Struct, frozen=True):
    """``sampling`` goes to the engine, ``record`` into the trace; ``notes`` say why the turn cannot be trained.

    ``record`` holds the values that were used and, under ``rules``, the rule of each knob that the harness set.
    """

    sampling: Sampling
    record: dict[str, Any]
    notes: tuple[str, ...] = ()


def asked_knobs(requested: RequestedSampling) -> dict[KnobName, Any]:
    """The knobs that a harness set, by name. Dialects leave in ``extra`` what is not one of the common five."""
    asked: dict[KnobName, Any] = {}
    for knob in KNOBS:
        value = getattr(requested, knob, None) if knob in requested.__struct_fields__ else requested.extra.get(knob)
        if value is not None and value != () and value != {} and value is not False:
            asked[knob] = value
    return asked


def refuse_untrainable(
    requested: RequestedSampling, policy: SessionPolicy, supported: frozenset[str] = frozenset()
) -> None:
    """Refuse a call that asks for what the session's rules do not allow.

    Args:
        requested: what the harness asked for.
        policy: whose rules hold.
        supported: knobs that the engine can honour; a session that was opened under another engine may ask for more.

    Raises:
        Refusal: ``unsupported`` with the knob as ``param``, or ``invalid_request`` for a value that makes no sense.
    """
    for knob, value in asked_knobs(requested).items():
        rule = policy.rule(knob)
        if rule == "refuse" and not _is_pinned(knob, value, policy):
            raise Refusal(
                "unsupported",
                f"{knob} is not supported by this session: it would change the distribution that is trained.",
                fix=f"Leave {knob} out.",
                param=knob,
            )
        if rule == "honour" and knob not in ALWAYS_HONOURED | supported:
            raise Refusal("unsupported", f"the engine cannot honour {knob}.", fix=f"Leave {knob} out.", param=knob)
        if rule == "honour" and knob == "temperature" and not (math.isfinite(value) and 0 <= value <= 2):
            raise Refusal("invalid_request", f"temperature is {value}; it must be in 0 to 2.", param=knob)


def wanted_tokens(requested: RequestedSampling, policy: SessionPolicy) -> int:
    """Tokens a call may sample at most, before budgets and context."""
    if requested.max_tokens is None or policy.rule("max_tokens") == "override":
        return policy.max_tokens_per_turn
    return min(requested.max_tokens, policy.max_tokens_per_turn)


def effective_sampling(
    call: Call, policy: SessionPolicy, *, max_tokens: int, stop_ids: tuple[int, ...], identity: str
) -> Effective:
    """Pin the full distribution, except for what the session honours (design section 4, "Generate").

    Args:
        call: what the harness asked for, after :func:`refuse_untrainable`.
        policy: what the session allows.
        max_tokens: reserved for this turn.
        stop_ids: the model's stop tokens.
        identity: of the turn; with the policy's seed it gives the turn's.
    """
    asked = asked_knobs(call.requested)
    honoured = {knob: value for knob, value in asked.items() if policy.rule(knob) == "honour"}
    off = any(knob in DISTRIBUTION and not _is_pinned(knob, value, policy) for knob, value in honoured.items())
    temperature = policy.temperature
    if "temperature" in honoured:
        temperature = max(float(honoured.pop("temperature")), GREEDY_TEMPERATURE)
    seed = honoured.pop("seed", None)
    if seed is None:
        seed = secrets.randbits(62) if policy.seed is None else _derive_seed(policy.seed, identity)
    sampling = Sampling(
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed % 2**62,
        stop_token_ids=stop_ids,
        extra={str(knob): value for knob, value in honoured.items()},
    )
    record = {name: _PINNED[name] for name in ("top_p", "top_k", "min_p")} | msgspec.structs.asdict(sampling)
    record |= record.pop("extra")
    record["stop_token_ids"] = list(stop_ids)  # as it comes back from the journal
    record["rules"] = {knob: policy.rule(knob) for knob in asked}
    notes = (EVAL_SESSION,) if policy.purpose == "eval" else ()
    return Effective(sampling, record, (*notes, SAMPLING_NOT_PINNED) if off else notes)


def _is_pinned(knob: KnobName, value: Any, policy: SessionPolicy) -> bool:
    """Whether a knob's value asks for nothing but what the session does anyway."""
    if knob == "temperature":
        return bool(value == policy.temperature)
    if knob == "max_tokens":
        return bool(value <= policy.max_tokens_per_turn)
    if knob == "top_k":
        return value in (0, -1)
    if knob == "response_format":
        return isinstance(value, dict) and value.get("type") == "text"
    if knob == "tool_choice":
        return not _forces_tool(value)
    return knob in _PINNED and bool(value == _PINNED[knob])


def _forces_tool(choice: Any) -> bool:
    """Whether a tool choice, in the spelling of any dialect, takes the choice from the model.

    A call that is forced, or a list of allowed tools, needs constrained decoding.
    """
    kind = choice.get("mode") or choice.get("type") if isinstance(choice, Mapping) else choice
    return str(kind).lower() not in _FREE


def _derive_seed(seed: int, identity: str) -> int:
    text = f"{seed}:{identity}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 2
