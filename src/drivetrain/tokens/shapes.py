"""The shapes of appended messages that agents produce, as small conversations to try on a template.

Each shape is a history that ends with an assistant turn, and a tail behind it. The words are unique in the
conversation, so that they can be found again in a rendering.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from drivetrain.messages import Message, ToolCall, ToolSpec

PROBE_TOOLS: tuple[ToolSpec, ...] = (
    ToolSpec(
        "read_file",
        "Read a file.",
        {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    ),
)
CUT = "cut"
"""Name prefix of shapes whose last turn was cut by the token limit."""


class Shape(NamedTuple):
    """A named conversation: ``history`` (its last message is an assistant's) and the ``tail`` that follows."""

    name: str
    about: str
    history: tuple[Message, ...]
    tail: tuple[Message, ...]


def _user(number: int) -> Message:
    return Message("user", f"Question{number} über naïve Dinge 🙂")


def _said(number: int, *, why: bool = False, text: bool = True, calls: int = 0, arguments: str = "") -> Message:
    made = tuple(
        ToolCall(f"callid{number}{i:03d}", "read_file", arguments or f'{{"path": "path{number}x{i}.py"}}')
        for i in range(calls)
    )
    return Message(
        "assistant", f"Answer{number} is given." if text else "", f"Thought{number} comes." if why else "", made
    )


def _result(number: int, index: int = 0) -> Message:
    return Message("tool", f"Result{number}x{index}\nnext line", tool_call_id=f"callid{number}{index:03d}")


_SYSTEM = Message("system", "Be brief.")
_ASKED = (_SYSTEM, _user(1))
_CALLED = (*_ASKED, _said(2, text=False, calls=1))
_CALLED_TWICE = (*_ASKED, _said(2, text=False, calls=2))
_ANSWERED = (*_ASKED, _said(2))
_WHY_CALLED = (*_ASKED, _said(2, why=True, text=False, calls=1))
_FOREIGN = Message("assistant", "Foreign9 words.")

SHAPES: tuple[Shape, ...] = (
    Shape("tool", "one tool result", _CALLED, (_result(2),)),
    Shape("tools", "results of two parallel calls", _CALLED_TWICE, (_result(2), _result(2, 1))),
    Shape("tools_swapped", "parallel results out of order", _CALLED_TWICE, (_result(2, 1), _result(2))),
    Shape(
        "tool_again",
        "tool result after an earlier one",
        (*_CALLED, _result(2), _said(3, text=False, calls=1)),
        (_result(3),),
    ),
    Shape("text_tool", "tool result after text and call", (*_ASKED, _said(2, calls=1)), (_result(2),)),
    Shape(
        "tool_odd_args",
        "arguments that are no JSON object",
        (*_ASKED, _said(2, text=False, calls=1, arguments="[path2x0")),
        (_result(2),),
    ),
    Shape("tool_user", "tool result, then a user", _CALLED, (_result(2), _user(4))),
    Shape("tool_users", "tool result, then two users", _CALLED, (_result(2), _user(4), _user(5))),
    Shape("user", "user after a text answer", _ANSWERED, (_user(4),)),
    Shape("users", "two users after a text answer", _ANSWERED, (_user(4), _user(5))),
    Shape(
        "tool_system", "tool result, then a system reminder", _CALLED, (_result(2), Message("system", "Reminder6 now."))
    ),
    Shape("system", "system reminder after a text answer", _ANSWERED, (Message("system", "Reminder6 now."), _user(4))),
    Shape(
        "system_new",
        "system reminder where there was no system prompt",
        _ANSWERED[1:],
        (Message("system", "Reminder6 now."), _user(4)),
    ),
    Shape(
        "developer",
        "developer message after a text answer",
        _ANSWERED,
        (Message("developer", "Reminder6 now."), _user(4)),
    ),
    Shape("tool_foreign", "tool result, another's assistant message, user", _CALLED, (_result(2), _FOREIGN, _user(4))),
    Shape("foreign", "user, another's assistant message, user", _ANSWERED, (_user(4), _FOREIGN, _user(5))),
    Shape("empty", "nothing appended", _ANSWERED, ()),
    Shape(f"{CUT}_user", "user after a turn cut by the token limit", _ANSWERED, (_user(4),)),
    Shape("think_tool", "tool result after reasoning and call", _WHY_CALLED, (_result(2),)),
    Shape(
        "think_tools",
        "the same, a second time",
        (*_WHY_CALLED, _result(2), _said(3, why=True, text=False, calls=1)),
        (_result(3),),
    ),
    Shape("think_user", "user after reasoning and answer", (*_ASKED, _said(2, why=True)), (_user(4),)),
    Shape(
        "think_tool_user",
        "user after reasoning, call, result, reasoning, answer",
        (*_WHY_CALLED, _result(2), _said(3, why=True)),
        (_user(4),),
    ),
    Shape("think_tool_then_user", "reasoning and call; result and user", _WHY_CALLED, (_result(2), _user(4))),
)
BY_NAME = {shape.name: shape for shape in SHAPES}


def shapes_like(tail: Sequence[Message], *, cut: bool = False, reasoning: bool = False) -> tuple[str, ...]:
    """Names of the shapes that stand for a real tail; what holds for the worst of them is taken to hold for it.

    ``reasoning`` adds the shapes in which earlier turns reasoned: they differ only where the words of earlier turns
    matter (codec policy ``template``).
    """
    roles = [message.role for message in tail]
    results = roles.count("tool")
    after_call = roles[:1] == ["tool"]
    names: list[str] = []
    if not tail:
        names.append("empty")
    if after_call:
        names += ["tool", "tool_again"] + (["tools", "tools_swapped"] if results > 1 else [])
    if "assistant" in roles:
        names.append("tool_foreign" if after_call else "foreign")
    if "system" in roles:
        names += ["tool_system" if after_call else "system", "system_new"]
    if "developer" in roles:
        names.append("developer")
    users = roles.count("user")
    if users:
        names.append("tool_user" if after_call else "user")
    if users > 1 and "assistant" not in roles:
        names.append("tool_users" if after_call else "users")
    if cut:
        names.append(f"{CUT}_user")
    if reasoning:
        names += ["text_tool", "think_tool", "think_tools"] if after_call else ["think_user", "think_tool_user"]
        names += ["think_tool_then_user"] if after_call and users else []
    return tuple(names)
