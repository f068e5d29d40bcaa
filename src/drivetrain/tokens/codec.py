"""The token side of one model, bound together: first prompt, continuation, parse."""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain.errors import ConfigError
from drivetrain.messages import Message, ToolSpec
from drivetrain.tokens.boundary import Boundary, detect_boundary
from drivetrain.tokens.parse import Parsed, Parser, get_parser
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
        stop_ids: ids that end a turn; the family's close token is added.
        parser: name of the tool-call parser (:func:`drivetrain.tokens.parse.get_parser`).
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, *, stop_ids: Sequence[int] = (), parser: str = "hermes"
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.boundary: Boundary = detect_boundary(template, tokenizer)
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys([*stop_ids, self.boundary.close_id]))
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

    def continuation(
        self, sampled: Sequence[int], tail: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> list[int] | None:
        """Delta ids between ``sampled`` (a stored turn, verbatim) and the next sampled token.

        None when the template is not append-only for this tail: the caller renders anew and forks, visibly.
        """
        text = self.template.render_tail(tail, tools)
        if text is None:
            return None
        close = [self.boundary.close_id] if self.boundary.needs_close(sampled) else []
        return close + self.tokenizer.encode(self.boundary.join_text(text))

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
