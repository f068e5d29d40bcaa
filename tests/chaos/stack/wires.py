"""One logical call through each API with its official SDK, streamed or not; histories are plain JSON.

Nothing of drivetrain is imported here, so that it runs wherever an SDK does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec

from tests.chaos.stack.words import BASH

TIMEOUT_S = 8.0
RETRIES = 2
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
DESCRIPTION = "run a command"


class Seen(msgspec.Struct):
    """A reply as the client has it: its id on the wire, its text, its calls (id, name, arguments) and the items that
    the client appends to its history."""

    reply: str
    text: str
    calls: list[tuple[str, str, str]]
    finish: str
    items: list[Any]


class Transient(Exception):
    """The call failed in a way that an agent tries again."""


class Refused(Exception):
    """The call failed for good."""


class Wire(Protocol):
    """One API with one key."""

    def user(self, text: str) -> list[Any]:
        """History items of a user message."""

    def results(self, seen: Seen, text: str) -> list[Any]:
        """History items that answer the calls of a reply; the last holds ``text``."""

    async def ask(self, history: list[Any], stream: bool) -> Seen:
        """Send the history. Raises Transient and Refused."""

    async def aclose(self) -> None:
        """Close the connections."""


_TRANSPORTS = ("httpx", "httpx2", "httpcore", "httpcore2", "aiohttp", "anyio")
_LIBRARIES = ("openai", "anthropic", "google")


@contextmanager
def _translated() -> Iterator[None]:
    """What an agent makes of an SDK's errors: connection errors, time-outs, 408, 429, 5xx and broken streams pass."""
    try:
        yield
    except Transient:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # a broken stream: half a line of JSON, no last event
        raise Transient(f"{type(error).__name__}: {str(error)[:300]}") from error
    except Exception as error:
        library = type(error).__module__.partition(".")[0]
        if library not in (*_TRANSPORTS, *_LIBRARIES):
            raise
        status = getattr(error, "status_code", None) or getattr(error, "code", None)
        final = library in _LIBRARIES and isinstance(status, int) and 400 <= status < 500 and status not in (408, 429)
        said = f"{type(error).__name__} {status}: {str(error)[:300]}"
        raise (Refused(said) if final else Transient(said)) from error


class Chat:
    """OpenAI chat completions."""

    def __init__(self, url: str, key: str) -> None:
        import openai

        plain = openai.DefaultAsyncHttpxClient(verify=False)  # reading certificates costs 20 ms for each client
        self._client = openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key=key, max_retries=RETRIES, timeout=TIMEOUT_S, http_client=plain
        )
        function = {"name": BASH, "description": DESCRIPTION, "parameters": SCHEMA}
        self._asked: dict[str, Any] = {"model": "m", "tools": [{"type": "function", "function": function}]}

    def user(self, text: str) -> list[Any]:
        return [{"role": "user", "content": text}]

    def results(self, seen: Seen, text: str) -> list[Any]:
        return [{"role": "tool", "tool_call_id": call, "content": text} for call, _, _ in seen.calls]

    async def ask(self, history: list[Any], stream: bool) -> Seen:
        with _translated():
            if stream:
                async with self._client.chat.completions.stream(**self._asked, messages=history) as events:
                    done: Any = await events.get_final_completion()
            else:
                done = await self._client.chat.completions.create(**self._asked, messages=history)
        message = done.choices[0].message
        calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
        item = message.model_dump(exclude_none=True, exclude={"parsed"}, mode="json", warnings=False)
        for call in item.get("tool_calls", ()):
            call["function"].pop("parsed_arguments", None)
            call.pop("index", None)
        return Seen(done.id, message.content or "", calls, done.choices[0].finish_reason, [item])

    async def aclose(self) -> None:
        await self._client.close()


class Responses:
    """OpenAI Responses, with the whole history in every request."""

    def __init__(self, url: str, key: str) -> None:
        import openai

        plain = openai.DefaultAsyncHttpxClient(verify=False)  # reading certificates costs 20 ms for each client
        self._client = openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key=key, max_retries=RETRIES, timeout=TIMEOUT_S, http_client=plain
        )
        tool = {"type": "function", "name": BASH, "description": DESCRIPTION, "parameters": SCHEMA, "strict": False}
        self._asked: dict[str, Any] = {"model": "m", "tools": [tool], "store": False}

    def user(self, text: str) -> list[Any]:
        return [{"role": "user", "content": text}]

    def results(self, seen: Seen, text: str) -> list[Any]:
        return [{"type": "function_call_output", "call_id": call, "output": text} for call, _, _ in seen.calls]

    async def ask(self, history: list[Any], stream: bool) -> Seen:
        with _translated():
            if stream:
                async with self._client.responses.stream(**self._asked, input=history) as events:
                    done: Any = await events.get_final_response()
            else:
                done = await self._client.responses.create(**self._asked, input=history)
        if done.status == "failed":
            raise Transient(f"failed: {done.error}")
        items = [
            item.model_dump(exclude_none=True, exclude={"parsed_arguments"}, mode="json", warnings=False)
            for item in done.output
        ]
        calls = [(item.call_id, item.name, item.arguments) for item in done.output if item.type == "function_call"]
        return Seen(done.id, done.output_text, calls, done.status, items)

    async def aclose(self) -> None:
        await self._client.close()


class Messages:
    """Anthropic Messages."""

    def __init__(self, url: str, key: str) -> None:
        import anthropic

        plain = anthropic.DefaultAsyncHttpxClient(verify=False)
        self._client = anthropic.AsyncAnthropic(
            base_url=url, api_key=key, max_retries=RETRIES, timeout=TIMEOUT_S, http_client=plain
        )
        tool = {"name": BASH, "description": DESCRIPTION, "input_schema": SCHEMA}
        self._asked: dict[str, Any] = {"model": "m", "tools": [tool], "max_tokens": 1024}

    def user(self, text: str) -> list[Any]:
        return [{"role": "user", "content": text}]

    def results(self, seen: Seen, text: str) -> list[Any]:
        blocks = [{"type": "tool_result", "tool_use_id": call, "content": text} for call, _, _ in seen.calls]
        return [{"role": "user", "content": blocks}] if blocks else []

    async def ask(self, history: list[Any], stream: bool) -> Seen:
        with _translated():
            if stream:
                async with self._client.messages.stream(**self._asked, messages=history) as events:
                    done: Any = await events.get_final_message()
            else:
                done = await self._client.messages.create(**self._asked, messages=history)
        if done.stop_reason is None:
            raise Transient("the stream ended early")
        blocks = [block.model_dump(exclude_none=True, mode="json", warnings=False) for block in done.content]
        text = "".join(block.text for block in done.content if block.type == "text")
        calls = [(b.id, b.name, json.dumps(b.input)) for b in done.content if b.type == "tool_use"]
        return Seen(done.id, text, calls, done.stop_reason, [{"role": "assistant", "content": blocks}])

    async def aclose(self) -> None:
        await self._client.close()


class Google:
    """Google generateContent."""

    def __init__(self, url: str, key: str) -> None:
        from google import genai
        from google.genai import types

        retries = types.HttpRetryOptions(attempts=RETRIES + 1, initial_delay=0.5, max_delay=4.0)
        options = types.HttpOptions(base_url=url, timeout=int(TIMEOUT_S * 1000), retry_options=retries)
        self._client = genai.Client(api_key=key, http_options=options)
        tools: Any = [
            {"function_declarations": [{"name": BASH, "description": DESCRIPTION, "parameters_json_schema": SCHEMA}]}
        ]
        self._config = types.GenerateContentConfig(
            tools=tools, automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True)
        )

    def user(self, text: str) -> list[Any]:
        return [{"role": "user", "parts": [{"text": text}]}]

    def results(self, seen: Seen, text: str) -> list[Any]:
        parts = [
            {"function_response": {"id": call, "name": name, "response": {"output": text}}}
            for call, name, _ in seen.calls
        ]
        return [{"role": "user", "parts": parts}] if parts else []

    async def ask(self, history: list[Any], stream: bool) -> Seen:
        models = self._client.aio.models
        with _translated():
            if stream:
                events = await models.generate_content_stream(model="m", contents=history, config=self._config)
                chunks = [chunk async for chunk in events]
            else:
                chunks = [await models.generate_content(model="m", contents=history, config=self._config)]
        candidates = [chunk.candidates[0] for chunk in chunks if chunk.candidates]
        if not candidates or candidates[-1].finish_reason is None:
            raise Transient("the stream ended early")
        contents = [candidate.content for candidate in candidates if candidate.content]
        parts = [part for content in contents for part in content.parts or ()]
        calls = [
            (part.function_call.id or "", part.function_call.name or "", json.dumps(part.function_call.args))
            for part in parts
            if part.function_call
        ]
        items = [content.model_dump(exclude_none=True, mode="json") for content in contents if content.parts]
        text = "".join(part.text or "" for part in parts)
        return Seen(chunks[-1].response_id or "", text, calls, str(candidates[-1].finish_reason), items)

    async def aclose(self) -> None:
        await self._client.aio.aclose()


WIRES: dict[str, Callable[[str, str], Wire]] = {
    "chat": Chat,
    "responses": Responses,
    "messages": Messages,
    "google": Google,
}

SDKS = {"chat": "openai", "responses": "openai", "messages": "anthropic", "google": "google.genai"}
"""The module of each API's SDK."""
