"""Does an engine serve the model that the gateway renders for? Template and tokenizer, by hash."""

from __future__ import annotations

import logging
from typing import Literal, Protocol, runtime_checkable

import msgspec

from drivetrain.errors import ConfigError

_log = logging.getLogger(__name__)

Match = Literal["same", "unknown"]


@runtime_checkable
class ServesTemplate(Protocol):
    """An engine that can name what it was started with; None = not known.

    Both are hex SHA-256 digests: of the UTF-8 source of the chat template, and of the bytes of ``tokenizer.json``.
    An engine may learn them from its server at :meth:`~drivetrain.engines.protocol.Engine.start`.
    """

    @property
    def template_sha256(self) -> str | None:
        """Digest of the chat template the engine would render with."""

    @property
    def tokenizer_sha256(self) -> str | None:
        """Digest of the tokenizer the engine decodes with."""


class IdentityCheck(msgspec.Struct, frozen=True):
    """What was compared at start-up. ``unknown``: the engine does not say, or we do not know our own digest."""

    template: Match
    tokenizer: Match


def check_identity(
    engine: object, *, name: str, template_sha256: str, tokenizer_sha256: str | None = None
) -> IdentityCheck:
    """Compare what the engine serves with what prompts are rendered with.

    Raises:
        ConfigError: a digest differs: ids of one model would be sampled from with another's meaning.
    """
    theirs: tuple[str | None, str | None] = (None, None)
    if isinstance(engine, ServesTemplate):
        theirs = (engine.template_sha256, engine.tokenizer_sha256)
    found = IdentityCheck(
        template=_compare("chat template", theirs[0], template_sha256, name),
        tokenizer=_compare("tokenizer", theirs[1], tokenizer_sha256, name),
    )
    _log.info("engine %s: chat template %s, tokenizer %s.", name, found.template, found.tokenizer)
    return found


def _compare(what: str, theirs: str | None, ours: str | None, name: str) -> Match:
    if theirs is None or ours is None:
        return "unknown"
    if theirs == ours:
        return "same"
    raise ConfigError(
        f"the {what} of engine {name} (sha256 {theirs}) is not the one prompts are made with (sha256 {ours}).",
        fix="Start the engine and the gateway from the same model directory, or give both the same "
        + ("--chat-template file." if what == "chat template" else "tokenizer.json."),
    )
