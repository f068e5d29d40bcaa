"""Log-probs of a given text from vLLM: ``prompt_logprobs`` of ``/v1/completions``, which reads no prefix cache."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from drivetrain.engines.protocol import EngineMalformed
from drivetrain.engines.remote import RemoteClient


class _Scored(msgspec.Struct):
    logprob: float


class _Choice(msgspec.Struct):
    prompt_logprobs: list[dict[str, _Scored] | None] | None = None


class _Reply(msgspec.Struct):
    choices: list[_Choice]


async def score(client: RemoteClient, model: str, token_ids: Sequence[int]) -> dict[str, list[float]]:
    """Log-probs at temperature 1 of each token but the first, by server.

    Raises:
        EngineMalformed: an answer holds none.
        EngineError: a server fails.
    """
    body = {
        "model": model,
        "prompt": list(token_ids),
        "add_special_tokens": False,
        "max_tokens": 1,
        "temperature": 1.0,
        "prompt_logprobs": 0,
    }
    replies = await client.each("POST", "/v1/completions", body, reply=_Reply)
    return {url: _read(reply, token_ids) for url, reply in zip(client.urls, replies, strict=True)}


def _read(reply: _Reply, token_ids: Sequence[int]) -> list[float]:
    told = reply.choices[0].prompt_logprobs if reply.choices else None
    if not told or len(told) != len(token_ids):
        raise EngineMalformed(
            "the engine server did not score a prompt.",
            fix="A router in between must pass prompt_logprobs on.",
            retryable=False,
        )
    scored = [(entry or {}).get(str(token)) for entry, token in zip(told[1:], token_ids[1:], strict=True)]
    if None in scored:
        raise EngineMalformed("the engine server scored another prompt than it was sent.", retryable=False)
    return [entry.logprob for entry in scored if entry is not None]
