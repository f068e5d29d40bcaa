"""Dialect-neutral vocabulary of one LLM call.

Every dialect decodes into :class:`Call` and encodes from :class:`Reply`; nothing behind the dialects knows which API
the harness speaks.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Role = Literal["system", "developer", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "tool_calls"]


class ToolCall(msgspec.Struct, frozen=True):
    """One tool call of an assistant message.

    ``arguments`` is JSON *text*: as sampled when we serve it, as re-serialised by the harness when it comes back.
    """

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a conversation.

    ``content`` is the text of all text parts joined; ``None``, ``""`` and a missing field are the same message
    (design section 4, tolerant key). ``tool_call_id`` names the call that a ``tool`` message answers.
    """

    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool the harness offers to the policy; ``parameters`` is its JSON schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class RequestedSampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the harness asked for; recorded beside what was used, never silently obeyed."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    extra: dict[str, Any] = {}


class Call(msgspec.Struct, frozen=True):
    """One decoded request of a harness. ``keys`` are the tolerant keys of ``messages`` where the dialect knows them.

    ``origin`` holds the identity headers that came with it (:mod:`drivetrain.trace.origin`), ``user_agent`` what the
    client calls itself; neither holds a key. ``wire`` is the dialect's
    own: what encoding the reply needs of the request; nobody else reads it and it is not recorded.
    """

    dialect: str
    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    stream: bool = False
    stream_usage: bool = False
    requested: RequestedSampling = RequestedSampling()
    keys: tuple[bytes, ...] = ()
    origin: dict[str, str] = {}
    user_agent: str = ""
    wire: dict[str, Any] = {}


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one call, as billed to the harness."""

    prompt_tokens: int
    completion_tokens: int


class Reply(msgspec.Struct, frozen=True):
    """What the policy said, ready to be encoded in any dialect. Carries no token ids (design section 5)."""

    id: str
    model: str
    created: int
    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason
    usage: Usage

    def as_message(self) -> Message:
        """The assistant message that a harness makes of this reply."""
        return Message("assistant", self.content, self.reasoning, self.tool_calls)
