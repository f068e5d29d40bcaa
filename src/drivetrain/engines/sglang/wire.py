"""SGLang's native ``POST /generate``: what is sent, and what the answer is believed to say.

Field names and semantics are those of SGLang's documentation (docs.sglang.io: sampling parameters, native API) and of
its request and response structures. Every knob is sent: one that is left out takes its value from the model's
``generation_config`` (``--sampling-defaults model`` is the server's default), and the sample is then of another
distribution than the one that is trained (case row B4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from drivetrain.engines.protocol import EngineFinish, EngineMalformed, Sampling
from drivetrain.engines.remote.ids import PromptIds, json_ids
from drivetrain.engines.remote.sampled import Sampled

HONOURED_KNOBS = frozenset(
    {"top_p", "top_k", "min_p", "stop", "frequency_penalty", "presence_penalty", "repetition_penalty"}
)
"""What ``sampling_params`` takes under the same name."""

_FINISH: dict[str, EngineFinish] = {"stop": "stop", "length": "length", "abort": "abort"}
_SEEDS = 2**31  # a batch's seeds are one tensor of integers


class Finish(msgspec.Struct):
    """``type`` stop, length or abort; ``matched`` is the stop token's id, or the text that was matched."""

    type: str
    matched: int | str | list[int] | None = None
    message: str | None = None


class Span(msgspec.Struct):
    """Tokens ``start`` to ``end`` (exclusive) were sampled from weights labelled ``version``."""

    version: str
    start: int
    end: int


class MetaInfo(msgspec.Struct):
    """What comes beside a sample. ``output_token_logprobs`` are (log-prob, id, text or null)."""

    finish_reason: Finish | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    output_token_logprobs: list[tuple[float | None, int, str | None]] | None = None
    weight_version: str | None = None
    weight_versions: list[Span] | None = None


class GenerateReply(msgspec.Struct):
    """Answer of ``/generate``; its ``text`` is never read."""

    meta_info: MetaInfo
    output_ids: list[int] | None = None


def request(
    prompt_ids: PromptIds, sampling: Sampling, *, max_tokens: int, seed: int, rid: str, adapter: str | None
) -> dict[str, Any]:
    """The body of a call. ``ignore_eos`` stays off: switched on it would ignore ``stop_token_ids`` as well."""
    body: dict[str, Any] = {
        "rid": rid,
        "input_ids": json_ids(prompt_ids),
        "sampling_params": {
            "n": 1,
            "max_new_tokens": max_tokens,
            "min_new_tokens": 0,
            "temperature": sampling.temperature,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "stop": [],
            "stop_token_ids": list(sampling.stop_token_ids),
            "ignore_eos": False,
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "sampling_seed": seed % _SEEDS,
            **{knob: _own(knob, value) for knob, value in sampling.extra.items()},
        },
        "return_logprob": True,
        "logprob_start_len": -1,
        "top_logprobs_num": 0,
        "return_text_in_logprobs": False,
        "stream": False,
    }
    if adapter is not None:
        body["lora_path"] = adapter
    return body


def _own(knob: str, value: Any) -> Any:
    if knob == "stop":
        return [value] if isinstance(value, str) else list(value)
    if knob == "top_k":
        return value or -1
    return value


def read(reply: GenerateReply, prompt_ids: PromptIds, sampling: Sampling) -> Sampled:
    """What an answer says.

    Raises:
        EngineMalformed: it lacks what a completion cannot be without, or is one of another prompt.
    """
    meta = reply.meta_info
    if meta.prompt_tokens is not None and meta.prompt_tokens != len(prompt_ids):
        raise EngineMalformed(
            f"the engine server worked on a prompt of {meta.prompt_tokens} tokens, not on the {len(prompt_ids)} tokens "
            "it was sent.",
            fix="Start SGLang without --allow-auto-truncate; a router in between must not change prompts.",
            retryable=False,
        )
    triples = meta.output_token_logprobs or []
    ids = reply.output_ids if reply.output_ids is not None else [token for _, token, _ in triples]
    if not ids and meta.completion_tokens:
        raise EngineMalformed(
            "no token ids came back.",
            fix="Ask SGLang itself; a router in between must pass output_ids and meta_info on.",
            retryable=False,
        )
    logprobs, misnamed = _logprobs(ids, triples)
    return Sampled(
        token_ids=ids,
        logprobs=logprobs,
        finish_reason=_finish(meta.finish_reason, ids, sampling),
        reported_tokens=meta.completion_tokens,
        spans=_spans(meta, len(ids)),
        misnamed=misnamed,
    )


def _logprobs(ids: Sequence[int], triples: Sequence[tuple[float | None, int, str | None]]) -> tuple[list[float], int]:
    logprobs = [math.nan if value is None else value for value, _, _ in triples]
    wrong = [at for at, (token, triple) in enumerate(zip(ids, triples, strict=False)) if triple[1] != token]
    for at in wrong:
        logprobs[at] = math.nan
    return logprobs, len(wrong)


def _finish(finish: Finish | None, ids: Sequence[int], sampling: Sampling) -> EngineFinish:
    """SGLang checks the limit before the stop tokens: a stop token in the last place is called ``length`` by it."""
    if finish is None or finish.type not in _FINISH:
        raise EngineMalformed(f"the engine server ended a sample for the reason {str(finish and finish.type)[:40]!r}.")
    if finish.type == "stop" and isinstance(finish.matched, str) and not sampling.extra.get("stop"):
        raise EngineMalformed(
            f"the engine server ended a sample at {finish.matched[:40]!r}, which nobody asked for.",
            fix='"NaN happened" means that the weights or the kernels are broken.',
        )
    if finish.type != "abort" and ids and ids[-1] in sampling.stop_token_ids:
        return "stop"
    return _FINISH[finish.type]


def _spans(meta: MetaInfo, length: int) -> tuple[tuple[int, str], ...]:
    """(tokens, label), if the spans cover the sample without a gap. Servers without spans tell one label, that of the
    weights at the end: no evidence for the tokens before."""
    at = 0
    found = []
    for span in meta.weight_versions or ():
        if span.start != at or span.end < span.start:
            return ()
        found.append((span.end - span.start, span.version))
        at = span.end
    return tuple(pair for pair in found if pair[0]) if at == length else ()
