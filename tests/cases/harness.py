"""A scripted harness: 12 turns of reasoning and one tool call, its history replayed as real harnesses replay theirs."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

from openai import AsyncOpenAI

TURNS = 12
Messages = list[dict[str, Any]]
Replay = Callable[[Messages], Messages]
Tools = Callable[[int], list[dict[str, Any]]]

SYSTEM = {"role": "system", "content": "You fix bugs."}
TASK = {"role": "user", "content": "Please fix the bug in the parser."}


def tool(name: str) -> dict[str, Any]:
    properties = {"command": {"type": "string"}, "timeout": {"type": "number"}, "id": {"type": "integer"}}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


BASH, EDIT, READ = tool("bash"), tool("edit"), tool("read")


def reply(number: int) -> str:
    """What the policy samples: reasoning, text in every other turn, and a call that is easily written differently."""
    text = f"Step {number}:\n" if number % 2 else ""
    arguments = f'{{"command": "ls é{number}", "timeout": 5000.0, "id": 9007199254740993}}'
    call = f'<tool_call>\n{{"name": "bash", "arguments": {arguments}}}\n</tool_call>'
    return f"<think>\nI look at part {number}.\n</think>\n\n{text}{call}"


def only_text(number: int) -> str:
    """A reply without a call, which ends with a newline."""
    return f"<think>\nI think of part {number}.\n</think>\n\nPart {number} is fine.\n"


def as_is(history: Messages) -> Messages:
    return history


def two_tools(_turn: int) -> list[dict[str, Any]]:
    return [BASH, EDIT]


async def roll(client: AsyncOpenAI, replay: Replay = as_is, tools: Tools = two_tools, turns: int = TURNS) -> Messages:
    """Run an agent: send the history as ``replay`` makes it, append the reply and a result for each call."""
    history: Messages = [SYSTEM, TASK]
    for turn in range(turns):
        history += await step(client, replay(copy.deepcopy(history)), tools(turn), turn)
    return history


async def step(client: AsyncOpenAI, sent: Messages, tools: list[dict[str, Any]], turn: int) -> Messages:
    """One call: the assistant message verbatim, and what the harness says to it."""
    done = await client.chat.completions.create(model="m", messages=sent, tools=tools)  # type: ignore[arg-type]
    answer = done.choices[0].message.model_dump()
    kept = {name: answer.get(name) for name in ("role", "content", "reasoning_content", "tool_calls")}
    assert kept["reasoning_content"], "the reply's reasoning must reach the harness"
    calls = kept["tool_calls"] or []
    if not calls:
        del kept["tool_calls"]
        return [kept, {"role": "user", "content": f"go on {turn}"}]
    return [kept, *({"role": "tool", "tool_call_id": c["id"], "content": f"output {turn} é"} for c in calls)]


# What harnesses do to a history when they send it again. None of these changes what was said.


def answers(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Replay:
    """Rewrite each assistant message."""
    return lambda history: [change(m) if m["role"] == "assistant" else m for m in history]


def arguments(change: Callable[[str], str]) -> Replay:
    """Rewrite the arguments of each call."""

    def rewritten(message: dict[str, Any]) -> dict[str, Any]:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = change(call["function"]["arguments"])
        return message

    return answers(rewritten)


def reserialised(text: str, **options: Any) -> str:
    return json.dumps(json.loads(text), **{"ensure_ascii": False, **options})


def key_order(text: str) -> str:
    return json.dumps(dict(reversed(json.loads(text).items())), ensure_ascii=False)


def whole_numbers(text: str) -> str:
    assert "5000.0" in text
    return text.replace("5000.0", "5000")


def rounded(text: str) -> str:
    """To the nearest double."""
    assert "9007199254740993" in text
    return text.replace("9007199254740993", "9007199254740992")


def as_javascript(text: str) -> str:
    """All at once: compact, doubles for numbers, escapes."""
    value = json.loads(text, parse_int=lambda number: int(float(number)), parse_float=lambda number: int(float(number)))
    return json.dumps(value, separators=(",", ":"))


def empty_for_null(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": message["content"] or "", "refusal": None, "name": None, "function_call": None}


def renamed_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    return {("reasoning" if name == "reasoning_content" else name): value for name, value in message.items()}


def without_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "reasoning_content"}


def newline_added(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": message["content"] + "\n" if message["content"] else message["content"]}


def newline_stripped(message: dict[str, Any]) -> dict[str, Any]:
    assert message["content"].endswith("\n")
    return {**message, "content": message["content"].rstrip("\n")}


def renamed_ids(history: Messages) -> Messages:
    text = json.dumps(history)
    renamed = re.sub(r"call_[0-9a-f]{8}t([0-9a-f]+)c[0-9a-f]+", r"toolu_\1", text)
    assert renamed != text or len(history) == 2
    found: Messages = json.loads(renamed)
    return found


def javascript_without_ids(history: Messages) -> Messages:
    return renamed_ids(arguments(as_javascript)(history))


def text_parts(history: Messages) -> Messages:
    return [{**m, "content": [{"type": "text", "text": m["content"]}]} if m["content"] else m for m in history]


def cache_marks(history: Messages) -> Messages:
    """On the last two messages with text: they move along as the history grows."""
    out = text_parts(history)
    for message in [m for m in out if m["content"]][-2:]:
        message["content"][0]["cache_control"] = {"type": "ephemeral"}
    return out


def text_and_call_apart(history: Messages) -> Messages:
    out: Messages = []
    for message in history:
        if message["role"] == "assistant" and message["content"]:
            out.append({"role": "assistant", "content": message["content"]})
            message = {**message, "content": None}
        out.append(message)
    return out


def two_users_after_results(history: Messages) -> Messages:
    out: Messages = []
    for message in history:
        out.append(message)
        if message["role"] == "tool":
            out += [{"role": "user", "content": "<reminder>be brief</reminder>"}, {"role": "user", "content": "go on"}]
    return out


# And what changes what the model reads.


def clock(history: Messages) -> Messages:
    return [{**SYSTEM, "content": f"{SYSTEM['content']}\nIt is {len(history)} o'clock.\nBe brief."}, *history[1:]]


def reminder(history: Messages) -> Messages:
    return [*history, {"role": "user", "content": f"Reminder: {len(history)} messages so far."}]


def blanked(history: Messages) -> Messages:
    old = [i for i, message in enumerate(history) if message["role"] == "tool"][:-3]
    return [{**m, "content": ""} if i in old else m for i, m in enumerate(history)]
