"""Anthropic content blocks to messages (public API reference, "Messages"; types of the official SDK).

How a message becomes what the policy reads:

* **system** and **user** text blocks are joined by a line break, so that a volatile line that is a block of its own
  (Claude Code's billing line, case row C7) can be taken out without a trace; **assistant** text blocks are joined by
  nothing: they are pieces of one text.
* A **user** message with tool results becomes one ``tool`` message per result, in their order, and then one ``user``
  message with all its text. Text in front of a result moves behind the last one: the API wants results first, and no
  chat template says anything between a call and its result.
* A **failed result** (``is_error``) says so in its first line; ``Error: `` is put in front where it does not.
* **thinking** is reasoning; its signature and **redacted_thinking** mean nothing here.
* A **tool_reference** becomes a short text, plain-text documents and search results their text. Pictures and other
  documents follow the session's rule for images. What only Anthropic's servers produce or read is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from drivetrain.gateway.dialects.arguments import arguments_of
from drivetrain.gateway.dialects.base import ImageRule
from drivetrain.gateway.refusal import Refusal
from drivetrain.messages import Message, ToolCall


class _Block(msgspec.Struct):
    """Any block: the fields of those that are understood; fields whose type depends on the block stay raw."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"{}")
    tool_use_id: str | None = None
    content: msgspec.Raw = msgspec.Raw(b"null")
    is_error: bool | None = None
    tool_name: str | None = None
    source: msgspec.Raw = msgspec.Raw(b"null")
    title: Any = None
    context: Any = None


_Content = str | list[_Block] | None


class _Message(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: _Content


class _Source(msgspec.Struct):
    type: str = ""
    data: str = ""
    content: _Content = None


_message_decoder = msgspec.json.Decoder(_Message)
_content_decoder = msgspec.json.Decoder(_Content)
_source_decoder = msgspec.json.Decoder(_Source)


def read_system(raw: bytes, images: ImageRule) -> list[Message]:
    """The ``system`` field of a request: one message, or none when it is empty.

    Raises:
        Refusal: it holds what cannot be shown to the policy.
        msgspec.DecodeError: it is neither text nor a list of blocks.
    """
    text = _text(_content_decoder.decode(raw), "system", images)
    return [Message("system", text)] if text else []


def read_message(raw: bytes, index: int, images: ImageRule) -> list[Message]:
    """One entry of ``messages`` as the messages the policy reads; never none.

    Args:
        raw: its JSON.
        index: its place, for errors.
        images: the session's rule.

    Raises:
        Refusal: it holds what cannot be shown to the policy, or a block in the wrong role.
        msgspec.DecodeError: it is no message.
    """
    message = _message_decoder.decode(raw)
    place = f"messages[{index}].content"
    if message.role == "system":
        return [Message("system", _text(message.content, place, images))]
    if message.content is None or isinstance(message.content, str):
        return [Message(message.role, message.content or "")]
    if message.role == "assistant":
        return [_assistant(message.content, place, images)]
    return _user(message.content, place, images)


def _assistant(blocks: Sequence[_Block], place: str, images: ImageRule) -> Message:
    text: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    for at, block in enumerate(blocks):
        here = f"{place}[{at}]"
        if block.type == "thinking":
            reasoning.append(block.thinking or "")
        elif block.type == "tool_use":
            id_, name = _required(block.id, here, "id"), _required(block.name, here, "name")
            calls.append(ToolCall(id_, name, arguments_of(bytes(block.input), f"{here}.input")))
        elif block.type != "redacted_thinking":
            text.append(_block_text(block, here, images))
    return Message("assistant", "".join(text), "\n".join(reasoning), tuple(calls))


def _user(blocks: Sequence[_Block], place: str, images: ImageRule) -> list[Message]:
    results: list[Message] = []
    text: list[str] = []
    for at, block in enumerate(blocks):
        here = f"{place}[{at}]"
        if block.type == "tool_result":
            id_ = _required(block.tool_use_id, here, "tool_use_id")
            results.append(Message("tool", _result(block, f"{here}.content", images), tool_call_id=id_))
        else:
            text.append(_block_text(block, here, images))
    if text or not results:
        results.append(Message("user", "\n".join(text)))
    return results


def _result(block: _Block, place: str, images: ImageRule) -> str:
    text = _text(_content_decoder.decode(block.content), place, images)
    if not block.is_error or "error" in text.lstrip().partition("\n")[0].lower():
        return text
    return f"Error: {text}"


def _text(content: _Content, place: str, images: ImageRule) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_block_text(block, f"{place}[{at}]", images) for at, block in enumerate(content))


def _block_text(block: _Block, place: str, images: ImageRule) -> str:
    """What a block reads like.

    Raises:
        Refusal: nothing, or only Anthropic's servers could say.
    """
    match block.type:
        case "text":
            return _required(block.text, place, "text")
        case "tool_reference":
            return f"[The tool {block.tool_name} is available now.]"
        case "search_result":
            inner = _text(_content_decoder.decode(block.content), f"{place}.content", images)
            return _lines(block.title, msgspec.json.decode(block.source), inner)
        case "document":
            return _document(block, place, images)
        case "image":
            return _picture(block, place, images)
        case "thinking" | "redacted_thinking" | "tool_use" | "tool_result" as kind:
            raise Refusal("invalid_request", f"{place}: a {kind} block cannot stand here.", param=place)
    raise Refusal(
        "unsupported",
        f"{place}: blocks of type {block.type!r} are not supported; this model has client tools and text only.",
        fix="Switch the server-side feature off that produced it.",
        param=place,
    )


def _document(block: _Block, place: str, images: ImageRule) -> str:
    source = _source_decoder.decode(block.source)
    if source.type == "text":
        return _lines(block.title, block.context, source.data)
    if source.type == "content":
        return _lines(block.title, block.context, _text(source.content, f"{place}.source.content", images))
    return _picture(block, place, images)


def _picture(block: _Block, place: str, images: ImageRule) -> str:
    if images == "placeholder":
        return f"[{block.type} left out: this model reads text only]"
    raise Refusal(
        "unsupported",
        f"{place}: a block of type {block.type!r}; this model reads text only.",
        fix="Send text, or open the session with images='placeholder'.",
        param=place,
    )


def _lines(*parts: Any) -> str:
    return "\n".join(part for part in parts if isinstance(part, str) and part)


def _required(value: str | None, place: str, field: str) -> str:
    if value is None:
        raise Refusal("invalid_request", f"{place}.{field}: field required.", param=f"{place}.{field}")
    return value
