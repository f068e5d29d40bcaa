"""The token side of one model, bound together: first prompt, continuation, parse."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.messages import Message, ToolCall, ToolSpec
from drivetrain.tokens.boundary import Boundary, detect_boundary
from drivetrain.tokens.call_ids import rename
from drivetrain.tokens.check import ReasoningPolicy, TemplateCheck, check_template
from drivetrain.tokens.parse import Parsed, Parser, get_parser
from drivetrain.tokens.shapes import shapes_like
from drivetrain.tokens.template import ChatTemplate
from drivetrain.tokens.tokenizer import Tokenizer

PROMPT_END = 16
"""Ids of a prompt's end that are enough to hold a reasoning tag."""


class ToolsDropped(ConfigError):
    """The template renders no tools, so the policy would never see those the harness offers."""


class TokenCodec:
    """Everything that turns messages into ids and ids into messages for one model.

    Args:
        tokenizer: the model's tokenizer.
        template: the model's chat template.
        stop_ids: ids that end a turn; the family's stop tokens are added.
        parser: name of the tool-call parser (:func:`drivetrain.tokens.parse.get_parser`).
        reasoning: the policy of conversations that have none of their own. ``keep`` leaves what was sampled in context
            as it was sampled, also where the template would strip or move it in later turns, so that conversations
            stay one chain. ``template`` follows the template to the letter: a shape for which it re-renders an
            earlier turn is not continued.
        check: the template's verdicts if they are known; otherwise tried when first needed.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        stop_ids: Sequence[int] = (),
        parser: str = "hermes",
        reasoning: ReasoningPolicy = "keep",
        check: TemplateCheck | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.boundary: Boundary = detect_boundary(template, tokenizer)
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys([*stop_ids, *self.boundary.stop_ids]))
        self.reasoning: ReasoningPolicy = reasoning
        self._check = check
        self.parser: Parser = get_parser(parser)

    def first_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Ids of a prompt rendered from scratch.

        Raises:
            ToolsDropped: tools were given and the template would drop them.
            TemplateRefused: the template raised.
        """
        if tools and not self.template.renders_tools:
            raise ToolsDropped(
                "the model's chat template renders no tools, so the policy would not see the tools of this session.",
                fix="Use a tool-aware chat template (drivetrain ships one for SmolLM2) or an agent without tools.",
            )
        return self.tokenizer.encode(self.template.render(messages, tools))

    @property
    def check(self) -> TemplateCheck:
        """For which shapes the template is append-only."""
        if self._check is None:
            self._check = check_template(self.template, self.tokenizer, self.boundary)
        return self._check

    def drops(self, tail: Sequence[Message]) -> bool:
        """Whether the template leaves out a message of this tail, so that the policy never sees it."""
        return any(self.check.finding(shape).cause == "dropped" for shape in shapes_like(tail))

    def continuation(
        self,
        sampled: Sequence[int],
        tail: Sequence[Message],
        tools: Sequence[ToolSpec],
        calls: Sequence[ToolCall] = (),
        *,
        reasoning: ReasoningPolicy | None = None,
    ) -> list[int] | None:
        """Delta ids between ``sampled`` (a stored turn, verbatim) and the next sampled token.

        ``calls`` are the calls that turn made, as served; without them they are read from the ids. ``reasoning`` is
        the policy of this conversation; None takes the codec's. None is returned when the template is not append-only
        for this tail, or for the words of earlier turns if it is followed to the letter (``reasoning="template"``):
        the caller renders anew and forks, visibly.
        """
        policy = reasoning or self.reasoning
        literal = policy == "template"
        shapes = shapes_like(tail, cut=self.boundary.needs_close(sampled), reasoning=literal)
        if not self.check.allows(shapes, policy):
            return None
        tail, calls = self._in_own_ids(sampled, tail, tools, calls)
        anchored = self.template.behind_turn(tail, tools, self._answered(sampled, tail, tools, calls))
        behind = None if anchored is None else self.boundary.cut_tail(anchored)
        if behind is None:
            return None
        said = self.boundary.closing(sampled)
        if literal and said is not None and said != behind.close:
            return None
        return self.boundary.bridge(sampled, behind, self.tokenizer)

    def _in_own_ids(
        self, sampled: Sequence[int], tail: Sequence[Message], tools: Sequence[ToolSpec], calls: Sequence[ToolCall]
    ) -> tuple[Sequence[Message], Sequence[ToolCall]]:
        """The tail and the calls it answers under the ids that the policy sampled, where the template writes ids."""
        results = list(itertools.takewhile(lambda message: message.role == "tool", tail))
        if self.template.wire.call_ids == "any" or not results:
            return tail, calls
        said = [call.id for call in self.parse(sampled, tools=tools).calls]
        served = [call.id for call in calls]
        if not {message.tool_call_id for message in results} <= set(served):  # renamed by the harness: in order
            served = [message.tool_call_id for message in results]
        ids = {ours: own for ours, own in zip(served, said, strict=False) if own}
        own_calls = [msgspec.structs.replace(call, id=ids.get(call.id, call.id)) for call in calls]
        return [rename(message, ids) for message in tail], own_calls

    def _answered(
        self, sampled: Sequence[int], tail: Sequence[Message], tools: Sequence[ToolSpec], calls: Sequence[ToolCall]
    ) -> list[ToolCall]:
        """The calls that the results in ``tail`` answer: some templates write their names beside the results."""
        results = list(itertools.takewhile(lambda message: message.role == "tool", tail))
        if not results or {m.tool_call_id for m in results} <= {c.id for c in calls}:
            return list(calls) if results else []
        names = [c.name for c in (calls or self.parse(sampled, tools=tools).calls)]
        if not names:
            return []
        padded = itertools.chain(names, itertools.repeat(names[-1]))  # ids were renamed or are not known: in order
        return [ToolCall(m.tool_call_id, name, "{}") for m, name in zip(results, padded, strict=False)]

    def parse(self, sampled: Sequence[int], *, tools: Sequence[ToolSpec], prompt: Sequence[int] = ()) -> Parsed:
        """Read a completion. The stop token that ended it is dropped from the text; every other token is spelled.

        Args:
            sampled: the completion.
            tools: the tools the request offered; without any, calls are content.
            prompt: the prompt (its last ids are enough): it may end inside reasoning.
        """
        ids = list(sampled)
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        opened = self.parser.opened_by(self.tokenizer.decode(prompt[-PROMPT_END:])) if len(prompt) else False
        return self.parser(self.tokenizer.decode(ids), tools, opened=opened, calls=bool(tools))
