"""Twelve turns over the Messages API and what harnesses do to them; Claude Code (harnesses.md sections 3 and 8.3)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.sample import rows_of
from tests.conformance.wire.anthropic_kit import (
    ASK,
    BASH,
    Block,
    Clients,
    async_json,
    async_stream,
    blocks,
    clients,
    codec,
    one_call,
)
from tests.gateway.conftest import StartRig

__all__ = ["codec"]


# --- a conversation of twelve turns, and what harnesses do to it


def verbatim(history: list[Block]) -> None:
    pass


def thinking_dropped(history: list[Block]) -> None:
    for message in history:
        if message["role"] == "assistant":
            message["content"] = [block for block in message["content"] if block["type"] != "thinking"]


def like_javascript(history: list[Block]) -> None:
    """Keys in another order, numbers as doubles (harnesses.md section 1.2)."""

    def again(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: again(value[key]) for key in reversed(value)}
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return int(float(value)) if isinstance(value, int) else value

    for block in _blocks_of(history, "tool_use"):
        block["input"] = again(block["input"])


def cache_control_moves(history: list[Block]) -> None:
    """Two marks: on the last block, and on that of the user message before."""
    for message in [message for message in history if message["role"] == "user"][-2:]:
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
        message["content"][-1]["cache_control"] = {"type": "ephemeral"}


def strings_become_blocks(history: list[Block]) -> None:
    for message in history:
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
    for block in _blocks_of(history, "tool_result"):
        block["content"] = [{"type": "text", "text": block["content"]}]


def trailing_newline(history: list[Block]) -> None:
    for message in history:
        if message["role"] == "assistant":
            for block in message["content"]:
                if block["type"] == "text":
                    block["text"] += "\n"


def text_and_call_split(history: list[Block]) -> None:
    """The text and the calls of one reply come back as two assistant messages."""
    split: list[Block] = []
    for message in history:
        if message["role"] != "assistant":
            split.append(message)
            continue
        calls = [block for block in message["content"] if block["type"] == "tool_use"]
        split.append({"role": "assistant", "content": [b for b in message["content"] if b["type"] != "tool_use"]})
        split.append({"role": "assistant", "content": calls})
    history[:] = split


def ids_renamed(history: list[Block]) -> None:
    for kind, field in (("tool_use", "id"), ("tool_result", "tool_use_id")):
        for index, block in enumerate(_blocks_of(history, kind)):
            block[field] = f"toolu_{index}"


def _blocks_of(history: list[Block], kind: str) -> list[Block]:
    contents = [message["content"] for message in history if isinstance(message["content"], list)]
    return [block for content in contents for block in content if block["type"] == kind]


REWRITES = [
    verbatim,
    thinking_dropped,
    like_javascript,
    cache_control_moves,
    strings_become_blocks,
    trailing_newline,
    text_and_call_split,
    ids_renamed,
]


def assert_one_chain(graph: TraceGraph, turns: int = 12) -> None:
    found = list(graph)
    assert [turn.link for turn in found] == ["root"] + ["linear"] * (turns - 1), [t.fork_detail for t in found]
    assert len(rows_of(graph)) == 1
    last = found[-1]
    assert graph.path(last) == found


@pytest.mark.case("A4", "A9", "A10")
@pytest.mark.parametrize("rewrite", REWRITES, ids=lambda f: f.__name__)
async def test_twelve_turns_stay_one_chain(start_rig: StartRig, rewrite: Callable[[list[Block]], None]) -> None:
    c = await clients(await start_rig([one_call(index) for index in range(12)]))
    history: list[Block] = [*ASK["messages"]]
    system: list[Block] = [{"type": "text", "text": "You are an agent."}, {"type": "text", "text": "Be brief."}]
    for index in range(12):
        sent = copy.deepcopy(history)
        rewrite(sent)
        marked = copy.deepcopy(system)
        marked[index % 2]["cache_control"] = {"type": "ephemeral"}
        way = async_stream if index % 2 else async_json
        message = await way(c, {**ASK, "system": marked, "messages": sent, "tools": [BASH]})
        history.append({"role": "assistant", "content": blocks(message)})
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
        calls = [block for block in message.content if block.type == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": f"result {index}"} for call in calls]
        history.append({"role": "user", "content": results})
    assert_one_chain(c.session.graph)


# --- Claude Code (harnesses.md sections 3 and 8.3)


async def claude_code(c: Clients, *, turns: int) -> None:
    """Twelve turns as Claude Code sends them: a rotating billing line, marks that move, system messages inside."""
    history: list[Any] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nBe careful.\n</system-reminder>\n"},
                {"type": "text", "text": "fix the bug"},
            ],
        },
        {"role": "system", "content": "Today is Monday."},
    ]
    for index in range(turns):
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.332; cch={index:05x};"},
            {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
            {
                "type": "text",
                "text": "\nYou help.\n\n# Environment\ncwd: /repo",
                "cache_control": {"type": "ephemeral"},
            },
        ]
        sent = copy.deepcopy(history)
        cache_control_moves(sent)
        body: Any = {
            "model": "claude",
            "max_tokens": 32000,
            "system": system,
            "messages": sent,
            "tools": [
                BASH | {"cache_control": {"type": "ephemeral"}},
                {"name": "DeferredToolPlaceholder", "input_schema": {"type": "object"}, "defer_loading": True},
                {"type": "web_search_20250305", "name": "web_search"},
            ],
            "thinking": {"type": "adaptive"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "medium"},
            "metadata": {"user_id": "user_device_session"},
            "betas": ["claude-code-20250219", "interleaved-thinking-2025-05-14"],
        }
        async with c.asyn.beta.messages.stream(**body) as stream:
            message = await stream.get_final_message()
        history.append({"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in message.content]})
        calls = [block for block in message.content if block.type == "tool_use"]
        answers: list[Block] = [
            {"type": "tool_result", "tool_use_id": call.id, "content": f"result {index}", "is_error": index % 3 == 0}
            for call in calls
        ]
        if index % 4 == 1:
            answers.append({"type": "text", "text": "<system-reminder>todo list is empty</system-reminder>"})
        history.append({"role": "user", "content": answers})
        if index % 5 == 2:
            history.append({"role": "system", "content": f"The date changed {index}."})


@pytest.mark.case("C7")
async def test_claude_code_is_one_row_when_its_billing_line_is_declared(start_rig: StartRig) -> None:
    rig = await start_rig([one_call(index) for index in range(12)])
    c = await clients(rig, volatile_lines=(r"^x-anthropic-billing-header:",))
    await claude_code(c, turns=12)
    assert_one_chain(c.session.graph)
    turn = c.turns[0]
    assert turn.messages[0].content == "You are Claude Code.\n\nYou help.\n\n# Environment\ncwd: /repo"
    assert [tool.name for tool in turn.tools] == ["bash"]
    assert turn.requested.max_tokens == 32000
    assert turn.requested.extra["dropped_tools"] == ["web_search_20250305:web_search"]
    assert turn.requested.extra["deferred_tools"] == ["DeferredToolPlaceholder"]
    assert turn.requested.extra["reasoning_effort"] == "medium"
    assert turn.requested.extra["metadata"] == {"user_id": "user_device_session"}
    assert "claude-code-20250219" in turn.requested.extra["betas"]


@pytest.mark.case("C7")
async def test_claude_code_forks_every_turn_when_it_is_not(start_rig: StartRig) -> None:
    c = await clients(await start_rig([one_call(index) for index in range(12)]))
    await claude_code(c, turns=12)
    assert [turn.fork_reason for turn in c.turns] == ["", *["system_changed"] * 11]
    assert len(rows_of(c.session.graph)) == 12
