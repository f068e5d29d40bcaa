"""Through the gateway: prompts extend verbatim, who leaves frees the engine, a pause under load loses nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI

from drivetrain.engines.protocol import Sampling
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.messages import Message
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.sample import rows_of
from drivetrain.trace.validate import check_graph, check_rows
from tests.real.vllm.support import QUESTIONS, Watched, metric, started, talk, until, until_running
from tests.real.vllm_server import LiveServer


async def test_a_conversation_extends_verbatim_and_is_one_row(
    gateway: tuple[Gateway, str], engine: Watched, codec: TokenCodec
) -> None:
    session = await talk(*gateway, 4, 16)
    graph = session.graph
    turns = list(graph)
    assert [turn.link for turn in turns] == ["root"] + ["linear"] * 3
    for previous, turn, sent in zip(turns[:-1], turns[1:], engine.sent[1:], strict=True):
        stored = graph.ids_through(previous).tolist()
        assert sent[: len(stored)] == stored
        assert sent == graph.prompt_ids(turn).tolist()
    rows = rows_of(graph)
    assert len(rows) == 1
    assert sum(rows[0].loss_mask) == sum(len(turn.sampled_ids) for turn in turns)
    assert check_graph(graph, vocab_size=codec.tokenizer.vocab_size) == []
    assert check_rows(graph, rows) == []


async def freed(server: LiveServer) -> None:
    """No request runs or waits, no block is held, and nothing is sampled any more."""
    await until_running(server, 0)
    assert await metric(server, "num_requests_waiting") == 0
    await until(lambda used: used == 0.0, server, "kv_cache_usage_perc", within_s=10)
    sampled = await metric(server, "generation_tokens_total")
    await asyncio.sleep(0.5)
    assert await metric(server, "generation_tokens_total") == sampled


@pytest.mark.parametrize("api", ["completions", "generate"])
async def test_a_cancelled_call_is_aborted_in_vllm(server: LiveServer, codec: TokenCodec, api: Any) -> None:
    engine = await started(server, api=api)
    prompt = codec.first_prompt([Message("user", QUESTIONS[0])], [])
    await freed(server)
    start = await metric(server, "generation_tokens_total")
    long = Sampling(max_tokens=4000, temperature=2.0, seed=1)
    call = asyncio.ensure_future(engine.generate(prompt, long, request_id="long"))
    await until(lambda sampled: sampled > start, server, "generation_tokens_total")
    assert await metric(server, "kv_cache_usage_perc") > 0
    call.cancel()
    await freed(server)
    assert await metric(server, "generation_tokens_total") < start + 2000
    await engine.aclose()


async def test_a_client_that_goes_away_frees_the_engine(gateway: tuple[Gateway, str], server: LiveServer) -> None:
    front, url = gateway
    _, key = await front.open_session(SessionPolicy(model="policy", max_tokens_per_turn=4000, seed=1))
    async with AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
        said: Any = [{"role": "user", "content": QUESTIONS[0]}]
        call = asyncio.ensure_future(client.chat.completions.create(model="policy", messages=said))
        await until_running(server, 1)
        call.cancel()
    await freed(server)


@pytest.mark.case("E2", "E3", "E4")
async def test_a_drain_under_load_loses_nothing(gateway: tuple[Gateway, str], server: LiveServer) -> None:
    """Calls in flight finish under the old version, others wait for the new one (with calls held: test_weights)."""
    front, url = gateway
    talking = [asyncio.ensure_future(talk(front, url, 2, 24, seed=seed)) for seed in range(5)]
    await until(bool, server, "num_requests_running")
    async with front.fence.paused("drain", deadline_s=120) as update:
        before = await metric(server, "generation_tokens_total")
        await asyncio.sleep(0.5)
        assert await metric(server, "generation_tokens_total") == before  # nothing is sampled
        update.version = 1
    sessions = await asyncio.gather(*talking)
    turns = [turn for session in sessions for turn in session.graph]
    assert len(turns) == 10
    assert all(len(turn.sampled_ids) and turn.finish_reason in ("stop", "length") for turn in turns)
    assert {(turn.policy_version_start, turn.policy_version_end) for turn in turns} == {(0, 0), (1, 1)}
    for session in sessions:
        assert len(rows_of(session.graph)) == 1
