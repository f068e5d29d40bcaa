"""Reading Google's ``generateContent`` and ``countTokens`` requests.

Requests are protobuf messages in JSON: a field may be spelled in camel or in snake case, null means absent, and a
single message may stand where a list of them belongs (all three are in the public documents' own examples).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from drivetrain.gateway.dialects.arguments import arguments_of
from drivetrain.gateway.dialects.base import ImageRule, Memory
from drivetrain.gateway.dialects.google_genai.schema import camel, json_schema
from drivetrain.gateway.dialects.surrogates import replace_lone_surrogates_in
from drivetrain.gateway.memo import Known, KnownMessage, MessageMemo
from drivetrain.gateway.refusal import Refusal
from drivetrain.messages import Message, RequestedSampling, ToolCall, ToolSpec

_encode = msgspec.json.encode
_SYSTEM, _CONTENT, _RUN = "google system", "google content", "google run"
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])

_OPAQUE = frozenset(
    {"args", "response", "parameters", "parametersJsonSchema", "responseSchema", "responseJsonSchema", "partMetadata"}
)
_READ_PARTS = frozenset({"text", "thought", "functionCall", "functionResponse"})
_MEDIA_PARTS = frozenset({"inlineData", "fileData"})
_IGNORED_PARTS = frozenset({"thoughtSignature", "partMetadata", "videoMetadata", "mediaResolution"})

Fields = Mapping[str, msgspec.Raw]
T = TypeVar("T")


class _FunctionCall(msgspec.Struct):
    name: str
    id: str = ""
    args: dict[str, Any] = {}


class _FunctionResponse(msgspec.Struct):
    name: str = ""
    id: str = ""
    response: dict[str, Any] = {}
    parts: list[Any] = []


class _Part(msgspec.Struct, rename="camel"):
    text: str = ""
    thought: bool = False
    function_call: _FunctionCall | None = None
    function_response: _FunctionResponse | None = None


class _Content(msgspec.Struct):
    role: Literal["user", "model", "function"] = "user"
    parts: list[dict[str, Any]] | dict[str, Any] = []


class _Declaration(msgspec.Struct, rename="camel"):
    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None


class _CallingConfig(msgspec.Struct, frozen=True):
    mode: str = "AUTO"


class _ToolConfig(msgspec.Struct, rename="camel"):
    function_calling_config: _CallingConfig = _CallingConfig()


class _GenerationConfig(msgspec.Struct, rename="camel"):
    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    max_output_tokens: int | None = None
    stop_sequences: list[str] = []
    seed: int | None = None
    candidate_count: int | None = None
    response_mime_type: str = ""
    response_schema: Any = None
    response_json_schema: Any = None
    response_modalities: list[str] = []
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_logprobs: bool | None = None
    thinking_config: dict[str, Any] | None = None


def read_fields(body: bytes) -> Fields:
    """Top-level fields in camel case; those of ``generateContentRequest`` when ``countTokens`` wraps them.

    Raises:
        msgspec.MsgspecError: no JSON object.
    """
    if b"\\ud" in body or b"\\uD" in body:
        body = replace_lone_surrogates_in(body)
    named = {camel(name): raw for name, raw in _fields_decoder.decode(body).items()}
    fields = {name: raw for name, raw in named.items() if bytes(raw) != b"null"}
    wrapped = fields.get("generateContentRequest")
    return fields if wrapped is None else read_fields(bytes(wrapped))


def read_messages(fields: Fields, memory: Memory) -> tuple[list[Message], list[bytes]]:
    """Messages and their tolerant keys: the system instruction, then ``contents``.

    Contents of the model in a row are one reply: a client that streams keeps one for each chunk.

    Raises:
        Refusal: malformed, or holds what the model cannot read.
    """
    memo, images = memory.memo, memory.images
    known: list[KnownMessage] = []
    instruction = fields.get("systemInstruction")
    if instruction is not None:
        raw = bytes(instruction)
        found = memo.get(_SYSTEM, raw) or memo.put(_SYSTEM, raw, [_instruction(raw, images)])
        known += [one for one in found if one.message.content]
    slices = [bytes(raw) for raw in _as_list(fields.get("contents"))]
    if not slices:
        raise Refusal("invalid_request", "contents is not specified.", param="contents")
    read = [
        (raw, memo.get(_CONTENT, raw) or memo.put(_CONTENT, raw, _content(raw, index, images)))
        for index, raw in enumerate(slices)
    ]
    for of_model, group in itertools.groupby(read, key=lambda one: one[1][0].message.role == "assistant"):
        run = list(group)
        known += _one_reply(run, memo) if of_model else [one for _, found in run for one in found]
    return _linked([one.message for one in known]), [one.key for one in known]


def read_tools(fields: Fields) -> tuple[tuple[ToolSpec, ...], list[str]]:
    """Declared functions, and the names of the tools that run on Google's side, which nobody serves here.

    Raises:
        Refusal: malformed.
    """
    tools: list[ToolSpec] = []
    dropped: list[str] = []
    for index, raw in enumerate(_as_list(fields.get("tools"))):
        place = f"tools[{index}]"
        for kind, value in _convert(_proto(msgspec.json.decode(raw)), dict[str, Any], place).items():
            if kind == "functionDeclarations":
                declared = _convert(value if isinstance(value, list) else [value], list[_Declaration], place)
                tools += [_tool(one) for one in declared]
            else:
                dropped.append(kind)
    return tuple(tools), dropped


def read_sampling(fields: Fields, dropped_tools: Sequence[str]) -> RequestedSampling:
    """What the harness asked for.

    Raises:
        Refusal: malformed, or nothing that is served here. Whether a knob may be turned is for the session's rules.
    """
    config = _read(fields, "generationConfig", _GenerationConfig) or _GenerationConfig()
    choice = _read(fields, "toolConfig", _ToolConfig)
    _refuse_unserved(fields, config)
    extra = {
        "top_k": config.top_k,
        "presence_penalty": config.presence_penalty,
        "frequency_penalty": config.frequency_penalty,
        "n": config.candidate_count,
        "logprobs": config.response_logprobs,
        "response_format": _response_format(config),
        "tool_choice": choice.function_calling_config.mode.lower() if choice else None,
        "thinking_config": config.thinking_config,
        "dropped_tools": list(dropped_tools) or None,
    }
    return RequestedSampling(
        temperature=config.temperature,
        top_p=config.top_p,
        max_tokens=config.max_output_tokens,
        seed=config.seed,
        stop=tuple(config.stop_sequences),
        extra={name: value for name, value in extra.items() if value is not None},
    )


def _response_format(config: _GenerationConfig) -> dict[str, Any] | None:
    """The structure asked for, in the words of the chat API, which engines know."""
    schema = config.response_json_schema
    if schema is None and config.response_schema is not None:
        schema = json_schema(config.response_schema)
    if schema is not None:
        return {"type": "json_schema", "json_schema": {"name": "response", "schema": schema}}
    kinds = {"": None, "text/plain": None, "application/json": "json_object"}
    kind = kinds.get(config.response_mime_type, config.response_mime_type)
    return None if kind is None else {"type": kind}


def _refuse_unserved(fields: Fields, config: _GenerationConfig) -> None:
    if config.max_output_tokens is not None and config.max_output_tokens < 1:
        raise Refusal(
            "invalid_request",
            f"maxOutputTokens is {config.max_output_tokens}; it must be positive.",
            param="generationConfig.maxOutputTokens",
        )
    unserved = {
        "generationConfig.responseModalities": any(one.upper() != "TEXT" for one in config.response_modalities),
        "cachedContent": "cachedContent" in fields,
    }
    for field, asked in unserved.items():
        if asked:
            raise Refusal(
                "unsupported",
                f"{field} is not supported: the whole prompt is read, and text is answered.",
                fix=f"Leave {field} out.",
                param=field,
            )


def _instruction(raw: bytes, images: ImageRule) -> Message:
    value = msgspec.json.decode(raw)
    if isinstance(value, str):
        return Message("system", value)
    parts = _parts(_convert(_proto(value), _Content, "systemInstruction"), "systemInstruction", images)
    for index, part in enumerate(parts):
        if part.function_call or part.function_response:
            raise _misplaced(f"systemInstruction.parts[{index}]", "a function", "a system instruction")
    return Message("system", "".join(part.text for part in parts))


def _content(raw: bytes, index: int, images: ImageRule) -> list[Message]:
    place = f"contents[{index}]"
    content = _convert(_proto(msgspec.json.decode(raw)), _Content, place)
    parts = _parts(content, place, images)
    return [_reply(parts, place)] if content.role == "model" else _turn(parts, place)


def _reply(parts: Sequence[_Part], place: str) -> Message:
    for index, part in enumerate(parts):
        if part.function_response:
            raise _misplaced(f"{place}.parts[{index}]", "a functionResponse", "the model")
    calls = [part.function_call for part in parts if part.function_call]
    return Message(
        "assistant",
        "".join(part.text for part in parts if not part.thought),
        "".join(part.text for part in parts if part.thought),
        tuple(ToolCall(call.id, call.name, arguments_of(_encode(call.args), place)) for call in calls),
    )


def _turn(parts: Sequence[_Part], place: str) -> list[Message]:
    """Messages of a user's content: a tool message for each result, a user message for each run of text."""
    messages: list[Message] = []
    for index, part in enumerate(parts):
        if part.function_call or part.thought:
            raise _misplaced(f"{place}.parts[{index}]", "a functionCall or thought", "a user")
        if part.function_response:
            messages.append(_result(part.function_response, f"{place}.parts[{index}]"))
        elif messages and messages[-1].role == "user":
            messages[-1] = Message("user", messages[-1].content + part.text)
        else:
            messages.append(Message("user", part.text))
    return messages or [Message("user")]


def _result(result: _FunctionResponse, place: str) -> Message:
    if result.parts:
        raise Refusal(
            "unsupported",
            f"{place}.functionResponse holds media; this model reads text only.",
            fix="Put text into its response.",
            param=place,
        )
    return Message("tool", result_text(result.response), tool_call_id=result.id, name=result.name)


def result_text(response: Mapping[str, Any]) -> str:
    """What the model reads of a function's response object.

    ``{"output": X}`` and ``{"result": X}`` read as X, ``{"error": X}`` as ``Error: X`` (as X where its first line says
    that already). X is text as it is, anything else compact JSON. Every other object reads as compact JSON of the
    whole, keys in the order they came.
    """
    if len(response) != 1:
        return _encode(response).decode() if response else ""
    ((key, value),) = response.items()
    if key not in ("output", "result", "error"):
        return _encode(response).decode()
    text = value if isinstance(value, str) else _encode(value).decode()
    if key != "error" or "error" in text.lstrip().partition("\n")[0].lower():
        return text
    return f"Error: {text}"


def _parts(content: _Content, place: str, images: ImageRule) -> list[_Part]:
    given = content.parts if isinstance(content.parts, list) else [content.parts]
    read = [_readable(part, f"{place}.parts[{index}]", images) for index, part in enumerate(given)]
    return _convert(read, list[_Part], f"{place}.parts")


def _readable(part: dict[str, Any], place: str, images: ImageRule) -> dict[str, Any]:
    """The part, or text in place of a picture where the session allows it."""
    for kind in part:
        if kind in _MEDIA_PARTS and images == "placeholder":
            mime = str(_convert(part[kind], dict[str, Any], f"{place}.{kind}").get("mimeType", ""))
            what = "image" if mime.startswith("image/") else "document"
            return {"text": f"[{what} left out: this model reads text only]"}
        if kind not in _READ_PARTS and kind not in _IGNORED_PARTS:
            raise Refusal(
                "unsupported",
                f"{place} holds {kind}; this model reads text only.",
                fix="Send text, functionCall and functionResponse parts.",
                param=f"{place}.{kind}",
            )
    return part


def _one_reply(run: Sequence[tuple[bytes, Known]], memo: MessageMemo) -> Known:
    if len(run) == 1:
        return run[0][1]
    raw = b",".join(part for part, _ in run)
    return memo.get(_RUN, raw) or memo.put(_RUN, raw, [_joined([one.message for _, found in run for one in found])])


def _joined(parts: Sequence[Message]) -> Message:
    return Message(
        "assistant",
        "".join(part.content for part in parts),
        "".join(part.reasoning for part in parts),
        tuple(call for part in parts for call in part.tool_calls),
    )


def _linked(messages: Iterable[Message]) -> list[Message]:
    """Give calls without an id one, and results without an id that of their call: by name, else by order.

    A result whose call is known needs no name of its own. Ids and names of results are in no tolerant key.
    """
    linked: list[Message] = []
    waiting: list[ToolCall] = []
    for message in messages:
        if message.role == "tool":
            message, waiting = _link_result(message, waiting)
        elif message.tool_calls:
            calls = tuple(
                call if call.id else msgspec.structs.replace(call, id=f"call_{len(linked)}_{index}")
                for index, call in enumerate(message.tool_calls)
            )
            message = msgspec.structs.replace(message, tool_calls=calls)
            waiting = list(calls)
        linked.append(message)
    return linked


def _link_result(message: Message, waiting: list[ToolCall]) -> tuple[Message, list[ToolCall]]:
    if message.tool_call_id:
        fits = [call for call in waiting if call.id == message.tool_call_id]
    else:
        fits = [call for call in waiting if call.name == message.name] or waiting
    if not fits:
        return message, waiting
    answered = fits[0]
    message = msgspec.structs.replace(message, tool_call_id=answered.id, name="")
    return message, [call for call in waiting if call is not answered]


def _tool(declared: _Declaration) -> ToolSpec:
    schema = declared.parameters_json_schema
    if schema is None:
        schema = json_schema(declared.parameters or {})
    return ToolSpec(declared.name, declared.description, schema)


def _as_list(raw: msgspec.Raw | None) -> list[msgspec.Raw]:
    if raw is None:
        return []
    return _list_decoder.decode(raw) if bytes(raw).lstrip()[:1] == b"[" else [raw]


def _read(fields: Fields, name: str, kind: type[T]) -> T | None:
    raw = fields.get(name)
    return None if raw is None else _convert(_proto(msgspec.json.decode(raw)), kind, name)


def _convert(value: Any, kind: type[T], place: str) -> T:
    try:
        return msgspec.convert(value, kind, strict=False)  # protobuf writes 64-bit integers as text
    except msgspec.ValidationError as error:
        raise Refusal("invalid_request", f"invalid value at {place}: {error}.", param=place) from error


def _proto(value: Any) -> Any:
    """Field names in camel case, null fields absent; what is not a message of the API is left alone."""
    if isinstance(value, list):
        return [_proto(item) for item in value]
    if not isinstance(value, dict):
        return value
    named = ((camel(name), item) for name, item in value.items() if item is not None)
    return {name: item if name in _OPAQUE else _proto(item) for name, item in named}


def _misplaced(place: str, what: str, whose: str) -> Refusal:
    return Refusal("invalid_request", f"{place} is {what} in a content of {whose}.", param=place)
