"""Is a template append-only, and for which shapes of appended messages?

For each shape (:mod:`drivetrain.tokens.shapes`) the property itself is tried, on text and on ids: a full rendering
must equal the template's prompt for the history + what the policy said + the delta the codec would append (case row
A13). Nothing is concluded from the family's name.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from drivetrain.cache import cache_root, content_key
from drivetrain.messages import Message, ToolSpec
from drivetrain.tokens.boundary import Behind, Boundary, detect_boundary
from drivetrain.tokens.call_ids import in_style
from drivetrain.tokens.shapes import CUT, PROBE_TOOLS, SHAPES, Shape
from drivetrain.tokens.template import ChatTemplate, TemplateRefused, shared_start
from drivetrain.tokens.tokenizer import Tokenizer

Verdict = Literal["append_only", "needs_rule", "forks", "refused"]
Cause = Literal["", "cut", "header", "other_stop", "sampled_text", "history", "tail", "dropped", "raised"]
ReasoningPolicy = Literal["keep", "template"]

CAUSES: dict[Cause, str] = {
    "": "the template appends",
    "cut": "a cut turn is closed as context",
    "header": "the stop token is the next message's header and is written once",
    "other_stop": "the template re-renders the stop token as another one",
    "sampled_text": "the template re-renders what the policy said (reasoning stripped, words moved)",
    "history": "the template changes something before the last turn",
    "tail": "the tail cannot be rendered behind a turn by itself",
    "dropped": "the template leaves out a message of the tail",
    "raised": "the template refuses these messages",
}
_VERSION = 2
_SHOWN = 60


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a template does with one shape.

    ``verdict`` holds where the template is followed to the letter, ``keep`` where what was sampled stays in context
    even if the template would re-render it. ``expected`` is the full rendering from the first difference on, ``got``
    the stored text + delta; ``expected_tokens`` and ``got_tokens`` the same as token spellings.
    """

    shape: str
    verdict: Verdict
    keep: Verdict
    cause: Cause = ""
    detail: str = ""
    expected: str = ""
    got: str = ""
    expected_tokens: tuple[str, ...] = ()
    got_tokens: tuple[str, ...] = ()

    def under(self, policy: ReasoningPolicy) -> Verdict:
        """The verdict that counts under a policy."""
        return self.keep if policy == "keep" else self.verdict


class TemplateCheck(msgspec.Struct, frozen=True):
    """Every shape's finding for one template and tokenizer."""

    family: str
    template_sha256: str
    findings: tuple[Finding, ...]

    def finding(self, shape: str) -> Finding:
        """The finding of a shape by name."""
        return next(finding for finding in self.findings if finding.shape == shape)

    def allows(self, shapes: Sequence[str], policy: ReasoningPolicy) -> bool:
        """Whether a tail that these shapes stand for may be appended to stored ids."""
        found = [finding for finding in self.findings if finding.shape in shapes]
        return not any(f.under(policy) == "forks" or f.cause == "raised" for f in found)

    @property
    def continuable(self) -> bool:
        """Whether any shape can be continued at all."""
        return any(f.keep in ("append_only", "needs_rule") for f in self.findings)


def check_template(template: ChatTemplate, tokenizer: Tokenizer, boundary: Boundary | None = None) -> TemplateCheck:
    """Try every shape.

    Raises:
        ConfigError: the template belongs to no declared family.
    """
    checker = _Checker(template, tokenizer, boundary or detect_boundary(template, tokenizer), PROBE_TOOLS)
    findings = tuple(checker.finding(shape) for shape in SHAPES)
    return TemplateCheck(checker.boundary.family.name, template.sha256, findings)


def cached_check(
    template: ChatTemplate, tokenizer: Tokenizer, boundary: Boundary, cache: Path | None = None
) -> TemplateCheck:
    """:func:`check_template`, remembered on disk by template, pinned variables, shapes and tokenizer."""
    sentences = [m.content + m.reasoning for s in SHAPES for m in (*s.history, *s.tail)]
    probe = tokenizer.encode(" ".join(sentences) + "\n\n".join(sorted(tokenizer.special_tokens)))
    key = content_key(_VERSION, template.fingerprint, boundary, SHAPES, tokenizer.vocab_size, probe)
    path = cache_root(cache) / "template-check" / f"{key}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=TemplateCheck)
    except (OSError, msgspec.MsgspecError):
        found = check_template(template, tokenizer, boundary)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temp = path.with_suffix(f".{os.getpid()}.tmp")
        temp.write_bytes(msgspec.json.encode(found))
        temp.rename(path)
    except OSError:  # a read-only home: checked again at the next start
        pass
    return found


class _Checker:
    def __init__(
        self, template: ChatTemplate, tokenizer: Tokenizer, boundary: Boundary, tools: Sequence[ToolSpec]
    ) -> None:
        self.template = template
        self.tokenizer = tokenizer
        self.boundary = boundary
        self.tools = tools

    def finding(self, shape: Shape) -> Finding:
        messages = tuple(in_style([*shape.history, *shape.tail], self.template.wire.call_ids))  # as if sampled so
        shape = shape._replace(history=messages[: len(shape.history)], tail=messages[len(shape.history) :])
        try:
            return self._finding(shape)
        except TemplateRefused as error:
            if shape.history[0].role == "system":  # Gemma 2, Mistral 7B: no system role at all
                return self.finding(shape._replace(history=shape.history[1:]))
            return Finding(shape.name, "refused", "refused", "raised", detail=error.what)

    def _finding(self, shape: Shape) -> Finding:
        turn = shape.history[-1]
        prompt = self.template.render(shape.history[:-1], self.tools)
        spoken = self.template.render(shape.history, self.tools, add_generation_prompt=False)
        full = self.template.render([*shape.history, *shape.tail], self.tools)
        lost = next((m for m in shape.tail if m.content.split()[0] not in full), None)
        if lost:
            return Finding(shape.name, "refused", "refused", "dropped", detail=f"a message of role {lost.role}")
        behind = self._behind(shape.tail, turn)
        if behind is None:
            moved = not full.startswith(self._opening(shape))
            return self._differs(shape.name, "forks", "history" if moved else "tail", full, spoken)
        said = self._said(prompt, spoken, behind, turn, cut=shape.name.startswith(CUT))
        sampled = self.tokenizer.encode(said)
        delta = self.boundary.bridge_text(sampled, behind, self.tokenizer)
        stored = prompt + said + delta
        if stored == full and all(word in spoken for word in _words(turn)):
            ids = self.tokenizer.encode(prompt + said) + self.tokenizer.encode(delta)
            if ids == self.tokenizer.encode(full):
                return self._appends(shape.name, sampled, behind)
        kept = self._environment_kept(shape, prompt, full, behind)
        cause = self._cause(kept, prompt + said, stored, full, behind, turn)
        return self._differs(shape.name, "needs_rule" if kept else "forks", cause, full, stored)

    def _said(self, prompt: str, spoken: str, behind: Behind, turn: Message, *, cut: bool) -> str:
        """What the policy would have sampled for this turn to be rendered as it is."""
        start = len(shared_start(prompt, spoken))  # a template may not render a turn behind its own prompt
        own = _words_end(spoken, turn) or start
        if cut:
            return spoken[start:own]
        ended = self.boundary.cut(spoken[own:])
        if ended is None:
            return spoken[start:] + behind.close.token
        return spoken[start:own] + ended.before + ended.close.token

    def _opening(self, shape: Shape) -> str:
        first = next(i for i, m in enumerate(shape.history) if m.role == "assistant")
        return self.template.opening(shape.history[:first], self.tools)

    def _behind(self, tail: Sequence[Message], turn: Message, *, generate: bool = True) -> Behind | None:
        found = self.template.behind_turn(tail, self.tools, turn.tool_calls, add_generation_prompt=generate)
        return None if found is None else self.boundary.cut_tail(found)

    def _appends(self, name: str, sampled: Sequence[int], behind: Behind) -> Finding:
        if self.boundary.needs_close(sampled):
            return Finding(name, "needs_rule", "needs_rule", "cut")
        if behind.close.header:
            return Finding(name, "needs_rule", "needs_rule", "header")
        return Finding(name, "append_only", "append_only")

    def _environment_kept(self, shape: Shape, prompt: str, full: str, behind: Behind) -> bool:
        """Whether everything but the words of assistant turns is as it was in the prompts that were sent."""
        messages = [*shape.history, *shape.tail]
        *earlier, last = [i for i, m in enumerate(shape.history) if m.role == "assistant"]
        if not full.startswith(self._opening(shape)):
            return False
        for index, following in itertools.pairwise([*earlier, last]):
            tail = messages[index + 1 : following]
            texts = [self._behind(tail, messages[index], generate=generate) for generate in (True, False)]
            if texts[0] is None or texts[1] is None:
                return False
            segment = texts[0].close.token + shared_start(texts[0].rest, texts[1].rest)
            after = self._after(full, messages[index])
            if after is None and segment not in full:  # the template hides the turn: its surroundings must be there
                return False
            if after is not None and not (after.close.token + after.rest).startswith(segment):
                return False
        turn = messages[last]
        after = self._after(full, turn)
        if after is None:  # the words are hidden altogether
            after = self.boundary.cut(full.removeprefix(prompt)) if full.startswith(prompt) else None
        if after is None or after.close != behind.close or not after.rest.startswith(behind.rest):
            return False
        moved = after.rest[len(behind.rest) :]  # Gemma 4 writes a turn's text behind the results of its calls
        return moved in {"", turn.content + self.boundary.family.mid_closing}

    def _after(self, full: str, turn: Message) -> Behind | None:
        end = _words_end(full, turn)
        return None if end is None else self.boundary.cut(full[end:])

    def _cause(self, kept: bool, said: str, stored: str, full: str, behind: Behind, turn: Message) -> Cause:
        if not kept:
            return "history" if len(shared_start(stored, full)) < (_words_end(full, turn) or 0) else "tail"
        for close in self.boundary.family.closes:
            if said.endswith(close.token) and full == said[: -len(close.token)] + behind.close.token + behind.rest:
                return "sampled_text" if close == behind.close else "other_stop"
        return "sampled_text"

    def _differs(self, name: str, keep: Verdict, cause: Cause, full: str, stored: str) -> Finding:
        at = len(shared_start(full, stored))
        ids = [self.tokenizer.encode(text) for text in (full, stored)]
        same = next((i for i, (a, b) in enumerate(zip(*ids, strict=False)) if a != b), min(map(len, ids)))
        tokens = [tuple(self.tokenizer.pieces(found[same : same + 6])) for found in ids]
        return Finding(
            name,
            "forks",
            keep,
            cause,
            expected=full[at : at + _SHOWN],
            got=stored[at : at + _SHOWN],
            expected_tokens=tokens[0],
            got_tokens=tokens[1],
        )


def _words(turn: Message) -> list[str]:
    """The distinctive words of a turn in the order in which they end it: calls, else text, else reasoning."""
    calls = [c.arguments.removeprefix('{"path": "').removesuffix('"}').removeprefix("[") for c in turn.tool_calls]
    return [*calls, *([turn.content] if turn.content else [])]


def _words_end(text: str, turn: Message) -> int | None:
    """Where the last call of a turn, else its text, ends in a rendering; None when nothing of it is there."""
    words = _words(turn)
    for group in (words[: len(turn.tool_calls)], words[len(turn.tool_calls) :]):
        ends = [at + len(word) for word in group if (at := text.find(word)) >= 0]
        if ends:
            return max(ends)
    return None
