"""The model's chat template: a whole first prompt, or the text that appended messages add to one.

The environment reproduces what the ``transformers`` library offers to templates (sandboxed Jinja, ``tojson`` without
HTML escapes, ``raise_exception``, ``strftime_now``, loop controls), so that a prompt rendered here equals one rendered
by the trainer.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
from collections.abc import Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox

from drivetrain.errors import ConfigError, DrivetrainError
from drivetrain.messages import Message, ToolCall, ToolSpec

_PROBE_TOOL = ToolSpec(
    name="drivetrain_probe_tool",
    description="probe",
    parameters={"type": "object", "properties": {"value": {"type": "string"}}},
)
_ANCHOR = "anchor"


class TemplateRefused(DrivetrainError):
    """The template raised on these messages, so that the call cannot be rendered."""


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}`` marks assistant text for trainers; for rendering it is a plain block."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(fmt: str) -> str:
    return datetime.datetime.now().strftime(fmt)


def message_to_template(message: Message) -> dict[str, Any]:
    """The dict a chat template reads. JSON arguments are decoded, as inference servers do (trl.md section 8)."""
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        out["reasoning_content"] = message.reasoning
    if message.tool_calls:
        out["tool_calls"] = [
            {
                "type": "function",
                "id": call.id,
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        out["tool_call_id"] = message.tool_call_id
    if message.name:
        out["name"] = message.name
    return out


def _arguments(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


def tool_to_template(tool: ToolSpec) -> dict[str, Any]:
    """The OpenAI function-tool dict a chat template reads."""
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


class ChatTemplate:
    """One compiled template with pinned keyword arguments.

    Args:
        source: Jinja text of the template.
        special_tokens: names templates refer to, e.g. ``{"bos_token": "<s>", "eos_token": "</s>"}``.
        kwargs: template variables pinned for the whole run and recorded, e.g. ``{"enable_thinking": False}``.

    Raises:
        ConfigError: the template does not compile.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: dict[str, str] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationTag]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"the chat template does not compile: line {error.lineno}: {error.message}",
                fix="Check chat_template.jinja of the model directory.",
            ) from error
        self._variables = {**(special_tokens or {}), **(kwargs or {})}
        self.sha256 = hashlib.sha256(source.encode()).hexdigest()
        self.renders_tools = self._check_tools()

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, add_generation_prompt: bool = True
    ) -> str:
        """Text of a whole prompt.

        Raises:
            TemplateRefused: the template raised on these messages.
        """
        try:
            return self._template.render(
                messages=[message_to_template(m) for m in messages],
                tools=[tool_to_template(t) for t in tools] or None,
                add_generation_prompt=add_generation_prompt,
                **self._variables,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise TemplateRefused(
                f"the chat template refused the conversation: {error}",
                fix="Use a template that takes these message roles and shapes.",
            ) from error

    def render_tail(self, tail: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> str | None:
        """Text that ``tail`` adds after a finished assistant turn, up to and with the generation prompt.

        The tail is rendered behind a dummy conversation and the difference is taken, so that nothing of the real
        history is rendered again. None means that the template is not append-only for this shape: it changed
        something before the tail.
        """
        answered = itertools.takewhile(lambda message: message.role == "tool", tail)
        calls = tuple(ToolCall(m.tool_call_id or f"call_{i}", _ANCHOR, "{}") for i, m in enumerate(answered))
        anchor = [Message("user", _ANCHOR), Message("assistant", _ANCHOR, tool_calls=calls)]
        try:
            before = self.render(anchor, tools, add_generation_prompt=False)
            after = self.render([*anchor, *tail], tools, add_generation_prompt=True)
        except TemplateRefused:
            return None
        return after[len(before) :] if after.startswith(before) else None

    def assistant_close(self) -> str:
        """Text the template writes after an assistant's content, e.g. ``<|im_end|>\\n`` in ChatML."""
        text = self.render(
            [Message("user", "question"), Message("assistant", "\x00answer\x00")], add_generation_prompt=False
        )
        return text.rpartition("\x00")[2]

    def _check_tools(self) -> bool:
        try:
            return _PROBE_TOOL.name in self.render([Message("user", _ANCHOR)], [_PROBE_TOOL])
        except TemplateRefused:
            return False
