"""Log-probs of a given text from SGLang: ``input_token_logprobs`` of the native ``/generate``."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

import msgspec

from drivetrain.engines.protocol import EngineMalformed, Sampling
from drivetrain.engines.remote import RemoteClient
from drivetrain.engines.sglang.wire import request


class _Meta(msgspec.Struct):
    input_token_logprobs: list[tuple[float | None, int, str | None]] | None = None


class _Reply(msgspec.Struct):
    meta_info: _Meta


async def score(client: RemoteClient, adapter: str | None, token_ids: Sequence[int]) -> dict[str, list[float]]:
    """Log-probs at temperature 1 of each token but the first, by server.

    Raises:
        EngineMalformed: an answer holds none.
        EngineError: a server fails.
    """
    rid = f"fingerprint-{secrets.token_hex(8)}"
    one = Sampling(max_tokens=1, seed=0)
    body = request(token_ids, one, max_tokens=1, seed=0, rid=rid, adapter=adapter)
    body["logprob_start_len"] = 0
    replies = await client.each("POST", "/generate", body, reply=_Reply)
    return {url: _read(reply, token_ids) for url, reply in zip(client.urls, replies, strict=True)}


def _read(reply: _Reply, token_ids: Sequence[int]) -> list[float]:
    triples = reply.meta_info.input_token_logprobs or []
    if [token for _, token, _ in triples] != list(token_ids):
        raise EngineMalformed(
            "the engine server did not score the prompt that it was sent.",
            fix="A router in between must pass input_token_logprobs on.",
            retryable=False,
        )
    return [math.nan if value is None else value for value, _, _ in triples[1:]]
