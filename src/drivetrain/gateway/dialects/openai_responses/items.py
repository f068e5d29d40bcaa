"""Input items of the Responses API, put together to messages again.

A reply leaves as several items (reasoning, message, one per call) and comes back as several items, sometimes with
the outputs between the calls. Each item is decoded once, to a *part*: a message of its own, remembered by its raw JSON.
The parts of one reply are then joined to one assistant message. The ``name`` of an assistant part is the id that its
item came with; joining drops it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from drivetrain.gateway.dialects.base import Memory
from drivetrain.gateway.dialects.openai_responses.ids import ItemId, read_item_id, read_seal
from drivetrain.gateway.dialects.openai_responses.tools import custom_arguments, offered_name
from drivetrain.gateway.memo import KnownMessage
from drivetrain.gateway.refusal import Refusal
from drivetrain.messages import Message, ToolCall
from drivetrain.trace.watermark import read_call_id

_ITEM, _RUN = "responses item", "responses run"
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_MEDIA_PARTS = ("input_image", "input_file", "input_audio")


class _Part(msgspec.Struct):
    type: str
    text: str = ""
    refusal: str = ""


class _Head(msgspec.Struct):
    type: str = "message"


class _Said(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Part] | None = None
    id: str | None = None


class _FunctionCall(msgspec.Struct):
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    id: str | None = None


class _CustomCall(msgspec.Struct):
    call_id: str
    name: str
    input: str
    namespace: str | None = None
    id: str | None = None


class _Output(msgspec.Struct):
    call_id: str
    output: str | list[_Part] | None = None


class _Reasoning(msgspec.Struct):
    summary: list[_Part] | None = None
    content: list[_Part] | None = None
    encrypted_content: str | None = None
    id: str | None = None


class _Reference(msgspec.Struct):
    id: str


def read_items(raw: Sequence[msgspec.Raw], memory: Memory, *, behind: Message | None = None) -> list[KnownMessage]:
    """The messages of an item list.

    Args:
        raw: the items.
        memory: what was decoded before, and the replies an item may refer to.
        behind: the reply that stands before the first item, whose calls it may answer.

    Raises:
        Refusal: an item is malformed, of a type that is not served, or refers to something unknown.
    """
    reply = _Reply(behind.tool_calls) if behind is not None else None
    groups: list[_Reply | KnownMessage] = [] if reply is None else [reply]
    for index, slice_ in enumerate(map(bytes, raw)):
        for part in _parts_of(slice_, index, memory):
            role = part.message.role
            if role == "tool" and reply is not None:
                reply.answers.append(part)
            elif role == "assistant":
                if reply is None or not reply.takes(part.message):
                    reply = _Reply()
                    groups.append(reply)
                reply.add(slice_, part.message)
            else:
                reply = None
                groups.append(part)
    known: list[KnownMessage] = []
    for group in groups:
        known += group.messages(memory) if isinstance(group, _Reply) else (group,)
    return known


class _Reply:
    """One reply being put together, and the outputs that answer its calls."""

    def __init__(self, calls: Sequence[ToolCall] = ()) -> None:
        self.answers: list[KnownMessage] = []
        self._slices: list[bytes] = []
        self._parts: list[Message] = []
        self._order = {call.id: index for index, call in enumerate(calls)}
        self._turn = next((turn for call in calls if (turn := _turn_of(call))), "")
        self._id = ""

    def takes(self, part: Message) -> bool:
        """Whether a part belongs to this reply: by the turn in its call id, by its item id, else by order.

        Replies are served as reasoning, text, calls; without ids, what steps back in that order or comes after an
        output is another reply.
        """
        call = part.tool_calls[0] if part.tool_calls else None
        turn = _turn_of(call) if call else ""
        if (call and call.id in self._order) or not self._parts:
            return False
        if turn and self._turn:
            return turn == self._turn
        reply_id = _reply_id_of(part)
        if reply_id and self._id:
            return reply_id == self._id
        if self.answers:
            return False
        if call:
            return not self._order or turn == self._turn
        return not self._order and all(said.reasoning for said in self._parts)

    def add(self, slice_: bytes, part: Message) -> None:
        """Take a part; ``slice_`` is the item it came from."""
        self._slices.append(slice_)
        self._parts.append(part)
        for call in part.tool_calls:
            self._order[call.id] = len(self._order)
            self._turn = self._turn or _turn_of(call)
        self._id = self._id or _reply_id_of(part)

    def messages(self, memory: Memory) -> list[KnownMessage]:
        """The assistant message, then the outputs in the order of its calls."""
        known: list[KnownMessage] = []
        if self._parts:
            run = b"".join(self._slices)
            known += memory.memo.get(_RUN, run) or memory.memo.put(_RUN, run, [self._joined()])
        last = len(self._order)
        return known + sorted(self.answers, key=lambda answer: self._order.get(answer.message.tool_call_id, last))

    def _joined(self) -> Message:
        return Message(
            "assistant",
            content="".join(part.content for part in self._parts),
            reasoning="\n\n".join(part.reasoning for part in self._parts if part.reasoning),
            tool_calls=tuple(call for part in self._parts for call in part.tool_calls),
        )


def _turn_of(call: ToolCall) -> str:
    """The session and turn that a call id of ours names, else ``""``."""
    tag = call.id.removeprefix("call_")[:8]
    watermark = read_call_id(call.id, tag)
    return f"{tag}:{watermark[0]}" if watermark else ""


def _reply_id_of(part: Message) -> str:
    found = read_item_id(part.name)
    return found.reply_id if found else ""


def _parts_of(slice_: bytes, index: int, memory: Memory) -> Sequence[KnownMessage]:
    known = memory.memo.get(_ITEM, slice_)
    if known is not None:
        return known
    try:
        kind = _head_decoder.decode(slice_).type
        read = _READERS.get(kind)
        if read is None:
            raise Refusal(
                "invalid_request",
                f"input[{index}] is of type {kind!r}, which is not served here.",
                fix=f"Send items of these types: {', '.join(sorted(_READERS))}.",
                param=f"input[{index}].type",
            )
        parts = read(slice_, f"input[{index}]", memory)
    except msgspec.ValidationError as error:
        raise Refusal("invalid_request", f"input[{index}]: {error}.", param=f"input[{index}]") from error
    return memory.memo.put(_ITEM, slice_, parts)


def _read_message(slice_: bytes, place: str, memory: Memory) -> list[Message]:
    item = _said_decoder.decode(slice_)
    name = (item.id or "") if item.role == "assistant" else ""
    return [Message(item.role, _text(item.content, f"{place}.content", memory), name=name)]


def _read_function_call(slice_: bytes, place: str, memory: Memory) -> list[Message]:
    del place, memory
    item = _function_call_decoder.decode(slice_)
    call = ToolCall(item.call_id, offered_name(item.name, item.namespace or ""), item.arguments)
    return [Message("assistant", tool_calls=(call,), name=item.id or "")]


def _read_custom_call(slice_: bytes, place: str, memory: Memory) -> list[Message]:
    del place, memory
    item = _custom_call_decoder.decode(slice_)
    call = ToolCall(item.call_id, offered_name(item.name, item.namespace or ""), custom_arguments(item.input))
    return [Message("assistant", tool_calls=(call,), name=item.id or "")]


def _read_output(slice_: bytes, place: str, memory: Memory) -> list[Message]:
    item = _output_decoder.decode(slice_)
    return [Message("tool", _text(item.output, f"{place}.output", memory), tool_call_id=item.call_id)]


def _read_reasoning(slice_: bytes, place: str, memory: Memory) -> list[Message]:
    """Raw reasoning where it is given, else the summary, else what our seal names; a foreign seal says nothing."""
    item = _reasoning_decoder.decode(slice_)
    text = _text(item.content, f"{place}.content", memory)
    text = text or "\n\n".join(part.text for part in item.summary or () if part.text)
    if not text and item.encrypted_content:
        reply_id = read_seal(item.encrypted_content)
        served = memory.conversation(reply_id) if reply_id else None
        text = served[-1].reasoning if served else ""
    return [Message("assistant", reasoning=text, name=item.id or "")] if text else []


def _read_reference(slice_: bytes, place: str, memory: Memory) -> list[Message]:
    item = _reference_decoder.decode(slice_)
    name = read_item_id(item.id)
    served = memory.conversation(name.reply_id) if name else None
    part = _piece(served[-1], name) if served and name else None
    if part is None:
        raise Refusal(
            "invalid_request",
            f"{place}: item {item.id!r} was not served in this session.",
            fix="Send the item itself.",
            param=f"{place}.id",
        )
    return [msgspec.structs.replace(part, name=item.id)]


def _piece(reply: Message, name: ItemId) -> Message | None:
    if name.kind == "rs":
        return Message("assistant", reasoning=reply.reasoning) if reply.reasoning else None
    if name.kind == "msg":
        return Message("assistant", reply.content)
    if name.number >= len(reply.tool_calls):
        return None
    return Message("assistant", tool_calls=(reply.tool_calls[name.number],))


def _text(content: str | list[_Part] | None, place: str, memory: Memory) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_part_text(part, f"{place}[{index}]", memory) for index, part in enumerate(content))


def _part_text(part: _Part, place: str, memory: Memory) -> str:
    if part.type == "refusal":
        return part.refusal
    if part.type in _TEXT_PARTS:
        return part.text
    if part.type in _MEDIA_PARTS and memory.images == "placeholder":
        return f"[{part.type.removeprefix('input_')} left out: this model reads text only]"
    raise Refusal(
        "unsupported",
        f"{place} is of type {part.type!r}; this model reads text only.",
        fix="Send text parts, or open the session with images='placeholder'.",
        param=place,
    )


_head_decoder = msgspec.json.Decoder(_Head)
_said_decoder = msgspec.json.Decoder(_Said)
_function_call_decoder = msgspec.json.Decoder(_FunctionCall)
_custom_call_decoder = msgspec.json.Decoder(_CustomCall)
_output_decoder = msgspec.json.Decoder(_Output)
_reasoning_decoder = msgspec.json.Decoder(_Reasoning)
_reference_decoder = msgspec.json.Decoder(_Reference)

_READERS: dict[str, Callable[[bytes, str, Memory], list[Message]]] = {
    "message": _read_message,
    "function_call": _read_function_call,
    "function_call_output": _read_output,
    "custom_tool_call": _read_custom_call,
    "custom_tool_call_output": _read_output,
    "reasoning": _read_reasoning,
    "item_reference": _read_reference,
}
