"""Where an assistant turn ends and what follows it, in ids.

The sampled ids end with a close token when the policy stopped by itself and without one when it was cut; what the
template writes between one turn and the next must follow either way (case rows A5, A12). A family is declared in
:mod:`drivetrain.tokens.families` and verified here against the template and the tokenizer when a model is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.messages import Message
from drivetrain.tokens.families import FAMILIES, Close, Family
from drivetrain.tokens.template import Anchored, ChatTemplate
from drivetrain.tokens.tokenizer import Tokenizer

_NEXT = Message("user", "next question")


class Behind(msgspec.Struct, frozen=True):
    """Text behind an assistant's words, cut at the token that ends the turn there."""

    before: str
    close: Close
    rest: str


class Boundary(msgspec.Struct, frozen=True):
    """A family bound to a tokenizer: ids instead of text.

    ``close_id`` closes a text answer; ``close_ids`` maps every close token the tokenizer has to its id.
    """

    family: Family
    close_id: int
    close_ids: dict[str, int]

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids on which generation stops, the usual one first."""
        return tuple(self.close_ids[c.token] for c in self.family.closes if c.stop and c.token in self.close_ids)

    def closing(self, sampled: Sequence[int]) -> Close | None:
        """The close token that ended a sampled turn; None when it was cut or stopped on something else."""
        if len(sampled) == 0:
            return None
        return next((c for c in self.family.closes if self.close_ids.get(c.token) == sampled[-1]), None)

    def needs_close(self, sampled: Sequence[int]) -> bool:
        """Whether the close token must be added as context: the turn was cut or stopped on another token."""
        return self.closing(sampled) is None

    def cut(self, behind: str) -> Behind | None:
        """Cut template text behind an assistant's words at the first close token.

        None when the template closes this turn in an undeclared way, or with a token the tokenizer does not have.
        """
        found = [(at, c) for c in self.family.closes if (at := behind.find(c.token)) >= 0]
        if not found:
            return None
        at, close = min(found, key=lambda hit: hit[0])
        if close.token not in self.close_ids:
            return None
        return Behind(behind[:at], close, behind[at + len(close.token) :])

    def cut_tail(self, anchored: Anchored) -> Behind | None:
        """:meth:`cut` for a rendered tail; also None where the close token belongs to a message of the tail."""
        behind = self.cut(anchored.followed)
        return behind if behind is not None and anchored.alone.startswith(behind.before) else None

    def bridge(self, sampled: Sequence[int], behind: Behind, tokenizer: Tokenizer) -> list[int]:
        """Ids between a sampled turn and the next sampled token; sampled ids are never changed.

        * The turn ended on the token the template writes, or on another end of its own (``<|return|>`` where the
          template re-renders ``<|end|>``): only what comes behind it follows.
        * It ended on the header of another message than the one that came, or on an end where the template writes a
          header: the template's token follows the sampled one.
        * It was cut: the words are completed (``before_close``) and closed.
        """
        return tokenizer.encode(self.bridge_text(sampled, behind, tokenizer))

    def bridge_text(self, sampled: Sequence[int], behind: Behind, tokenizer: Tokenizer) -> str:
        """The text of :meth:`bridge`."""
        said = self.closing(sampled)
        if said is None:
            return self._completion(sampled, behind, tokenizer) + behind.close.token + behind.rest
        if said.token == behind.close.token or not (said.header or behind.close.header):
            return behind.rest
        return behind.close.token + behind.rest

    def _completion(self, sampled: Sequence[int], behind: Behind, tokenizer: Tokenizer) -> str:
        mark = self.family.before_close
        if not mark or behind.before != mark:
            return ""
        ids = tokenizer.encode(mark)
        return "" if list(sampled[-len(ids) :]) == ids else mark


def detect_boundary(template: ChatTemplate, tokenizer: Tokenizer) -> Boundary:
    """Find the family of a template and verify it.

    Raises:
        ConfigError: no declared family closes turns as this template does, its close token is not one token, or the
            tokenizer does not split text at it (then ids could not be joined there).
    """
    family = _family_of(template)
    token = family.close_token
    close_id = _special_id(tokenizer, token)
    if close_id is None:
        raise ConfigError(
            f"{token!r} closes a turn but is no special token of the tokenizer.",
            fix="Use the tokenizer that belongs to this chat template.",
        )
    if not _splits_at(tokenizer, family.closes[0]):
        raise ConfigError(
            f"the tokenizer merges text across {token!r}, so that turns cannot be joined by ids.",
            fix="Use the tokenizer that belongs to this chat template.",
        )
    others = {
        c.token: index
        for c in family.closes[1:]
        if (index := _special_id(tokenizer, c.token)) is not None and _splits_at(tokenizer, c)
    }
    return Boundary(family, close_id, {token: close_id, **others})


def _family_of(template: ChatTemplate) -> Family:
    last = template.assistant_close()
    middle = template.behind_turn((_NEXT,))  # None: the template hides earlier answers
    seen = [f for f in FAMILIES if (last if middle is None else middle.followed.startswith(f.mid_closing))]
    for family in seen:
        if last in _endings(family, template):
            return family
    for family in seen if template.ignores_generation_flag() else ():  # its generation prompt stands behind the ending
        if any(ending and last.startswith(ending) for ending in _endings(family, template)):
            return family
    known = ", ".join(family.name for family in FAMILIES)
    shown = last or (middle.followed[:40] if middle else "")
    raise ConfigError(
        f"the chat template closes an assistant turn with {shown!r}, which no known template family does.",
        fix=f"Use a model of one of these families: {known}; or declare the family in drivetrain/tokens/families.py.",
    )


def _endings(family: Family, template: ChatTemplate) -> set[str]:
    return {closing + eos for closing in family.last_closings for eos in ("", template.eos_token)}


def _special_id(tokenizer: Tokenizer, token: str) -> int | None:
    return tokenizer.token_id(token) if token in tokenizer.special_tokens else None


def _splits_at(tokenizer: Tokenizer, close: Close) -> bool:
    left, right = "word", f"{close.after}next word"
    whole = tokenizer.encode(left + close.token + right)
    return whole == [*tokenizer.encode(left), tokenizer.token_id(close.token), *tokenizer.encode(right)]
