"""A weight update under load: clients of the official SDK see slow replies and nothing else."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.gateway.patience import Patience
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.trace.turn import Turn
from tests.gateway.conftest import Rig, StartRig

CLIENTS = 50
QUICK = Patience(grace_s=0.2, every_s=0.2)
PAUSE_S = float(os.environ.get("DRIVETRAIN_TEST_PAUSE_S", "3"))


class Agent:
    """A harness that talks for as long as it is let: every reply is followed by the next request."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client
        self.replies = 0
        self.slowest_s = 0.0

    async def talk(self, stop: asyncio.Event) -> None:
        messages: list[Any] = [{"role": "user", "content": "begin"}]
        async with self._client as client:
            while not stop.is_set():
                asked = time.monotonic()
                stream = await client.chat.completions.create(model="policy", messages=messages, stream=True)
                text, ended = "", ""
                async for chunk in stream:
                    text += chunk.choices[0].delta.content or ""
                    ended = chunk.choices[0].finish_reason or ended
                assert ended == "stop"
                self.replies += 1
                self.slowest_s = max(self.slowest_s, time.monotonic() - asked)
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "go on"}]


async def run_agents(rig: Rig, count: int, pause_s: float, mode: Any) -> tuple[list[Agent], list[Turn]]:
    """Agents talk, the gate closes for ``pause_s`` and opens with version 1, and every agent gets more replies."""
    agents, sessions = [], []
    for _ in range(count):
        session, key = await rig.gateway.open_session(SessionPolicy(model="policy", max_turns=10_000))
        sessions.append(session)
        # In the long pause only keep-alives keep a stream from this read timeout.
        client = AsyncOpenAI(base_url=f"{rig.url}/v1", api_key=key, max_retries=0, timeout=max(20.0, 0.8 * pause_s))
        agents.append(Agent(client))
    stop = asyncio.Event()
    talking = asyncio.gather(*(agent.talk(stop) for agent in agents))

    async def all_have(replies: list[int]) -> None:
        while not all(agent.replies >= count for agent, count in zip(agents, replies, strict=True)):
            if talking.done():
                await talking  # an agent failed
            await asyncio.sleep(0.05)

    await all_have([1] * count)
    if mode == "hold":  # whoever was quick talks in step: wait for calls that have sampled something
        while rig.gateway.fence.status().in_flight < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.25)
    async with rig.gateway.fence.paused(mode, deadline_s=30) as update:
        await asyncio.sleep(pause_s)
        update.version = 1
    await all_have([agent.replies + 2 for agent in agents])
    stop.set()
    await talking
    assert [agent.replies for agent in agents] == [len(s.graph) for s in sessions]  # no turn lost, none extra
    return agents, [turn for session in sessions for turn in session.graph]


@pytest.mark.case("E1", "E2", "E3")
async def test_fifty_streaming_clients_across_a_pause(start_rig: StartRig, tiny_model: ModelDir) -> None:
    engine = ScriptedEngine(tiny_model, lambda *_: "still at it", latency_s=0.5)
    rig = await start_rig(engine=engine, patience=QUICK)
    agents, turns = await run_agents(rig, CLIENTS, PAUSE_S, "drain")

    assert all(turn.delivered and turn.link in ("root", "linear") for turn in turns)
    assert sum(call.outcome != "stop" for call in engine.calls) == 0
    versions = [(t.policy_version_dispatched, t.policy_version_start, t.policy_version_end) for t in turns]
    assert set(versions) == {(0, 0, 0), (1, 1, 1)}
    in_order = sorted(turns, key=lambda turn: turn.dispatched_at)
    assert [t.policy_version_start for t in in_order] == sorted(t.policy_version_start for t in turns)

    waited = [turn for turn in turns if turn.dispatched_at - turn.gate_entered_at > 0.5 * PAUSE_S]
    counts = rig.gateway.fence.counts
    assert len(waited) > CLIENTS / 2  # on a machine with time for all of them: every client, once
    assert all(turn.policy_version_start == 1 for turn in waited)
    assert (counts.pauses, counts.aborted, counts.failed, counts.passed) == (1, 0, 0, len(turns))
    assert engine.prefix_resets == 1
    print(
        f"\npause {PAUSE_S:g} s, {CLIENTS} clients: {len(turns)} turns, {len(waited)} waited at the gate, "
        f"slowest reply {max(agent.slowest_s for agent in agents):.2f} s, mixed-version turns 0, client errors 0"
    )


@pytest.mark.case("E2", "E3")
async def test_streaming_clients_across_a_hold(start_rig: StartRig, tiny_model: ModelDir) -> None:
    """Held calls are mixed; every one of them says which token is whose."""
    engine = ScriptedEngine(tiny_model, lambda *_: "still at it", per_token_s=0.1)
    rig = await start_rig(engine=engine, patience=QUICK)
    _, turns = await run_agents(rig, 8, 1.0, "hold")
    assert any(turn.policy_version_start != turn.policy_version_end for turn in turns)
    for turn in turns:
        if turn.policy_version_start != turn.policy_version_end:
            assert [version for _, version in turn.policy_spans] == [0, 1]
            assert sum(count for count, _ in turn.policy_spans) == len(turn.sampled_ids)
        else:
            assert turn.policy_spans == ()
    assert rig.gateway.fence.counts.aborted == 0


async def test_keep_alives_flow_while_a_call_waits_at_the_gate(start_rig: StartRig) -> None:
    rig = await start_rig(patience=Patience(grace_s=0.01, every_s=0.01))
    _, key = await rig.gateway.open_session()
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    headers = {"Authorization": f"Bearer {key}"}
    await rig.gateway.fence.pause()
    async with (
        aiohttp.ClientSession(rig.url, headers=headers) as http,
        http.post("/v1/chat/completions", json=body) as response,
    ):
        quiet = 0
        while quiet < 5:
            line = await response.content.readline()
            assert not line.startswith(b"data: [DONE]")
            quiet += line.startswith(b":")
        assert rig.gateway.fence.status().waiting == 1
        await rig.gateway.fence.resume(1)
        assert b"data: [DONE]" in await response.read()


async def test_a_pause_does_not_use_up_the_wall_clock(start_rig: StartRig, tiny_model: ModelDir) -> None:
    rig = await start_rig(engine=ScriptedEngine(tiny_model, lambda *_: "done", latency_s=0.01))
    session, client = await rig.session(wall_clock_s=60)
    fence = rig.gateway.fence

    async def ask(text: str) -> str | None:
        answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
        return answer.choices[0].message.content

    await fence.pause()
    call = asyncio.create_task(ask("one"))
    while fence.status().waiting == 0:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert fence._pause is not None
    fence._pause.since -= 100  # as if all this had taken 100 s longer
    session.budget._opened_at -= 100
    await fence.resume(1)
    assert (await call, await ask("two")) == ("done", "done")
    session.budget._opened_at -= 100  # time that was not paused does count
    assert "wall_clock_s" in (await ask("three") or "")


async def test_sealing_ends_a_call_that_waits_at_the_gate(start_rig: StartRig) -> None:
    rig = await start_rig()
    session, client = await rig.session()
    await rig.gateway.fence.pause()
    call = asyncio.create_task(client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}]))
    while rig.gateway.fence.status().waiting == 0:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await rig.gateway.seal_session(session.id)
    with pytest.raises(Exception, match="sealed"):
        await call
    assert (rig.gateway.fence.status().waiting, len(session.graph)) == (0, 0)


async def test_a_pause_that_failed_is_a_retryable_error_in_the_dialect(start_rig: StartRig) -> None:
    rig = await start_rig()
    _, client = await rig.session()
    with pytest.raises(ZeroDivisionError):
        async with rig.gateway.fence.paused():
            raise ZeroDivisionError
    with pytest.raises(Exception, match="broke off") as error:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    assert error.value.status_code == 503  # type: ignore[attr-defined]
