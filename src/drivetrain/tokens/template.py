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
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox
import msgspec

from drivetrain.errors import ConfigError, DrivetrainError
from drivetrain.messages import Message, ToolCall, ToolSpec
from drivetrain.tokens.call_ids import IdStyle, in_style

_PROBE_TOOL = ToolSpec(
    name="drivetrain_probe_tool",
    description="probe",
    parameters={"type": "object", "properties": {"value": {"type": "string"}}},
)
_ANCHOR = "anchor"
_MARK = "drivetrain7mark"  # plain letters: no template trims, escapes or splits them


_KIMI_CALLS = "<|tool_calls_section_begin|>"
_REMEMBERED = 32
_HEADS = (  # a template may write its own system prompt exactly when the conversation has none
    (Message("user", _ANCHOR),),
    (Message("system", _ANCHOR), Message("user", _ANCHOR)),
)


class Anchored(NamedTuple):
    """Text behind the last word of a dummy assistant turn, as the last message and with messages behind it."""

    alone: str
    followed: str


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


class Wire(msgspec.Struct, frozen=True):
    """How a template wants its messages; found by trying, since templates do not declare it.

    ``list_content``: text as a list of parts (multimodal templates drop or refuse a plain string). ``null_content``:
    calls are rendered only behind ``None``. ``arguments_text``: call arguments as JSON text (DeepSeek) and not as a
    dict. ``reasoning_key``: the field it reads reasoning from. ``call_ids``: the form of tool-call ids it takes.
    """

    list_content: bool = False
    null_content: bool = False
    arguments_text: bool = False
    reasoning_key: str = "reasoning_content"
    call_ids: IdStyle = "any"


PLAIN_WIRE = Wire()


def message_to_template(message: Message, wire: Wire = PLAIN_WIRE) -> dict[str, Any]:
    """The dict a chat template reads. JSON arguments are decoded, as inference servers do (trl.md section 8)."""
    content: Any = message.content
    if wire.list_content:
        content = [{"type": "text", "text": content}]
    elif wire.null_content and message.tool_calls and not content:
        content = None
    out: dict[str, Any] = {"role": message.role, "content": content}
    if message.reasoning and not (wire.reasoning_key == "thinking" and content and message.tool_calls):
        out[wire.reasoning_key] = message.reasoning  # harmony refuses both beside a call, and would say content twice
    if message.tool_calls:
        out["tool_calls"] = [
            {
                "type": "function",
                "id": call.id,
                "function": {
                    "name": call.name,
                    "arguments": call.arguments if wire.arguments_text else _arguments(call.arguments),
                },
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
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def shared_start(left: str, right: str) -> str:
    """The longest text both begin with."""
    if right.startswith(left):
        return left
    if left.startswith(right):
        return right
    size = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    return left[:size]


def tool_to_template(tool: ToolSpec) -> dict[str, Any]:
    """The OpenAI function-tool dict a chat template reads."""
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


class _Remembered:
    """Renderings of dummy conversations under one set of tools: openings by the number of messages before the turn, and
    whole ones by that number and the turn."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self.tools = tools
        self.openings: dict[int, str] = {}
        self.alone: dict[tuple[int, Message], str] = {}


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
        self.fingerprint = hashlib.sha256(json.dumps([source, self._variables], sort_keys=True).encode()).hexdigest()
        self.eos_token = str(self._variables.get("eos_token") or "")
        self._remembered = _Remembered(())
        self.wire = self._find_wire("kimi" if _KIMI_CALLS in source else "any")
        self.renders_tools = self._shows(_PROBE_TOOL.name, [Message("user", _ANCHOR)], [_PROBE_TOOL])

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, add_generation_prompt: bool = True
    ) -> str:
        """Text of a whole prompt.

        Raises:
            TemplateRefused: the template raised on these messages.
        """
        try:
            return self._template.render(
                messages=[message_to_template(m, self.wire) for m in in_style(messages, self.wire.call_ids)],
                tools=[tool_to_template(t) for t in tools] or None,
                add_generation_prompt=add_generation_prompt,
                **self._variables,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
            raise TemplateRefused(
                f"the chat template refused the conversation: {error}",
                fix="Use a template that takes these message roles and shapes.",
            ) from error

    def behind_turn(
        self,
        tail: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        calls: Sequence[ToolCall] = (),
        *,
        add_generation_prompt: bool = True,
    ) -> Anchored | None:
        """What stands behind an assistant's last word: its closing, ``tail``, a generation prompt.

        The tail is rendered behind a dummy conversation, so that nothing of the real history is rendered again.
        ``calls`` are the calls the turn made: some templates write their names beside the results. What the template
        does to the words of the dummy turn does not matter; None means that it changed something before that turn,
        hid the turn, or refused every dummy.
        """
        return next(self._anchored(tail, tools, calls, add_generation_prompt), None)

    def assistant_close(self) -> str:
        """Text the template writes after an assistant's content, e.g. ``<|im_end|>\\n`` in ChatML."""
        text = self.render([Message("user", "question"), Message("assistant", _MARK)], add_generation_prompt=False)
        return text.rpartition(_MARK)[2]

    def ignores_generation_flag(self) -> bool:
        """Whether a generation prompt is written unasked (Command R7B)."""
        said = [Message("user", "question"), Message("assistant", _MARK)]
        asked, unasked = (self.render(said, add_generation_prompt=generate) for generate in (True, False))
        return asked == unasked

    def opening(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> str:
        """The part of a first prompt that does not depend on whether a generation prompt follows."""
        texts = [self.render(messages, tools, add_generation_prompt=generate) for generate in (True, False)]
        return shared_start(*texts)

    def _anchored(
        self, tail: Sequence[Message], tools: Sequence[ToolSpec], calls: Sequence[ToolCall], generate: bool = True
    ) -> Iterator[Anchored]:
        """One rendering for each dummy conversation that the template takes and leaves as it is."""
        for head, turn in itertools.product(_HEADS, _dummies(tail, calls)):
            try:
                alone, opening = self._dummy(head, turn, tools)
                followed = self.render([*head, turn, *tail], tools, add_generation_prompt=generate)
            except TemplateRefused:
                continue
            parts = alone.split(_MARK)
            rest = followed.split(_MARK, len(parts) - 1)
            if len(rest) == len(parts) > 1 and followed.startswith(opening) and _MARK not in rest[-1]:
                yield Anchored(parts[-1], rest[-1])

    def _dummy(self, head: Sequence[Message], turn: Message, tools: Sequence[ToolSpec]) -> tuple[str, str]:
        """A dummy conversation and its opening; the last few are remembered, since agents repeat their tools.

        Every turn has call ids of its own: a text in which they do not stand is remembered without them.
        """
        known = self._remembered
        if known.tools != tools or len(known.alone) >= _REMEMBERED:
            self._remembered = known = _Remembered(tools)
        size = len(head)
        if size not in known.openings:
            known.openings[size] = self.opening(head, tools)
        nameless = msgspec.structs.replace(
            turn, tool_calls=tuple(msgspec.structs.replace(call, id="") for call in turn.tool_calls)
        )
        alone = known.alone.get((size, nameless)) or known.alone.get((size, turn))
        if alone is None:
            alone = self.render([*head, turn], tools, add_generation_prompt=False)
            known.alone[size, turn if self._shows_ids(turn, alone) else nameless] = alone
        return alone, known.openings[size]

    def _shows_ids(self, turn: Message, text: str) -> bool:
        """Whether call ids of the turn may stand in its rendering; some templates write nine characters of them."""
        if self.wire.call_ids != "any":
            return True
        return any(part in text for call in turn.tool_calls for part in (call.id[:9], call.id[-9:]))

    def _find_wire(self, call_ids: IdStyle) -> Wire:
        user = Message("user", _MARK)
        self.wire = PLAIN_WIRE
        if not self._shows(_MARK, [user]):
            self.wire = Wire(list_content=True)
            if not self._shows(_MARK, [user]):
                self.wire = PLAIN_WIRE
        base = self.wire
        call = ToolCall("call_0", _PROBE_TOOL.name, "{}")
        for ids, as_text, null in itertools.product((call_ids, "nine"), (False, True), (False, True)):
            self.wire = msgspec.structs.replace(base, arguments_text=as_text, null_content=null, call_ids=ids)
            if self._shows(call.name, [Message("user", _ANCHOR), Message("assistant", tool_calls=(call,))]):
                base = self.wire
                break
        for key in ("reasoning_content", "thinking", "reasoning"):
            self.wire = msgspec.structs.replace(base, reasoning_key=key)
            if self._shows(_MARK, [Message("user", _ANCHOR), Message("assistant", _ANCHOR, reasoning=_MARK)]):
                return self.wire
        return base

    def _shows(self, text: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> bool:
        try:
            return text in self.render(messages, tools, add_generation_prompt=False)
        except TemplateRefused:
            return False


def _dummies(tail: Sequence[Message], calls: Sequence[ToolCall]) -> Iterator[Message]:
    """Assistant turns that may stand before ``tail``, the most faithful first; each holds the mark."""
    results = list(itertools.takewhile(lambda message: message.role == "tool", tail))
    if results and not calls:
        calls = [ToolCall(m.tool_call_id or f"call_{i}", m.name or _ANCHOR, "") for i, m in enumerate(results)]
    if calls:
        marked = tuple(ToolCall(c.id, c.name, json.dumps({"value": _MARK})) for c in calls)
        yield Message("assistant", tool_calls=marked)
        yield Message("assistant", _MARK, tool_calls=marked)
    yield Message("assistant", _MARK)
