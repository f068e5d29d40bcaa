"""Budgets: reserve-then-settle, what a stop looks like, and calls in line (issue "The wire", item 6)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import aiohttp
import msgspec
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import EngineError
from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply
from drivetrain.errors import ConfigError
from drivetrain.gateway.budgets import Budget, BudgetStop
from drivetrain.gateway.dialects.choose import DIALECTS
from drivetrain.gateway.limits import CallLine
from drivetrain.gateway.patience import Patience
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.refusal import Refusal
from drivetrain.journal.reader import JournalReader
from tests.gateway.conftest import Rig, StartRig

USER = {"role": "user", "content": "hi"}


class _Plan(msgspec.Struct):
    """What a simulated call does between the steps of a reservation."""

    prompt: int
    wanted: int
    sampled: int  # at most; it gets no more than it was granted
    pauses: tuple[int, int, int]
    ending: str  # settle | release | cancel


_plans = st.lists(
    st.builds(
        _Plan,
        prompt=st.integers(1, 20),
        wanted=st.integers(1, 20),
        sampled=st.integers(0, 20),
        pauses=st.tuples(*[st.integers(0, 4)] * 3),
        ending=st.sampled_from(["settle", "settle", "settle", "release", "cancel"]),
    ),
    max_size=12,
)
_limit = st.none() | st.integers(1, 80)


@settings(deadline=None)
@given(plans=_plans, turns=st.integers(1, 8), prompt=_limit, completion=_limit, total=_limit)
def test_no_interleaving_exceeds_a_limit(
    plans: list[_Plan], turns: int, prompt: int | None, completion: int | None, total: int | None
) -> None:
    policy = SessionPolicy(
        model="m",
        max_turns=turns,
        max_prompt_tokens=prompt,
        max_completion_tokens=completion,
        max_total_tokens=total,
    )
    budget = Budget(policy, 0.0)
    settled: list[tuple[int, int]] = []

    def check() -> None:
        assert budget.turns + budget.reserved_turns <= turns
        prompts = budget.prompt_tokens + budget.reserved_prompt_tokens
        sampled = budget.completion_tokens + budget.reserved_completion_tokens
        assert prompt is None or prompts <= prompt
        assert completion is None or sampled <= completion
        assert total is None or prompts + sampled <= total

    async def pause(steps: int) -> None:
        check()
        for _ in range(steps):
            await asyncio.sleep(0)
            check()

    async def one(plan: _Plan) -> None:
        await pause(plan.pauses[0])
        reservation = await budget.reserve()
        try:
            await pause(plan.pauses[1])
            granted = await reservation.claim(plan.prompt, plan.wanted)
            assert 1 <= granted <= plan.wanted
            await pause(plan.pauses[2])
            if plan.ending == "cancel":
                raise asyncio.CancelledError
            if plan.ending == "settle":
                sampled = min(plan.sampled, granted)
                reservation.settle(sampled)
                reservation.settle(sampled)  # only the first counts
                settled.append((plan.prompt, sampled))
        finally:
            reservation.release()
            check()

    async def all_of_them() -> list[BaseException | None]:
        async with asyncio.timeout(10):  # a deadlock would hang
            return await asyncio.gather(*map(one, plans), return_exceptions=True)

    outcomes = asyncio.run(all_of_them())
    assert budget.reserved_turns == budget.reserved_prompt_tokens == budget.reserved_completion_tokens == 0
    assert budget.turns == len(settled)
    assert budget.prompt_tokens == sum(prompt for prompt, _ in settled)
    assert budget.completion_tokens == sum(sampled for _, sampled in settled)
    for outcome in outcomes:
        assert outcome is None or isinstance(outcome, BudgetStop | asyncio.CancelledError), outcome
    if turns >= len(plans) and prompt is completion is total is None:
        assert not any(isinstance(outcome, BudgetStop) for outcome in outcomes)


async def test_a_call_waits_for_what_is_only_reserved() -> None:
    budget = Budget(SessionPolicy(model="m", max_completion_tokens=100), 0.0)
    first = await budget.reserve()
    assert await first.claim(10, 80) == 80
    second = await budget.reserve()
    claim = asyncio.create_task(_value(second.claim(10, 80)))
    await asyncio.sleep(0.01)
    assert not claim.done()  # 20 are left for now; the first may use none of its 80
    first.settle(5)
    assert await claim == 80
    second.settle(80)
    third = await budget.reserve()
    assert await third.claim(10, 80) == 15
    third.settle(15)
    with pytest.raises(BudgetStop, match="max_completion_tokens of 100"):
        await (await budget.reserve()).claim(10, 80)


async def test_a_failed_call_gives_its_turn_to_the_next() -> None:
    budget = Budget(SessionPolicy(model="m", max_turns=1), 0.0)
    first = await budget.reserve()
    second = asyncio.create_task(_value(budget.reserve()))
    await asyncio.sleep(0)
    first.release()
    (await second).settle(1)
    with pytest.raises(BudgetStop, match="max_turns of 1"):
        await budget.reserve()


async def test_one_who_waits_is_stopped_by_the_wall_clock() -> None:
    now = 0.0
    budget = Budget(SessionPolicy(model="m", max_turns=1, wall_clock_s=0.05), 0.0, clock=lambda: now)
    await budget.reserve()
    waiting = asyncio.create_task(_value(budget.reserve()))
    await asyncio.sleep(0)
    now = 1.0
    with pytest.raises(BudgetStop, match="wall_clock_s"):
        await waiting


async def _value(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def test_eight_parallel_calls_on_a_budget_of_one_turn_commit_one(start_rig: StartRig) -> None:
    rig = await start_rig(["the one"])
    session, client = await rig.session(max_turns=1)
    replies = await asyncio.gather(*(_ask(client, f"call {n}") for n in range(8)))
    assert len(session.graph) == 1
    assert session.budget.turns == 1
    assert sorted(text == "the one" for text in replies) == [False] * 7 + [True]
    assert all("max_turns" in text for text in replies if text != "the one")
    assert session.events["budget_stop"] == 7
    assert session.stop_condition == "max_turns"


async def test_the_next_call_takes_the_turn_of_one_that_failed(start_rig: StartRig, tiny_model: ModelDir) -> None:
    replies = [ScriptedReply(error=EngineError("down"), delay_s=0.05), "second"]
    rig = await start_rig(engine=ScriptedEngine.from_lines(replies, tiny_model))
    session, client = await rig.session(max_turns=1)
    outcomes = await asyncio.gather(_ask(client, "a"), _ask(client, "b"), return_exceptions=True)
    assert isinstance(outcomes[0], openai.InternalServerError)
    assert outcomes[1] == "second"
    assert session.budget.turns == 1


@pytest.mark.parametrize(
    ("limits", "stop"),
    [
        ({"max_turns": 1}, "max_turns"),
        ({"max_prompt_tokens": 120}, "max_prompt_tokens"),
        ({"max_completion_tokens": 2}, "max_completion_tokens"),
        ({"max_total_tokens": 120}, "max_total_tokens"),
    ],
)
@pytest.mark.parametrize("on_budget", ["message", "error"])
async def test_each_budget_stops_and_says_which(
    start_rig: StartRig, limits: dict[str, Any], stop: str, on_budget: str
) -> None:
    rig = await start_rig(["a b c d e f g h", "i"])
    session, client = await rig.session(on_budget=on_budget, **limits)
    await _ask(client, "go")
    used = (session.budget.turns, session.budget.prompt_tokens, session.budget.completion_tokens)
    text = "go on " * 60
    if on_budget == "message":
        assert stop in await _ask(client, text)
    else:
        with pytest.raises(openai.BadRequestError, match=stop) as caught:  # 400 is not asked again
            await _ask(client, text)
        assert caught.value.code == "budget_exhausted"
    assert len(session.graph) == 1
    assert (session.budget.turns, session.budget.prompt_tokens, session.budget.completion_tokens) == used
    assert session.stop_condition == stop
    (event,) = (one for one in JournalReader(rig.journal).events(session.id) if one.kind == "budget_stop")
    assert event.detail == {"budget": stop, "limit": next(iter(limits.values())), "reply": on_budget}


async def test_total_tokens_cut_the_last_reply(start_rig: StartRig) -> None:
    rig = await start_rig(["a b c d e f g h i j k l m n o p"] * 2)
    session, client = await rig.session(max_total_tokens=10_000)
    await _ask(client, "hi")
    (turn,) = session.graph
    short, other = await rig.session(max_total_tokens=turn.prompt_len + 3)
    reply = await other.chat.completions.create(model="m", messages=[USER])
    assert reply.choices[0].finish_reason == "length"
    assert (short.budget.prompt_tokens, short.budget.completion_tokens) == (turn.prompt_len, 3)


async def test_wall_clock_ends_a_call_in_flight(start_rig: StartRig, tiny_model: ModelDir) -> None:
    engine = ScriptedEngine.from_lines([ScriptedReply(hang=True)], tiny_model)
    rig = await start_rig(engine=engine)
    session, client = await rig.session(wall_clock_s=2)
    assert "wall_clock_s" in await _ask(client, "hang")
    assert engine.running == 0
    assert engine.calls[0].outcome == "cancelled"
    assert len(session.graph) == 0
    assert session.stop_condition == "wall_clock_s"
    assert session.budget.reserved_turns == 0


async def test_a_call_that_is_cancelled_while_it_is_committed_counts(
    start_rig: StartRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start_rig(["ok"])
    session, client = await rig.session()
    journal = rig.gateway.journal
    writing, go_on, add_turn = asyncio.Event(), asyncio.Event(), journal.add_turn

    async def slow(*turn: Any) -> None:
        writing.set()
        await go_on.wait()
        await add_turn(*turn)

    monkeypatch.setattr(journal, "add_turn", slow)
    asking = asyncio.create_task(_ask(client, "hi"))
    await writing.wait()
    revoking = asyncio.create_task(rig.gateway.sessions.revoke(session.id))
    await asyncio.sleep(0.05)  # it cancels the call
    go_on.set()
    await revoking
    await asyncio.gather(asking, return_exceptions=True)
    (turn,) = session.graph
    assert (session.budget.turns, session.budget.completion_tokens) == (1, len(turn.sampled_ids))


async def test_a_call_that_takes_too_long_is_a_time_out(start_rig: StartRig, tiny_model: ModelDir) -> None:
    engine = ScriptedEngine.from_lines([ScriptedReply(hang=True), "back"], tiny_model)
    rig = await start_rig(engine=engine)
    session, client = await rig.session(call_timeout_s=0.1)
    with pytest.raises(openai.InternalServerError) as caught:
        await _ask(client, "hang")
    assert caught.value.status_code == 504
    assert caught.value.code == "engine_timeout"
    assert engine.calls[0].outcome == "cancelled"
    assert await _ask(client, "again") == "back"
    assert len(session.graph) == 1


async def test_budgets_count_what_the_journal_holds(start_rig: StartRig) -> None:
    limits = {"max_turns": 3, "max_prompt_tokens": 500, "max_completion_tokens": 90, "max_total_tokens": 550}
    rig = await start_rig(["one", "two", "three"])
    session, client = await rig.session(**limits)
    for text in ("a", "b", "c"):
        await _ask(client, text)
    await _ask(client, "stopped")
    before = session.budget
    await rig.server.aclose()
    again = await start_rig(["never"], journal=rig.journal)
    found = again.gateway.sessions.get(session.id)
    assert found.policy == session.policy
    assert found.stop_condition == "max_turns"
    for name in ("turns", "prompt_tokens", "completion_tokens"):
        assert getattr(found.budget, name) == getattr(before, name) > 0
    client.base_url = f"{again.url}/v1"  # type: ignore[assignment]
    assert "max_turns" in await _ask(client, "again")


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "openai_chat": ("/v1/chat/completions", {"model": "m", "messages": [USER]}),
    "openai_responses": ("/v1/responses", {"model": "m", "input": "hi"}),
    "anthropic": ("/v1/messages", {"model": "m", "max_tokens": 16, "messages": [USER]}),
    "google": ("/v1beta/models/m:generateContent", {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}),
}


def test_every_dialect_is_asked_below() -> None:
    assert {dialect.name for dialect in DIALECTS} <= set(BODIES)


@pytest.mark.case("D14")
@pytest.mark.parametrize("dialect", [dialect.name for dialect in DIALECTS])
async def test_a_stop_is_a_terminal_message_with_text(start_rig: StartRig, dialect: str) -> None:
    rig = await start_rig(["first"])
    session, key = await rig.gateway.open_session(SessionPolicy(model="policy", max_turns=1))
    path, body = BODIES[dialect]
    texts = []
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as http:
        for _ in range(2):
            async with http.post(rig.url + path, json=body) as response:
                assert response.status == 200, await response.text()
                texts.append(await response.text())
        streamed = {"stream": True} if dialect != "google" else {}
        stream_path = path.replace(":generateContent", ":streamGenerateContent?alt=sse")
        async with http.post(rig.url + stream_path, json={**body, **streamed}) as response:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            texts.append(await response.text())
    assert "first" in texts[0]
    assert all("budget of this session" in text for text in texts[1:])
    assert session.events["budget_stop"] == 2


async def test_calls_wait_in_line_and_a_long_line_is_429(start_rig: StartRig, tiny_model: ModelDir) -> None:
    engine = ScriptedEngine.from_lines([], tiny_model, then=ScriptedReply(text="ok", delay_s=0.8))
    rig = await start_rig(engine=engine, patience=Patience(grace_s=1.0, every_s=0.2))
    session, client = await rig.session(max_concurrent_calls=2, max_queued_calls=3)
    outcomes = await asyncio.gather(*(_raw(rig, client, f"call {n}") for n in range(8)))
    assert engine.peak == 2
    assert session.line.waiting == 0
    served = [(status, text) for status, _, text in outcomes if status == 200]
    assert len(served) == 5 and all("[DONE]" in text for _, text in served)
    assert any(text.startswith(": ") for _, text in served)  # kept alive in line
    refused = [(headers["Retry-After"], text) for status, headers, text in outcomes if status == 429]
    assert len(refused) == 3
    for wait, text in refused:
        assert wait == "5" and msgspec.json.decode(text)["error"]["code"] == "too_many_calls"


async def test_a_line_is_first_come_first_served_and_survives_leavers() -> None:
    line = CallLine(1, 3)
    order: list[str] = []

    async def call(name: str) -> None:
        async with line.place():
            order.append(name)
            await asyncio.sleep(0)

    async with line.place():
        tasks = [asyncio.create_task(call(name)) for name in "abc"]
        await asyncio.sleep(0)
        with pytest.raises(Refusal, match="3 are waiting"):
            await call("d")
        tasks[1].cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["a", "c"]
    await call("e")
    assert line.waiting == 0


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_413_before_it_is_read(start_rig: StartRig, chunked: bool) -> None:
    rig = await start_rig(["ok"])
    session, client = await rig.session(max_body_bytes=10_000)
    sent = 0

    async def chunks() -> Any:
        nonlocal sent
        for _ in range(1000):
            sent += 1
            yield b"x" * 10_000

    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "x" * 10_000}]})
    headers = {"Authorization": f"Bearer {client.api_key}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        try:
            async with http.post(f"{rig.url}/v1/chat/completions", data=chunks() if chunked else body) as response:
                assert response.status == 413
                error = (await response.json())["error"]
                assert error["code"] == "request_too_large" and "10000 bytes" in error["message"]
        except aiohttp.ClientConnectionError:
            assert chunked  # the rest of the body was refused
        assert sent < 1000
        small = {"model": "m", "messages": [USER]}
        async with http.post(f"{rig.url}/v1/chat/completions", json=small) as response:
            assert response.status == 200
    assert len(session.graph) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_turns", 0),
        ("max_total_tokens", -1),
        ("max_prompt_tokens", 0),
        ("call_timeout_s", float("inf")),
        ("rate_per_s", 0),
        ("max_concurrent_calls", 0),
        ("max_queued_calls", -1),
        ("max_body_bytes", 0),
        ("key_ttl_s", 0),
        ("on_budget", "explode"),
        ("images", "paint"),
        ("reasoning", "drop"),
        ("purpose", "play"),
        ("temperature", 0),
        ("model", ""),
    ],
)
def test_a_bad_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        SessionPolicy(**{"model": "m", field: value})


def test_policies_round_trip_and_old_ones_load() -> None:
    policy = SessionPolicy(model="m", max_total_tokens=7, on_budget="error", knobs={"top_p": "refuse"}, images="refuse")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(policy), type=SessionPolicy) == policy
    old = msgspec.msgpack.encode({"model": "m", "temperature": 0.7, "max_turns": 3, "unknown_later_field": 1})
    loaded = msgspec.msgpack.decode(old, type=SessionPolicy)
    assert loaded == SessionPolicy(model="m", temperature=0.7, max_turns=3)


async def _ask(client: openai.AsyncOpenAI, text: str) -> str:
    reply = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
    content = reply.choices[0].message.content
    assert content
    return content


async def _raw(rig: Rig, client: openai.AsyncOpenAI, text: str) -> tuple[int, dict[str, str], str]:
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": text}]}
    headers = {"Authorization": f"Bearer {client.api_key}"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{rig.url}/v1/chat/completions", json=body, headers=headers) as response,
    ):
        return response.status, dict(response.headers), await response.text()
