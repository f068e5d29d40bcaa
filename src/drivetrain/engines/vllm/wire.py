"""vLLM's two token-in / token-out endpoints: what is sent, and what the answer is believed to say (engines.md 2, 5).

Every knob is sent, because a knob that is left out takes its value from the model's ``generation_config``, and the
sample is then of another distribution than the one that is trained (case row B4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from drivetrain.engines.protocol import EngineFinish, EngineMalformed, Sampling
from drivetrain.engines.remote.ids import PromptIds, json_ids, packed
from drivetrain.engines.remote.sampled import Sampled

HONOURED_KNOBS = frozenset(
    {
        "top_p",
        "top_k",
        "min_p",
        "stop",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "logit_bias",
    }
)
"""What both endpoints take under the same name."""

_FINISH: dict[str, EngineFinish] = {"stop": "stop", "length": "length", "abort": "abort"}
_FLOOR = -9999.0  # what vLLM writes for minus infinity, because JSON has none
_ID_PREFIX = "token_id:"
_NAN = math.nan


class Wire(Protocol):
    """One endpoint."""

    api: Literal["completions", "generate"]
    path: str
    reply: type[Any]

    def request(self, model: str, prompt_ids: PromptIds, sampling: Sampling, max_tokens: int, seed: int) -> Any:
        """The body of a call."""

    def read(self, reply: Any, prompt_ids: PromptIds) -> Sampled:
        """What an answer says.

        Raises:
            EngineMalformed: it lacks what a completion cannot be without.
        """


class Usage(msgspec.Struct):
    """Counts as the server makes them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class FlatLogprobs(msgspec.Struct):
    """Log-probs of ``/v1/completions``; ``tokens`` are ``token_id:N`` when asked for."""

    token_logprobs: list[float | None] | None = None
    tokens: list[str] | None = None


class CompletionsChoice(msgspec.Struct):
    """One sample of ``/v1/completions``."""

    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: FlatLogprobs | None = None
    finish_reason: str | None = None


class CompletionsReply(msgspec.Struct):
    """Answer of ``/v1/completions``."""

    choices: list[CompletionsChoice]
    usage: Usage | None = None


class LogprobEntry(msgspec.Struct):
    """Log-prob of one sampled token: 0.32 names it by ``token_id``, 0.31 by ``token`` (``token_id:N``)."""

    logprob: float | None = None
    token_id: int | None = None
    token: str | None = None


class EntryLogprobs(msgspec.Struct):
    """Log-probs of ``/inference/v1/generate``."""

    content: list[LogprobEntry] | None = None


class WeightSpan(msgspec.Struct):
    """Tokens ``start`` to ``end`` (exclusive) were sampled from weights labelled ``version`` (0.32)."""

    version: str
    start: int
    end: int


class GenerateChoice(msgspec.Struct):
    """One sample of ``/inference/v1/generate``."""

    token_ids: list[int] | None = None
    logprobs: EntryLogprobs | None = None
    finish_reason: str | None = None
    weight_versions: list[WeightSpan] | None = None


class GenerateReply(msgspec.Struct):
    """Answer of ``/inference/v1/generate``."""

    choices: list[GenerateChoice]
    usage: Usage | None = None


def knobs(sampling: Sampling, max_tokens: int, seed: int) -> dict[str, Any]:
    """Every knob that both endpoints know, the full distribution unless the session honours another one."""
    return {
        "n": 1,
        "max_tokens": max_tokens,
        "min_tokens": 0,
        "temperature": sampling.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logit_bias": None,
        "seed": seed,
        "stop": [],
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": False,
        "logprobs": 0,
        "skip_special_tokens": False,
        **{knob: _own(knob, value) for knob, value in sampling.extra.items()},
    }


def _own(knob: str, value: Any) -> Any:
    if knob == "stop":
        return [value] if isinstance(value, str) else list(value)
    return value


class CompletionsWire:
    """``POST /v1/completions`` with token ids: the same in every version that TRL supports."""

    api: Literal["completions", "generate"] = "completions"
    path = "/v1/completions"
    reply = CompletionsReply

    def request(self, model: str, prompt_ids: PromptIds, sampling: Sampling, max_tokens: int, seed: int) -> Any:
        """The body of a call."""
        return {
            "model": model,
            "prompt": json_ids(prompt_ids),
            "add_special_tokens": False,
            "echo": False,
            "stream": False,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            **knobs(sampling, max_tokens, seed),
        }

    def read(self, reply: CompletionsReply, prompt_ids: PromptIds) -> Sampled:
        """What an answer says; raises :class:`EngineMalformed`."""
        choice = _only(reply.choices)
        ids = _ids(choice.token_ids)
        if choice.prompt_token_ids is not None and choice.prompt_token_ids != packed(prompt_ids).tolist():
            raise _changed_prompt(len(choice.prompt_token_ids), len(prompt_ids))
        _check_prompt(reply.usage, prompt_ids)
        flat = choice.logprobs or FlatLogprobs()
        named = [_named(token) for token in flat.tokens or ()]
        logprobs, misnamed = _logprobs(ids, flat.token_logprobs or [], named)
        return Sampled(ids, logprobs, _finish(choice.finish_reason), _reported(reply.usage), (), misnamed)


class GenerateWire:
    """``POST /inference/v1/generate``: no text at all, and from 0.32 on the weights' label per token."""

    api: Literal["completions", "generate"] = "generate"
    path = "/inference/v1/generate"
    reply = GenerateReply

    def request(self, model: str, prompt_ids: PromptIds, sampling: Sampling, max_tokens: int, seed: int) -> Any:
        """The body of a call."""
        return {
            "model": model,
            "token_ids": json_ids(prompt_ids),
            "stream": False,
            "sampling_params": knobs(sampling, max_tokens, seed),
        }

    def read(self, reply: GenerateReply, prompt_ids: PromptIds) -> Sampled:
        """What an answer says; raises :class:`EngineMalformed`."""
        choice = _only(reply.choices)
        ids = _ids(choice.token_ids)
        _check_prompt(reply.usage, prompt_ids)
        entries = (choice.logprobs.content if choice.logprobs else None) or []
        named = [entry.token_id if entry.token_id is not None else _named(entry.token or "") for entry in entries]
        logprobs, misnamed = _logprobs(ids, [entry.logprob for entry in entries], named)
        spans = _spans(choice.weight_versions or [], len(ids))
        return Sampled(ids, logprobs, _finish(choice.finish_reason), _reported(reply.usage), spans, misnamed)


WIRES: dict[str, Wire] = {"completions": CompletionsWire(), "generate": GenerateWire()}


def _only(choices: list[Any]) -> Any:
    if len(choices) != 1:
        raise EngineMalformed(f"the engine server answered with {len(choices)} samples where one was asked for.")
    return choices[0]


def _ids(ids: list[int] | None) -> list[int]:
    if ids is None:
        raise EngineMalformed(
            "no token ids came back.",
            fix="Ask vLLM 0.11 or newer itself; a router in between must pass return_token_ids and token_ids on.",
            retryable=False,
        )
    return ids


def _check_prompt(usage: Usage | None, prompt_ids: PromptIds) -> None:
    counted = usage.prompt_tokens if usage else None
    if counted is not None and counted != len(prompt_ids):
        raise _changed_prompt(counted, len(prompt_ids))


def _changed_prompt(theirs: int, ours: int) -> EngineMalformed:
    return EngineMalformed(
        f"the engine server worked on a prompt of {theirs} tokens that is not the one of {ours} tokens it was sent.",
        fix="Switch off truncation and special tokens in the server or the router in between.",
        retryable=False,
    )


def _reported(usage: Usage | None) -> int | None:
    return usage.completion_tokens if usage else None


def _finish(reason: str | None) -> EngineFinish:
    if reason not in _FINISH:
        raise EngineMalformed(f"the engine server ended a sample for the reason {str(reason)[:40]!r}.")
    return _FINISH[reason]


def _named(token: str) -> int | None:
    """The id in ``token_id:N``; None where a token is shown as text, which is never turned into an id."""
    digits = token.removeprefix(_ID_PREFIX)
    return int(digits) if digits != token and digits.isascii() and digits.isdigit() else None


def _logprobs(
    ids: Sequence[int], values: Sequence[float | None], named: Sequence[int | None]
) -> tuple[list[float], int]:
    logprobs = [_NAN if value is None else -math.inf if value <= _FLOOR else value for value in values]
    misnamed = 0
    for position, (token, name) in enumerate(zip(ids, named, strict=False)):
        if name is not None and name != token and position < len(logprobs):
            logprobs[position] = _NAN
            misnamed += 1
    return logprobs, misnamed


def _spans(spans: Sequence[WeightSpan], length: int) -> tuple[tuple[int, str], ...]:
    """(tokens, label), if the spans cover the sample without a gap."""
    at = 0
    found = []
    for span in spans:
        if span.start != at or span.end < span.start:
            return ()
        found.append((span.end - span.start, span.version))
        at = span.end
    return tuple(pair for pair in found if pair[0]) if at == length else ()
