"""Where the fuzzed requests of each API come from: conversations that are served, and whatever its SDK can spell."""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random
from typing import Any

import anthropic.types as anthropic_types
import msgspec
from google.genai import types as google_types
from openai.types import chat as chat_types
from openai.types.responses import response_create_params

from tests.abuse.from_types import Maker

_SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
_CHAT_TOOL = {"type": "function", "function": {"name": "bash", "description": "run", "parameters": _SCHEMA}}
_COMMON = frozenset({"messages", "contents", "input", "tools", "system", "role", "parts", "content", "text"})


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """One API. ``served`` are bodies that get a reply; ``made`` makes one from the SDK's types; ``paths`` by how often
    they are asked; ``is_error`` says whether a value is an error body of this API with this status."""

    name: str
    paths: tuple[str, ...]
    key_header: str
    served: tuple[dict[str, Any], ...]
    made: Callable[[Random], dict[str, Any]]
    is_error: Callable[[Any, int], bool]

    def body(self, chance: Random) -> dict[str, Any]:
        """A body, valid or nearly."""
        if chance.random() < 0.6:
            return copy.deepcopy(chance.choice(self.served))
        return self.made(chance)


def _made_chat(chance: Random) -> dict[str, Any]:
    return {"model": "m", **Maker(chance, _COMMON).value(chat_types.completion_create_params.CompletionCreateParams)}


def _made_responses(chance: Random) -> dict[str, Any]:
    return {"model": "m", **Maker(chance, _COMMON).value(response_create_params.ResponseCreateParams)}


def _made_anthropic(chance: Random) -> dict[str, Any]:
    made = Maker(chance, _COMMON).value(anthropic_types.message_create_params.MessageCreateParams)
    return {**made, "model": "m", "max_tokens": 64}


def _made_google(chance: Random) -> dict[str, Any]:
    maker = Maker(chance, _COMMON)
    body: dict[str, Any] = {"contents": [maker.value(google_types.Content, 1) for _ in range(chance.choice((1, 1, 2)))]}
    if chance.random() < 0.4:
        body["systemInstruction"] = maker.value(google_types.Content, 1)
    if chance.random() < 0.4:
        body["tools"] = [maker.value(google_types.Tool, 1)]
    if chance.random() < 0.4:
        body["generationConfig"] = maker.value(google_types.GenerationConfig, 1)
    if chance.random() < 0.2:
        body["toolConfig"] = maker.value(google_types.ToolConfig, 1)
    return body


def _is_openai_error(value: Any, status: int) -> bool:
    error = value["error"]
    right = {"message", "type", "param", "code"} == set(error) and isinstance(error["message"], str)
    return right and error["type"] == ("server_error" if status >= 500 else "invalid_request_error")


def _is_anthropic_error(value: Any, status: int) -> bool:
    error = value["error"]
    return value["type"] == "error" and isinstance(error["type"], str) and isinstance(error["message"], str)


def _is_google_error(value: Any, status: int) -> bool:
    error = value["error"]
    return error["code"] == status and isinstance(error["status"], str) and isinstance(error["message"], str)


def _call(id_: str, arguments: str = '{"command":"ls"}') -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": "bash", "arguments": arguments}}


CHAT = Api(
    name="openai_chat",
    paths=("/v1/chat/completions",),
    key_header="Authorization",
    served=(
        {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "You are."},
                {"role": "user", "content": [{"type": "text", "text": "look"}]},
                {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [_call("call_1")]},
                {"role": "tool", "tool_call_id": "call_1", "content": "a.py"},
                {"role": "user", "content": "and now?"},
            ],
            "tools": [_CHAT_TOOL],
            "temperature": 0.5,
            "max_tokens": 64,
            "seed": 7,
            "stop": ["\n"],
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        {
            "model": "m",
            "messages": [{"role": "developer", "content": "x"}, {"role": "user", "content": "y", "name": "z"}],
            "tools": [_CHAT_TOOL],
            "tool_choice": "auto",
            "top_p": 0.9,
            "frequency_penalty": 0.1,
            "logit_bias": {},
            "metadata": {"a": "b"},
        },
    ),
    made=_made_chat,
    is_error=_is_openai_error,
)
_FUNCTION = {"type": "function", "name": "bash", "description": "run", "parameters": _SCHEMA, "strict": False}
_CUSTOM = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "s: X"}}
RESPONSES = Api(
    name="openai_responses",
    paths=("/v1/responses", "/v1/responses", "/v1/responses", "/v1/responses/input_tokens"),
    key_header="Authorization",
    served=(
        {"model": "m", "input": "hi"},
        {
            "model": "m",
            "instructions": "You are.",
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "look"}]},
                {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "function_call", "call_id": "call_1", "name": "bash", "arguments": '{"command":"ls"}'},
                {"type": "function_call_output", "call_id": "call_1", "output": "a.py"},
                {"type": "custom_tool_call", "call_id": "call_2", "name": "patch", "input": "+x"},
                {"type": "custom_tool_call_output", "call_id": "call_2", "output": "ok"},
            ],
            "tools": [_FUNCTION, _CUSTOM, {"type": "namespace", "name": "n", "tools": [_FUNCTION]}],
            "stream": True,
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"verbosity": "low"},
            "metadata": {"a": "b"},
            "max_output_tokens": 64,
        },
        {"model": "m", "input": [{"role": "user", "content": "hi"}], "tools": [_FUNCTION, {"type": "web_search"}]},
        {"model": "m", "input": "hi", "previous_response_id": "resp_" + "0" * 24},
        {"model": "m", "input": [{"type": "item_reference", "id": "msg_" + "0" * 24}]},
    ),
    made=_made_responses,
    is_error=_is_openai_error,
)
_ANTHROPIC_TOOL = {"name": "bash", "description": "run", "input_schema": _SCHEMA}
ANTHROPIC = Api(
    name="anthropic",
    paths=("/v1/messages", "/v1/messages", "/v1/messages", "/v1/messages/count_tokens"),
    key_header="x-api-key",
    served=(
        {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]},
        {
            "model": "m",
            "max_tokens": 64,
            "system": [{"type": "text", "text": "You are.", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "look"}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "AA=="},
                        {"type": "text", "text": "let me"},
                        {"type": "tool_use", "id": "call_1", "name": "bash", "input": {"command": "ls"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "call_1", "content": "a.py", "is_error": True},
                        {"type": "tool_reference", "tool_name": "late"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "!"}},
                        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
                    ],
                },
            ],
            "tools": [
                _ANTHROPIC_TOOL,
                {**_ANTHROPIC_TOOL, "name": "late", "defer_loading": True},
                {"type": "bash_20250124", "name": "b"},
            ],
            "stream": True,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "metadata": {"user_id": "u"},
            "stop_sequences": ["x"],
        },
        {
            "model": "m",
            "max_tokens": 9,
            "messages": [
                {"role": "user", "content": [{"type": "search_result", "title": "t", "source": "s", "content": []}]}
            ],
            "mcp_servers": [{"name": "a"}],
            "output_config": {"effort": "low"},
        },
    ),
    made=_made_anthropic,
    is_error=_is_anthropic_error,
)
_METHODS = (":generateContent", ":streamGenerateContent?alt=sse", ":streamGenerateContent", ":countTokens")
GOOGLE = Api(
    name="google",
    paths=tuple(f"/v1beta/models/m{method}" for method in _METHODS),
    key_header="x-goog-api-key",
    served=(
        {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
        {
            "systemInstruction": {"parts": [{"text": "You are."}]},
            "contents": [
                {"role": "user", "parts": [{"text": "look"}]},
                {
                    "role": "model",
                    "parts": [
                        {"text": "hm", "thought": True},
                        {"functionCall": {"id": "c1", "name": "bash", "args": {"command": "ls"}}},
                    ],
                },
                {
                    "role": "user",
                    "parts": [
                        {"functionResponse": {"id": "c1", "name": "bash", "response": {"output": "a.py"}}},
                        {"inlineData": {"mimeType": "image/png", "data": "!"}},
                    ],
                },
            ],
            "tools": [
                {"functionDeclarations": [{"name": "bash", "parameters": {"type": "OBJECT", "properties": {}}}]},
                {"googleSearch": {}},
            ],
            "generationConfig": {
                "temperature": 0.5,
                "maxOutputTokens": 64,
                "seed": 1,
                "topK": 40,
                "thinkingConfig": {},
            },
            "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
        },
        {"generateContentRequest": {"model": "models/m", "contents": {"parts": {"text": "one"}}}},
        {
            "system_instruction": "short",
            "contents": [{"parts": [{"function_call": {"name": "bash"}}], "role": "model"}],
        },
    ),
    made=_made_google,
    is_error=_is_google_error,
)
APIS: tuple[Api, ...] = (CHAT, RESPONSES, ANTHROPIC, GOOGLE)
