"""Reasoning in front of an answer: ``<think>...</think>`` and its like, split off before calls are read.

The open tag may have been sampled or may stand at the end of the prompt (``opened``). What is not closed is reasoning
to its end: a call inside it is a plan, not a call.
"""

from __future__ import annotations

import msgspec

from drivetrain.tokens.parsers.base import ParseNote, Span, skip_space


class ReasoningStyle(msgspec.Struct, frozen=True):
    """Tags of one style. ``ends`` are further tokens that end reasoning without belonging to it."""

    open: str
    close: str
    ends: tuple[str, ...] = ()


STYLES: dict[str, ReasoningStyle] = {
    "think": ReasoningStyle("<think>", "</think>"),
    "kimi_think": ReasoningStyle("<think>", "</think>", ends=("<|tool_calls_section_begin|>",)),
    "mistral_think": ReasoningStyle("[THINK]", "[/THINK]"),
    "cohere_thinking": ReasoningStyle("<|START_THINKING|>", "<|END_THINKING|>"),
    "gemma_channel": ReasoningStyle("<|channel>thought\n", "<channel|>"),
}
"""Where each comes from: ``think``: chat templates of Qwen3 and later, DeepSeek-R1, GLM-4.5, Nemotron 3, LFM2.5,
MiniMax-M2. ``kimi_think``: Kimi-K2-Thinking, which may begin its calls while it still reasons. ``mistral_think``:
Magistral. ``cohere_thinking``: Command A Reasoning. ``gemma_channel``: Gemma 4."""


class Split(msgspec.Struct, frozen=True):
    """Where reasoning is, where the answer begins, and what is to be said about it."""

    reasoning: tuple[Span, ...] = ()
    answer: int = 0
    notes: tuple[ParseNote, ...] = ()


def opened_by(style: ReasoningStyle, prompt: str) -> bool:
    """Whether a prompt that ends so leaves the reasoning open."""
    return prompt.rstrip().endswith(style.open.rstrip())


def split(style: ReasoningStyle, text: str, *, opened: bool = False) -> Split:
    """Split the reasoning off the front of ``text``; one line break or more around it belongs to the tags."""
    begin = skip_space(text, 0)
    if text.startswith(style.open, begin):
        start = begin + len(style.open)
    elif opened:
        start = 0
    else:
        return Split()
    close = text.find(style.close, start)
    early = [at for at in (text.find(token, start, close if close >= 0 else None) for token in style.ends) if at >= 0]
    if early:
        return Split(_inner(text, start, min(early)), min(early))
    if close < 0:
        return Split(_inner(text, start, len(text)), len(text), ("truncated_reasoning",))
    answer = close + len(style.close)
    while text.startswith("\n", answer):
        answer += 1
    return Split(_inner(text, start, close), answer)


def _inner(text: str, start: int, end: int) -> tuple[Span, ...]:
    while start < end and text[start] == "\n":
        start += 1
    while end > start and text[end - 1] == "\n":
        end -= 1
    return ((start, end),) if start < end else ()
