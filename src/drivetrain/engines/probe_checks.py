"""The checks of a probe: each looks at samples and says passed, failed or unknown, with its own message."""

from __future__ import annotations

import asyncio
import enum
import itertools
import math
import statistics
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import msgspec

from drivetrain.engines.probe_sampler import DRAWS, Evidence, NoEvidence, Pool
from drivetrain.engines.probe_shares import equal_shares
from drivetrain.engines.protocol import (
    Completion,
    ContextOverflow,
    EngineError,
    EngineMalformed,
    Sampling,
    honoured_knobs,
)

CheckName = Literal[
    "ids_in",
    "ids_out",
    "counts",
    "values",
    "limit",
    "aligned",
    "temperature",
    "unfiltered",
    "stop_token",
    "policy_version",
    "seeds_differ",
    "seed_repeats",
    "context_length",
    "cancellation",
]
Status = Literal["passed", "failed", "unknown"]
Verdict = tuple[Status, str]

LENGTH = 8
_ALIGNED_NATS = 0.2  # bf16 engines differ from themselves by 0.03 on average (engines.md section 2), a shift by more
_SLOPE = 0.12
_ENOUGH_SLOPES = 5
_FLAT = 1000.0  # at this temperature every model is uniform, whatever its logits
_FLAT_NATS = 0.03  # top_p = 0.97 moves the log-prob of a uniform distribution by as much
_HOT = 2.0
_STRICTEST = {"top_p": 1e-6, "top_k": 1, "min_p": 1.0}
_CERTAIN_NATS = 1e-3
_LIKELY_NATS = 0.35  # a token of probability 0.7 comes 24 times in a row once in 5,000
_MIN_CONTEXT = 256
_CANCEL_TOKENS = 4096
_CANCEL_S = 10.0


class Need(enum.Enum):
    """What training needs of a check: that it passed, that it did not fail, or nothing (it is told)."""

    EVIDENCE = "evidence"
    NO_FAILURE = "no failure"
    TOLD = "told"


class Check(msgspec.Struct, frozen=True):
    """One check. It is not tried when one of ``after`` failed. ``fix`` is told when it did not pass."""

    name: CheckName
    judge: Callable[[Evidence], Awaitable[Verdict]]
    fix: str
    need: Need = Need.EVIDENCE
    after: tuple[CheckName, ...] = ()


async def ids_in(evidence: Evidence) -> Verdict:
    """A prompt of known ids is accepted."""
    prompt = evidence.sampler.prompt
    if not prompt or min(prompt) < 0 or max(prompt) >= evidence.vocab_size:
        return "failed", "the prompt of the codec holds ids outside its own vocabulary."
    try:
        await evidence.sampler.sample(max_tokens=1, seed=1)
    except EngineMalformed:
        pass  # of the answer the next checks tell
    except EngineError as error:
        return "failed", f"a prompt of {len(prompt)} token ids was refused: {error}"
    return "passed", f"a prompt of {len(prompt)} token ids was accepted."


async def ids_out(evidence: Evidence) -> Verdict:
    """Sampled ids come back, and they are ids of this vocabulary."""
    ids = list((await _completion(evidence)).token_ids)
    if not ids:
        return "failed", "no token ids came back."
    odd = [t for t in ids if not isinstance(t, int) or isinstance(t, bool) or not 0 <= t < evidence.vocab_size]
    if odd:
        return "failed", f"{odd[0]!r} came back, which is no id below {evidence.vocab_size}."
    return "passed", f"{len(ids)} ids below {evidence.vocab_size}."


async def counts(evidence: Evidence) -> Verdict:
    """As many log-probs as ids (case rows B1, B6)."""
    done = await _completion(evidence)
    counted = done.reported_tokens
    if len(done.token_ids) != len(done.logprobs):
        return "failed", f"{len(done.token_ids)} ids came with {len(done.logprobs)} log-probs."
    if counted is not None and counted != len(done.token_ids):
        return "failed", f"the engine counted {counted} tokens and returned {len(done.token_ids)} ids."
    return "passed", f"{len(done.token_ids)} ids, as many log-probs" + (", as counted." if counted else ".")


async def values(evidence: Evidence) -> Verdict:
    """Log-probs are finite and not above zero."""
    for position, value in enumerate((await _completion(evidence)).logprobs):
        if not math.isfinite(value) or value > 0:
            return "failed", f"the log-prob at position {position} is {value}."
    return "passed", "all log-probs are finite and <= 0."


async def limit(evidence: Evidence) -> Verdict:
    """``max_tokens`` is kept, and its end is called ``length``."""
    done = await _completion(evidence)
    if len(done.token_ids) > LENGTH:
        return "failed", f"{len(done.token_ids)} tokens came back where {LENGTH} were asked for."
    if len(done.token_ids) < LENGTH and done.finish_reason == "length":
        return "failed", f"{len(done.token_ids)} of {LENGTH} tokens came back, and the end is called length."
    if len(done.token_ids) == LENGTH and done.finish_reason == "abort":
        return "failed", "a complete answer is called aborted."
    return "passed", f"{LENGTH} tokens at most, as asked."


async def aligned(evidence: Evidence) -> Verdict:
    """Each log-prob belongs to its token (case row B2): the same token, sampled alone behind the same prefix."""
    temperature = (await evidence.sampler.comparable()).temperature
    said: list[float] = []
    alone: list[float] = []
    by_shift: dict[int, list[float]] = {-1: [], 1: []}
    for seed in (11, 12):
        done = await evidence.sampler.sample(max_tokens=LENGTH, seed=seed, temperature=temperature)
        for position, token in enumerate(done.token_ids):
            pool = await evidence.sampler.pool(temperature, prefix=done.token_ids[:position], draws=8)
            if token not in pool.logprobs:
                continue
            said.append(done.logprobs[position])
            alone.append(pool.logprobs[token])
            for shift, gaps in by_shift.items():
                if 0 <= position + shift < len(done.logprobs):
                    gaps.append(abs(done.logprobs[position + shift] - alone[-1]))
    if len(said) < LENGTH // 2 or max(alone) - min(alone) < 2 * _ALIGNED_NATS:
        raise NoEvidence(f"{len(said)} tokens could be sampled again behind their prefix; too few, or all alike.")
    gap = statistics.fmean(abs(a - b) for a, b in zip(said, alone, strict=True))
    if gap <= _ALIGNED_NATS:
        return "passed", f"{len(said)} tokens sampled again: log-probs differ by {gap:.1e} on average."
    shifted = [shift for shift, gaps in by_shift.items() if gaps and statistics.fmean(gaps) < gap / 4]
    if shifted:
        where = "before" if shifted[0] < 0 else "behind"
        return "failed", f"log-probs are shifted: each stands one place {where} its token."
    return "failed", f"log-probs are not those of their tokens: sampled again they differ by {gap:.2f} on average."


async def temperature(evidence: Evidence) -> Verdict:
    """Log-probs are of the softened distribution (case row B4): at twice the temperature gaps between tokens halve."""
    heat = (await evidence.sampler.comparable()).temperature
    said = (await evidence.sampler.sample(max_tokens=LENGTH, seed=11, temperature=heat)).token_ids
    slopes: list[float] = []
    for position in range(len(said)):
        base = await evidence.sampler.pool(heat, prefix=said[:position], draws=DRAWS)
        soft = await evidence.sampler.pool(2 * heat, prefix=said[:position], draws=2 * DRAWS)
        slopes += _slopes(base, soft)
        if len(slopes) >= _ENOUGH_SLOPES:
            break
    if not slopes:
        raise NoEvidence("nowhere were two tokens sampled at both of two temperatures.")
    slope = statistics.median(slopes)
    at = f"T={heat:g} and T={2 * heat:g}"
    if abs(slope - 0.5) <= _SLOPE:
        return "passed", f"gaps between log-probs at {at}: ratio {slope:.2f}, as of a softened distribution (0.5)."
    if abs(slope - 1) <= _SLOPE:
        return "failed", f"log-probs are raw: the same tokens have the same log-probs at {at}."
    return "failed", f"gaps between log-probs at {at} have the ratio {slope:.2f}; a softened distribution has 0.5."


async def unfiltered(evidence: Evidence) -> Verdict:
    """No top-p, top-k or min-p is active.

    A flat distribution covers the vocabulary; where an engine refuses such temperatures, the filters must obey what a
    request says of them, and tokens that a bias makes equally likely must all have their share. A hot distribution is
    never seen whole.
    """
    if evidence.sampler.max_temperature >= _FLAT:
        status, what = await _flat_covers(evidence)
    else:
        status, what = await _filters_obey(evidence)
        if status == "passed" and "logit_bias" in honoured_knobs(evidence.sampler.engine):
            status, what = await equal_shares(evidence.sampler, _HOT)
    if status == "failed":
        return status, what
    hot = await evidence.sampler.pool(_HOT)
    if len(hot.logprobs) > 1 and hot.mass > 1 - 1e-5:
        seen = f"the {len(hot.logprobs)} tokens seen at T={_HOT:g} have probability {hot.mass:.5f} together"
        return "failed", f"{seen}: a top-p, top-k or min-p is active."
    return status, what


async def _flat_covers(evidence: Evidence) -> Verdict:
    flat = await evidence.sampler.pool(_FLAT)
    level = statistics.fmean(flat.logprobs.values())
    uniform = -math.log(evidence.vocab_size)
    if level > uniform + _FLAT_NATS:
        reach = math.exp(-level)
        return (
            "failed",
            f"about {reach:,.0f} of {evidence.vocab_size:,} tokens can be sampled: a top-p or top-k is active.",
        )
    return "passed", f"at T={_FLAT:g} log-probs are {level:.3f}, uniform over the vocabulary ({uniform:.3f})."


async def _filters_obey(evidence: Evidence) -> Verdict:
    """Each filter, asked for at its strictest, leaves one token of probability 1: so what requests say is what counts,
    and those of a rollout switch all of them off."""
    sampler = evidence.sampler
    missing = sorted(_STRICTEST.keys() - honoured_knobs(sampler.engine))
    if missing:
        raise NoEvidence(f"the engine samples at T={sampler.max_temperature:g} at most and takes no {missing[0]}.")
    heat = (await sampler.comparable()).temperature
    for knob, value in _STRICTEST.items():
        asked = [sampler.sample(max_tokens=1, seed=s, temperature=heat, extra={knob: value}) for s in range(4)]
        for done in await asyncio.gather(*asked):
            if len(done.logprobs) != 1 or not done.logprobs[0] > -_CERTAIN_NATS:
                told = ", ".join(f"{logprob:.3f}" for logprob in done.logprobs)
                return (
                    "failed",
                    f"{knob}={value:g} was asked for and did not act (log-prob {told}, not 0): what requests say of "
                    f"{knob} is ignored, and a default of the server may be active.",
                )
    return "passed", f"{', '.join(_STRICTEST)} act as each request says, and requests switch them off."


async def stop_token(evidence: Evidence) -> Verdict:
    """Generation ends with a stop token, which is part of the completion and its last id (case row A12)."""
    try:
        heat = (await evidence.sampler.comparable()).temperature  # where tokens come again, so that some are met
    except NoEvidence:
        heat = 1.0

    async def completions(count: int, stop: Sequence[int]) -> list[Completion]:
        asked = [
            evidence.sampler.sample(max_tokens=LENGTH, seed=seed, temperature=heat, stop=stop) for seed in range(count)
        ]
        return await asyncio.gather(*asked)

    free = await completions(4, ())
    stops = sorted({token for done in free for token in done.token_ids[1:]} | set(evidence.stop_ids))
    ended = await completions(8, stops)
    seen = 0
    for done in ended:
        inside = [token for token in done.token_ids[:-1] if token in stops]
        last = bool(done.token_ids) and done.token_ids[-1] in stops
        if inside:
            return "failed", f"generation went on behind the stop token {inside[0]}."
        if done.finish_reason == "stop" and not last:
            return "failed", "generation ended with a stop token that is not among the ids."
        if last and done.finish_reason != "stop":
            return "failed", f"generation ended with a stop token and calls it {done.finish_reason}."
        seen += last
    if not seen:
        raise NoEvidence(f"none of {len(ended)} completions ended with a stop token.")
    return "passed", f"{seen} of {len(ended)} completions ended with a stop token, which is their last id."


async def policy_version(evidence: Evidence) -> Verdict:
    """Completions carry the version of the weights, at both ends (case row E1)."""
    before = evidence.sampler.engine.policy_version
    done = await evidence.sampler.sample(max_tokens=1, seed=1)
    after = evidence.sampler.engine.policy_version
    versions = (done.policy_version_start, done.policy_version_end)
    if not all(isinstance(version, int) for version in versions):
        return "failed", f"the policy versions of a completion are {versions}, not numbers."
    if not before <= versions[0] <= versions[1] <= after:
        return "failed", f"a completion says versions {versions}; the engine says {before} before and {after} after it."
    return "passed", f"version {versions[1]}."


async def seeds_differ(evidence: Evidence) -> Verdict:
    """Different seeds give different samples: a group of equal samples has no advantage."""
    heat = min(_FLAT, evidence.sampler.max_temperature)
    flat = await evidence.sampler.pool(heat)
    if len(flat.counts) == 1:
        (logprob,) = flat.logprobs.values()
        if logprob > -_LIKELY_NATS:
            raise NoEvidence(f"at T={heat:g} one token has probability {math.exp(logprob):.2f}.")
        return "failed", f"{sum(flat.counts.values())} seeds gave the same token at T={heat:g}."
    return "passed", f"{len(flat.counts)} tokens under {sum(flat.counts.values())} seeds."


async def seed_repeats(evidence: Evidence) -> Verdict:
    """The same seed gives the same sample: runs can be repeated."""
    twice = [await evidence.sampler.sample(max_tokens=LENGTH, seed=5) for _ in range(2)]
    if list(twice[0].token_ids) != list(twice[1].token_ids):
        return "failed", "the same seed gave different tokens."
    return "passed", "the same seed gave the same tokens."


async def context_length(evidence: Evidence) -> Verdict:
    """The context is as long as the engine says, and a prompt that fills it is refused as such."""
    engine = evidence.sampler.engine
    length = engine.context_length
    if length < max(_MIN_CONTEXT, len(evidence.sampler.prompt) + LENGTH):
        return "failed", f"the context of {length} tokens holds no agent's first prompt."
    full = (evidence.sampler.prompt * (length // len(evidence.sampler.prompt) + 1))[:length]
    try:
        async with asyncio.timeout(_CANCEL_S):
            await engine.generate(full, Sampling(max_tokens=1, seed=1), request_id="probe-full", session_id="probe")
    except ContextOverflow:
        return "passed", f"{length} tokens; a prompt that fills them is refused."
    except EngineError as error:
        return "failed", f"a prompt of {length} tokens fails with another error than context overflow: {error}"
    except TimeoutError:
        return "failed", f"a prompt of {length} tokens, which fills the context, is worked on."
    return "failed", f"a prompt of {length} tokens, which fills the context, was answered."


async def cancellation(evidence: Evidence) -> Verdict:
    """A cancelled call ends at once, and the engine answers the next."""
    engine = evidence.sampler.engine
    room = engine.context_length - len(evidence.sampler.prompt)
    sampling = Sampling(max_tokens=max(1, min(_CANCEL_TOKENS, room)), temperature=_HOT, seed=1)
    call = asyncio.ensure_future(
        engine.generate(evidence.sampler.prompt, sampling, request_id="probe-cancel", session_id="probe")
    )
    await asyncio.wait([call], timeout=0.05)
    if call.done():
        raise NoEvidence(f"the call was over before it could be cancelled ({_tokens(call)} tokens).")
    call.cancel()
    await asyncio.wait([call], timeout=_CANCEL_S)
    if not call.done():
        return "failed", f"a cancelled call still runs after {_CANCEL_S:g} s."
    if not call.cancelled():
        return "failed", "a cancelled call went on to its end."
    await evidence.sampler.sample(max_tokens=1, seed=1)
    return "passed", "a cancelled call ended, and the next was answered."


def _tokens(call: asyncio.Future[Completion]) -> int:
    return 0 if call.exception() else len(call.result().token_ids)


async def _completion(evidence: Evidence) -> Completion:
    return await evidence.sampler.sample(max_tokens=LENGTH, seed=7)


def _slopes(base: Pool, soft: Pool) -> list[float]:
    """Ratio of log-prob gaps, soft to base, for each pair of tokens seen at both temperatures."""
    common = sorted(base.logprobs.keys() & soft.logprobs.keys())
    return [
        (soft.logprobs[a] - soft.logprobs[b]) / gap
        for a, b in itertools.combinations(common, 2)
        if abs(gap := base.logprobs[a] - base.logprobs[b]) > _ALIGNED_NATS
    ]


_LOGPROBS: tuple[CheckName, ...] = ("ids_in", "ids_out", "counts", "values")
_PIN = "Pin top_p=1, top_k off, min_p=0 and no penalties in every request"

CHECKS: Sequence[Check] = (
    Check("ids_in", ids_in, "Use an endpoint that takes token ids, and the tokenizer of the served model."),
    Check("ids_out", ids_out, "Ask for token ids; a router in between must pass them on.", after=("ids_in",)),
    Check(
        "counts",
        counts,
        "Ask for the log-prob of every sampled token (vLLM: logprobs=0), do not stream, and let routers pass them on.",
        after=("ids_in", "ids_out"),
    ),
    Check(
        "values", values, "Use float32 logits, and log-probs of sampled tokens.", after=("ids_in", "ids_out", "counts")
    ),
    Check("limit", limit, "The engine must respect max_tokens.", after=("ids_in", "ids_out")),
    Check("aligned", aligned, "Read the log-prob of each position by its token id.", after=_LOGPROBS),
    Check(
        "temperature",
        temperature,
        "Return log-probs after temperature (vLLM: --logprobs-mode processed_logprobs; SGLang: unset "
        "SGLANG_RETURN_ORIGINAL_LOGPROB).",
        after=_LOGPROBS,
    ),
    Check(
        "unfiltered",
        unfiltered,
        f"{_PIN}; a server may take defaults from the model (vLLM: --generation-config vllm).",
        after=(*_LOGPROBS, "temperature"),
    ),
    Check("stop_token", stop_token, "Return the stop token with its log-prob.", after=_LOGPROBS),
    Check(
        "policy_version",
        policy_version,
        "Report the weights' version at both ends of a call.",
        after=("ids_in", "ids_out"),
    ),
    Check("seeds_differ", seeds_differ, "Pass the request's seed on; do not pin one.", after=_LOGPROBS),
    Check(
        "seed_repeats",
        seed_repeats,
        "Samples cannot be repeated by seed (SGLang: --enable-deterministic-inference).",
        Need.TOLD,
        ("ids_in", "ids_out"),
    ),
    Check(
        "context_length",
        context_length,
        "Give the gateway the length the engine was started with (vLLM: --max-model-len).",
        Need.NO_FAILURE,
        ("ids_in",),
    ),
    Check(
        "cancellation",
        cancellation,
        "Abort the request in the engine when its caller goes away.",
        Need.NO_FAILURE,
        ("ids_in", "ids_out"),
    ),
)
