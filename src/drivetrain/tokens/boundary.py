"""How an assistant turn is closed, per template family.

The sampled ids end with the close token when the policy stopped by itself and without it when it was cut; what the
template writes between one turn and the next must follow either way (case rows A5, A12). A family is declared here
and verified against the template when the gateway starts.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.tokens.template import ChatTemplate
from drivetrain.tokens.tokenizer import Tokenizer


class Family(msgspec.Struct, frozen=True):
    """A template family: the special token that closes a turn and the text the template writes after it."""

    name: str
    close_token: str
    after_close: str


FAMILIES: tuple[Family, ...] = (Family("chatml", "<|im_end|>", "\n"),)


class Boundary(msgspec.Struct, frozen=True):
    """A family bound to a tokenizer: ids instead of text."""

    family: Family
    close_id: int

    def join_text(self, tail_text: str) -> str:
        """Text between the close token and the next sampled token."""
        return self.family.after_close + tail_text

    def needs_close(self, sampled: Sequence[int]) -> bool:
        """Whether the close token must be added as context: the turn was cut or stopped on another token."""
        return len(sampled) == 0 or sampled[-1] != self.close_id


def detect_boundary(template: ChatTemplate, tokenizer: Tokenizer) -> Boundary:
    """Find the family of a template and verify it.

    Raises:
        ConfigError: no declared family closes turns as this template does, its close token is not one token, or the
            tokenizer does not split text at it (then ids could not be joined there).
    """
    close = template.assistant_close()
    for family in FAMILIES:
        if close == family.close_token + family.after_close:
            break
    else:
        known = ", ".join(family.name for family in FAMILIES)
        raise ConfigError(
            f"the chat template closes an assistant turn with {close!r}, which no known template family does.",
            fix=f"Use a model of one of these families: {known}.",
        )
    close_id = tokenizer.token_id(family.close_token)
    if close_id is None or family.close_token not in tokenizer.special_tokens:
        raise ConfigError(
            f"{family.close_token!r} closes a turn but is no special token of the tokenizer.",
            fix="Use the tokenizer that belongs to this chat template.",
        )
    left, right = "word", f"{family.after_close}next word"
    whole = tokenizer.encode(left + family.close_token + right)
    if whole != [*tokenizer.encode(left), close_id, *tokenizer.encode(right)]:
        raise ConfigError(
            f"the tokenizer merges text across {family.close_token!r}, so that turns cannot be joined by ids.",
            fix="Use the tokenizer that belongs to this chat template.",
        )
    return Boundary(family, close_id)
