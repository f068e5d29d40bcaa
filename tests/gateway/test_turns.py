"""Token path through the gateway: verbatim continuation, forks with reasons, budgets, delivery."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import openai
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.dialects.base import WireRequest
from drivetrain.gateway.dialects.openai_chat import OpenAIChat
from drivetrain.journal.reader import JournalReader
from drivetrain.journal.writer import JournalError
from drivetrain.messages import Call, Message
from drivetrain.tokens.codec import TokenCodec
from drivetrain.tokens.template import ChatTemplate
from drivetrain.trace.sample import rows_of
from drivetrain.trace.validate import check_graph, check_rows
from tests.gateway.conftest import BASH, Rig, StartRig, bash_call

SYSTEM = {"role": "system", "content": "You fix bugs."}
USER = {"role": "user", "content": "fix the bug"}
Messages = list[dict[str, Any]]


async def play(client: openai.AsyncOpenAI, turns: int) -> Messages:
    """A harness: sends its history, appends the reply and a tool result, and goes on."""
    history: Messages = [SYSTEM, USER]
    for turn in range(turns):
        done = await client.chat.completions.create(model="m", messages=history, tools=[BASH])  # type: ignore[arg-type]
        message = done.choices[0].message
        assert message.tool_calls
        history.append(
            {
                "role": "assistant",
                "content": message.content,
                "tool_calls": [call.model_dump() for call in message.tool_calls],
            }
        )
        history += [
            {"role": "tool", "tool_call_id": call.id, "content": f"output {turn} é"} for call in message.tool_calls
        ]
    return history


def calls(n: int) -> list[str]:
    return [bash_call(f"step {i}") for i in range(n)]


def assert_sound(rig: Rig, session_id: str) -> None:
    """The journal alone proves the trace: prompts as sent, rows as stored."""
    graph = JournalReader(rig.journal).graph(session_id, rig.gateway.sessions.get(session_id).graph.session_tag)
    assert check_graph(graph, vocab_size=rig.gateway.codec.tokenizer.vocab_size) == []
    assert check_rows(graph, rows_of(graph)) == []


async def test_each_prompt_is_stored_ids_plus_delta(start_rig: StartRig) -> None:
    rig = await start_rig(calls(6))
    session, client = await rig.session()
    await play(client, 6)
    turns = list(session.graph)
    assert [turn.link for turn in turns] == ["root"] + ["linear"] * 5
    engine = rig.gateway.engine
    assert isinstance(engine, ScriptedEngine)
    for previous, turn, sent in zip(turns[:-1], turns[1:], engine.calls[1:], strict=True):
        stored = session.graph.ids_through(previous)
        assert np.array_equal(sent.prompt_ids[: len(stored)], stored)
        assert sent.prompt_ids == session.graph.prompt_ids(turn).tolist()
    assert len(rows_of(session.graph)) == 1
    assert_sound(rig, session.id)


@pytest.mark.case("A2")
async def test_odd_tokens_survive_where_a_rerender_breaks(
    start_rig: StartRig, tiny_model: ModelDir, codec: TokenCodec
) -> None:
    """Each reply holds a token split that the tokenizer never makes: 50 of 50 turns extend, a re-render breaks 50."""
    odd = [codec.tokenizer.encode(char)[0] for char in "echo"]
    assert codec.tokenizer.encode(codec.tokenizer.decode(odd)) != odd

    def script(_ids: list[int], _text: str, index: int) -> ScriptedReply:
        call = codec.tokenizer.encode(bash_call(f"step {index}"))
        return ScriptedReply(token_ids=[*odd, *call, codec.boundary.close_id])

    rig = await start_rig(engine=ScriptedEngine(tiny_model, script, context_length=100_000))
    session, client = await rig.session(max_turns=60)
    history = await play(client, 51)
    assert [turn.link for turn in session.graph] == ["root"] + ["linear"] * 50
    assert len(rows_of(session.graph)) == 1
    assert_sound(rig, session.id)

    body = msgspec.json.encode({"model": "m", "messages": history, "tools": [BASH]})
    call = OpenAIChat().decode(WireRequest(body=body), session)
    broken = 0
    for number, turn in enumerate(session.graph):
        if number == 50:
            break
        seen = call.messages[: 2 + 2 * (number + 1)]
        rendered = codec.first_prompt(seen, call.tools)
        stored = session.graph.ids_through(turn).tolist()
        broken += rendered[: len(stored)] != stored
    assert broken == 50


async def test_work_is_proportional_to_what_is_new(start_rig: StartRig) -> None:
    """Each message of a growing history is decoded once."""
    rig = await start_rig(calls(20))
    session, client = await rig.session()
    await play(client, 20)
    assert session.memo.decoded == 2 + 2 * 19


async def test_added_tool_forks_once(start_rig: StartRig) -> None:
    rig = await start_rig(["one", "two", "three"])
    session, client = await rig.session()
    other = {"type": "function", "function": {"name": "edit", "description": "", "parameters": {}}}
    history: Messages = [USER]
    for tools in ([BASH, other], [other, BASH], [BASH]):
        done = await client.chat.completions.create(model="m", messages=history, tools=tools)  # type: ignore[arg-type]
        history += [{"role": "assistant", "content": done.choices[0].message.content}, USER]
    assert [(turn.link, turn.fork_reason) for turn in session.graph] == [
        ("root", ""),
        ("linear", ""),
        ("new_root", "tools_changed"),
    ]


async def test_dropped_assistant_turn(start_rig: StartRig) -> None:
    """mini-swe-agent drops a reply without a call and adds a user message instead (harnesses.md section 1.3)."""
    rig = await start_rig(["no call", "still no call"])
    session, client = await rig.session()
    await client.chat.completions.create(model="m", messages=[SYSTEM, USER])
    await client.chat.completions.create(model="m", messages=[SYSTEM, USER, {"role": "user", "content": "format!"}])
    assert [turn.fork_reason for turn in session.graph] == ["", "assistant_removed"]
    assert_sound(rig, session.id)


@pytest.mark.case("C10")
async def test_cut_turn_is_length_and_continues_verbatim(start_rig: StartRig) -> None:
    rig = await start_rig([bash_call("a very long command " * 20), "short"])
    session, client = await rig.session(max_tokens_per_turn=30)
    done = await client.chat.completions.create(model="m", messages=[USER], tools=[BASH])
    assert done.choices[0].finish_reason == "length"
    assert not done.choices[0].message.tool_calls
    said = {"role": "assistant", "content": done.choices[0].message.content}
    await client.chat.completions.create(model="m", messages=[USER, said, USER], tools=[BASH])  # type: ignore[list-item]
    first, second = session.graph
    assert (second.link, second.parent) == ("linear", first.id)
    assert second.delta_ids[0] == rig.gateway.codec.boundary.close_id
    assert "truncated_tool_call" in first.notes
    assert_sound(rig, session.id)


@pytest.mark.case("C3")
async def test_twin_prompts_are_siblings(start_rig: StartRig) -> None:
    rig = await start_rig(["one", "two"])
    session, client = await rig.session()
    for _ in range(2):
        await client.chat.completions.create(model="m", messages=[USER])
    assert [(turn.parent, turn.fork_reason) for turn in session.graph] == [(None, ""), (None, "same_prompt")]
    assert len(rows_of(session.graph)) == 2


async def test_token_trained_once_over_branches(start_rig: StartRig) -> None:
    rig = await start_rig(["one", "two", "three"])
    session, client = await rig.session()
    done = await client.chat.completions.create(model="m", messages=[USER])
    said = {"role": "assistant", "content": done.choices[0].message.content}
    for text in ("left", "right"):
        after = {"role": "user", "content": text}
        await client.chat.completions.create(model="m", messages=[USER, said, after])  # type: ignore[list-item]
    rows = rows_of(session.graph)
    sampled = sum(len(turn.sampled_ids) for turn in session.graph)
    assert len(rows) == 2
    assert sum(sum(row.loss_mask) for row in rows) == sampled
    assert rows[1].metadata["masked"] == {"trained_in_earlier_row": len(session.graph[0].sampled_ids)}
    assert_sound(rig, session.id)


async def test_eight_parallel_calls_on_a_budget_of_one(start_rig: StartRig, tiny_model: ModelDir) -> None:
    engine = ScriptedEngine.from_lines([], tiny_model, then=ScriptedReply(text="ok", delay_s=0.1))
    rig = await start_rig(engine=engine)
    session, client = await rig.session(max_turns=1)
    asked = [
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": f"{i}"}]) for i in range(8)
    ]
    replies = [done.choices[0].message.content for done in await asyncio.gather(*asked)]
    assert replies.count("ok") == 1
    assert all(text for text in replies)
    assert len(session.graph) == 1
    assert session.events == {"budget_stop": 7}


async def test_budget_of_tokens_and_time(start_rig: StartRig) -> None:
    rig = await start_rig(["word " * 50] * 5)
    session, client = await rig.session(max_completion_tokens=40, max_tokens_per_turn=30)
    texts = []
    for i in range(3):
        done = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": f"{i}"}])
        texts.append(done.choices[0].message.content)
    assert [len(turn.sampled_ids) for turn in session.graph] == [30, 10]
    assert texts[2] is not None and "budget" in texts[2]
    _, late = await rig.session(wall_clock_s=0.01)
    await asyncio.sleep(0.05)
    done = await late.chat.completions.create(model="m", messages=[USER])
    assert "wall_clock_s" in (done.choices[0].message.content or "")


async def test_equal_request_in_flight_is_joined(start_rig: StartRig, tiny_model: ModelDir) -> None:
    engine = ScriptedEngine.from_lines([ScriptedReply(text="once", delay_s=0.2)], tiny_model)
    rig = await start_rig(engine=engine)
    session, client = await rig.session()
    asked = [client.chat.completions.create(model="m", messages=[USER]) for _ in range(3)]
    replies = await asyncio.gather(*asked)
    assert {done.id for done in replies} == {replies[0].id}
    assert len(engine.calls) == len(session.graph) == 1


@pytest.mark.case("C3")
async def test_equal_bodies_of_different_agents_are_two_turns(start_rig: StartRig, tiny_model: ModelDir) -> None:
    """Twin sub-agents ask the same at the same time; their headers tell them apart (case row C3)."""
    engine = ScriptedEngine.from_lines([], tiny_model, then=ScriptedReply(text="ok", delay_s=0.2))
    rig = await start_rig(engine=engine)
    session, client = await rig.session()
    asked = [
        client.chat.completions.create(model="m", messages=[USER], extra_headers={"x-session-id": name})
        for name in ("one", "two", "two")
    ]
    await asyncio.gather(*asked)
    assert len(engine.calls) == len(session.graph) == 2


async def test_undelivered_reply_is_replayed_and_not_trained(
    start_rig: StartRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start_rig(["first", "second"])
    session, client = await rig.session()

    async def lose(*_: Any) -> None:
        raise ConnectionResetError

    with monkeypatch.context() as patch:
        patch.setattr("drivetrain.gateway.app.respond_json", lose)
        with pytest.raises(openai.APIError):
            await client.chat.completions.create(model="m", messages=[USER])
    assert [turn.delivered for turn in session.graph] == [False]
    assert rows_of(session.graph) == []
    done = await client.chat.completions.create(model="m", messages=[USER])
    assert done.choices[0].message.content == "first"
    assert [turn.delivered for turn in session.graph] == [True]
    again = await client.chat.completions.create(model="m", messages=[USER])
    assert again.choices[0].message.content == "second"
    assert_sound(rig, session.id)


async def test_disconnect_cancels_the_engine(start_rig: StartRig, tiny_model: ModelDir) -> None:
    engine = ScriptedEngine.from_lines([ScriptedReply(hang=True)], tiny_model, then="ok")
    rig = await start_rig(engine=engine)
    session, client = await rig.session()
    for stream in (False, True):
        body = {"model": "m", "messages": [USER], "stream": stream, "seed": int(stream)}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=0.3)) as http:
            with pytest.raises(asyncio.TimeoutError):
                await http.post(
                    f"{rig.url}/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {client.api_key}"}
                )
        engine._seen.clear()
    for _ in range(200):
        if not session.delivery.in_flight:
            break
        await asyncio.sleep(0.02)
    assert [call.outcome for call in engine.calls] == ["cancelled", "cancelled"]
    assert session.events == {"abandoned": 2}
    assert session.budget.reserved_turns == 0


async def test_hanging_up_after_the_terminal_event_is_a_delivery(start_rig: StartRig) -> None:
    rig = await start_rig(["all of it"])
    session, client = await rig.session()
    body = msgspec.json.encode({"model": "m", "messages": [USER], "stream": True})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    writer.write(f"{head}Authorization: Bearer {client.api_key}\r\n\r\n".encode() + body)
    await reader.readuntil(b"[DONE]\n\n")
    writer.transport.abort()
    await asyncio.sleep(0.05)
    assert [turn.delivered for turn in session.graph] == [True]


async def test_continuing_a_turn_proves_its_delivery(start_rig: StartRig) -> None:
    rig = await start_rig(["one", "two"])
    session, client = await rig.session()
    done = await client.chat.completions.create(model="m", messages=[USER])
    turn = next(iter(session.graph))
    turn.delivered = False  # as after a crash between the reply and its mark
    said = {"role": "assistant", "content": done.choices[0].message.content}
    await client.chat.completions.create(model="m", messages=[USER, said, USER])  # type: ignore[list-item]
    assert turn.delivered


async def test_no_byte_leaves_before_the_commit(start_rig: StartRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Committed, then sent (design invariant 5): the reply waits for the journal, streamed or not."""
    rig = await start_rig(["one", "two"])
    session, client = await rig.session()
    gate = asyncio.Event()
    add_turn = rig.gateway.journal.add_turn

    async def slow(session_id: str, turn: Any) -> None:
        await gate.wait()
        await add_turn(session_id, turn)

    monkeypatch.setattr(rig.gateway.journal, "add_turn", slow)
    headers = {"Authorization": f"Bearer {client.api_key}"}
    for number, stream in enumerate((False, True)):
        gate.clear()
        body = {"model": "m", "messages": [{"role": "user", "content": f"{number}"}], "stream": stream}
        async with aiohttp.ClientSession() as http:
            asked = asyncio.create_task(http.post(f"{rig.url}/v1/chat/completions", json=body, headers=headers))
            done, _ = await asyncio.wait({asked}, timeout=0.3)
            assert not done
            assert len(JournalReader(rig.journal).graph(session.id, session.graph.session_tag)) == number
            gate.set()
            async with await asked as response:
                assert response.status == 200
                assert len(JournalReader(rig.journal).graph(session.id, session.graph.session_tag)) == number + 1
                await response.read()


async def test_a_turn_that_cannot_be_committed_is_not_served(
    start_rig: StartRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start_rig(["lost", "kept"])
    session, client = await rig.session()

    async def full(*_: Any) -> None:
        raise JournalError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(rig.gateway.journal, "add_turn", full)
        with pytest.raises(openai.InternalServerError, match="disk full"):
            await client.chat.completions.create(model="m", messages=[USER])
    assert len(session.graph) == 0
    done = await client.chat.completions.create(model="m", messages=[USER])
    assert done.choices[0].message.content == "kept"
    assert session.budget.turns == 1


async def test_missing_logprobs_mask_the_turn_and_say_so(start_rig: StartRig, tiny_model: ModelDir) -> None:
    engine = ScriptedEngine.from_lines(
        [ScriptedReply(token_ids=[20, 21, 2], logprobs=[-0.5, float("nan"), -0.1]), "fine"], tiny_model
    )
    rig = await start_rig(engine=engine)
    session, client = await rig.session()
    for text in ("a", "b"):
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
    bad, good = session.graph
    assert bad.notes == ("logprob_not_finite",)
    assert [row.metadata["trained_turns"] for row in rows_of(session.graph)] == [[good.id]]


async def test_a_message_that_the_template_drops_is_noted(
    tmp_path: Path, tiny_model: ModelDir, codec: TokenCodec
) -> None:
    """The continuation is still exact; that the policy never saw the message is said, not hidden."""
    source = (
        "{% for m in messages %}{% if m['role'] != 'developer' %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] "
        "+ '<|im_end|>\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
        "{% endif %}"
    )
    dropping = TokenCodec(codec.tokenizer, ChatTemplate(source))
    gateway = Gateway(
        ScriptedEngine.from_lines(["one", "two", "three"], tiny_model), dropping, tmp_path / "j", model="m"
    )
    session, _ = await gateway.open_session()
    messages: tuple[Message, ...] = (Message("user", "hi"),)
    for role in ("user", "developer", "user"):
        served = await gateway.serve(session, Call("test", "m", messages), str(len(messages)).encode())
        messages = (*messages, Message("assistant", served.reply.content), Message(role, "more"))
    await gateway.aclose()
    assert [turn.notes for turn in session.graph] == [(), (), ("template_dropped_message",)]
