"""The token side of a model directory."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from drivetrain.engines.models import ModelDir
from drivetrain.tokens.boundary import detect_boundary
from drivetrain.tokens.check import ReasoningPolicy, cached_check
from drivetrain.tokens.codec import TokenCodec
from drivetrain.tokens.parse import explain_choice
from drivetrain.tokens.template import ChatTemplate
from drivetrain.tokens.tokenizer import Tokenizer

_log = logging.getLogger(__name__)


def load_template(model: ModelDir, template_kwargs: dict[str, Any] | None = None) -> ChatTemplate:
    """The model's chat template with its special tokens and pinned keyword arguments.

    Raises:
        ConfigError: the template does not compile.
    """
    return ChatTemplate(model.chat_template, special_tokens=_special_tokens(model), kwargs=template_kwargs)


def load_codec(
    model: ModelDir,
    *,
    parser: str | None = None,
    template_kwargs: dict[str, Any] | None = None,
    reasoning: ReasoningPolicy = "keep",
) -> TokenCodec:
    """Tokenizer, chat template, boundary and parser of a model.

    Without a name the parser is chosen by the markers in the chat template
    (:func:`drivetrain.tokens.parsers.choose.explain_choice`). ``reasoning`` is explained at :class:`TokenCodec`. The
    template is checked for every message shape once and remembered (:func:`drivetrain.tokens.check.cached_check`).

    Raises:
        ConfigError: the tokenizer or template cannot be used; see :func:`drivetrain.tokens.boundary.detect_boundary`.
    """
    tokenizer = Tokenizer.from_file(model.tokenizer_path)
    template = load_template(model, template_kwargs)
    check = cached_check(template, tokenizer, detect_boundary(template, tokenizer))
    if parser is None:
        choice = explain_choice(model.chat_template)
        _log.log(logging.INFO if choice.known else logging.WARNING, "parser %s: %s.", choice.parser, choice.reason)
        parser = choice.parser
    return TokenCodec(
        tokenizer, template, stop_ids=model.stop_token_ids, parser=parser, reasoning=reasoning, check=check
    )


def _special_tokens(model: ModelDir) -> dict[str, str]:
    """``bos_token`` and its like, which templates may name."""
    path = model.path / "tokenizer_config.json"
    config: dict[str, Any] = msgspec.json.decode(path.read_bytes()) if path.is_file() else {}
    found = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found
