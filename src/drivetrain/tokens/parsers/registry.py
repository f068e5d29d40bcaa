"""Parsers by name: a call format, or ``style+format`` with the reasoning style in front of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.messages import ToolSpec
from drivetrain.tokens.parsers import (
    channels,
    cohere,
    gemma,
    glm,
    hermes,
    llama_json,
    markup,
    mistral,
    pythonic,
    sections,
)
from drivetrain.tokens.parsers.base import Block, Parsed, Scan, TypedScan, assemble
from drivetrain.tokens.parsers.reasoning import STYLES, ReasoningStyle, Split, opened_by, split


def _scan_text(_text: str, _at: int) -> Iterator[Block]:
    """Plain text actions: the text is the reply."""
    return iter(())


SCANS: dict[str, Scan] = {
    "cohere": cohere.scan,
    "deepseek": sections.scan_deepseek,
    "functiongemma": gemma.scan_functiongemma,
    "gemma4": gemma.scan_gemma4,
    "hermes": hermes.scan,
    "kimi_k2": sections.scan_kimi_k2,
    "lfm2": pythonic.scan_lfm2,
    "llama_json": llama_json.scan,
    "llama_pythonic": pythonic.scan_llama,
    "mistral": mistral.scan,
    "text": _scan_text,
}
"""Call formats that stand inside plain text."""

TYPED_SCANS: dict[str, TypedScan] = {
    "glm": glm.scan,
    "minimax": markup.scan_minimax,
    "qwen_xml": markup.scan_qwen_xml,
}
"""Those whose values are bare text, so that the tools' schemas decide their types."""

DIALECTS: dict[str, channels.Dialect] = {"harmony": channels.HARMONY, "muse": channels.MUSE}
"""Formats that structure the whole turn, reasoning included."""


class Parser(msgspec.Struct, frozen=True):
    """A named parser. Call it with the decoded text of a completion, without the stop token that ended it."""

    name: str
    format: str
    reasoning: ReasoningStyle | None = None

    def __call__(
        self, text: str, tools: Sequence[ToolSpec] = (), *, opened: bool = False, calls: bool = True
    ) -> Parsed:
        """Read a completion.

        Args:
            text: the decoded completion.
            tools: schemas for formats that write values as bare text.
            opened: the prompt ended inside reasoning (:meth:`opened_by`).
            calls: read tool calls; off for a request that offered no tools, whose text is all content.
        """
        if self.format in DIALECTS:
            return channels.read(DIALECTS[self.format], text, tools, calls=calls)
        front = Split() if self.reasoning is None else split(self.reasoning, text, opened=opened)
        if self.format in TYPED_SCANS:
            blocks = TYPED_SCANS[self.format](text, front.answer, tools)
        else:
            blocks = SCANS[self.format](text, front.answer)
        if not calls:
            blocks = (block for block in blocks if not block.calls and block.note is None)
        return assemble(text, front.answer, blocks, reasoning=front.reasoning, notes=front.notes)

    def opened_by(self, prompt: str) -> bool:
        """Whether a prompt that ends so leaves reasoning open."""
        return self.reasoning is not None and opened_by(self.reasoning, prompt)


def get_parser(name: str) -> Parser:
    """Parser by name, e.g. ``"hermes"``, ``"think+qwen_xml"``, ``"harmony"``.

    Raises:
        ConfigError: no such parser.
    """
    style, plus, call_format = name.rpartition("+")
    if (call_format in SCANS | TYPED_SCANS and (not plus or style in STYLES)) or (call_format in DIALECTS and not plus):
        return Parser(name, call_format, STYLES.get(style))
    formats, styles = ", ".join(sorted({*SCANS, *TYPED_SCANS, *DIALECTS})), ", ".join(sorted(STYLES))
    raise ConfigError(
        f"no parser named {name!r}.",
        fix=f"Name a format ({formats}), alone or behind a reasoning style and a plus sign ({styles}).",
    )
