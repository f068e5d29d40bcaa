"""Which dialect a request is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drivetrain.gateway.dialects.anthropic_messages.dialect import AnthropicMessages
from drivetrain.gateway.dialects.base import Dialect
from drivetrain.gateway.dialects.google_genai.dialect import Google
from drivetrain.gateway.dialects.openai_chat import OpenAIChat
from drivetrain.gateway.dialects.openai_responses.dialect import OpenAIResponses

DIALECTS: tuple[Dialect, ...] = (OpenAIChat(), OpenAIResponses(), AnthropicMessages(), Google())
"""Every API that is served. A new one is one module and one entry here; the last resort comes first."""


def choose(path: str, headers: Mapping[str, str], among: Sequence[Dialect] = DIALECTS) -> Dialect:
    """The dialect that claims a request, else the first: errors and shared paths are answered in it."""
    return next((dialect for dialect in among if dialect.claims(path, headers)), among[0])
