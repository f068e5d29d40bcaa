"""Lines of a system prompt that change from call to call and mean nothing to the task.

A preset or a policy may declare them (case row C7: a rotating billing line breaks prefix and cache in every call). They
are taken out before matching and rendering, so that the policy never sees them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.messages import Call, Message


def compile_patterns(patterns: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    """Regular expressions that are searched in each line of a system message.

    Raises:
        ConfigError: one of them is no regular expression.
    """
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern))
        except re.error as error:
            raise ConfigError(f"the volatile-line pattern {pattern!r} is no regular expression: {error}.") from error
    return tuple(compiled)


def strip_volatile(call: Call, patterns: Sequence[re.Pattern[str]]) -> Call:
    """The call without the volatile lines of its system and developer messages."""
    if not patterns:
        return call
    messages = tuple(_strip(message, patterns) for message in call.messages)
    return msgspec.structs.replace(call, messages=messages, keys=())


def _strip(message: Message, patterns: Sequence[re.Pattern[str]]) -> Message:
    if message.role not in ("system", "developer"):
        return message
    kept = [line for line in message.content.split("\n") if not any(pattern.search(line) for pattern in patterns)]
    return msgspec.structs.replace(message, content="\n".join(kept))
