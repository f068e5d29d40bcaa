"""How long a streaming client waits in silence, and what keeps it waiting."""

from __future__ import annotations

from typing import Literal

import msgspec

from drivetrain.errors import ConfigError

KeepAliveForm = Literal["default", "comment", "event", "newline"]
"""``default`` is the dialect's own; ``comment`` an SSE comment line; ``event`` a data event of the dialect that means
nothing (Codex and Qwen ignore comments); ``newline`` a bare newline (Gemini CLI drops the event after a comment)."""


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """When a stream is opened before its reply is there; seconds.

    Inside ``grace_s`` a failure keeps its HTTP status; afterwards the stream is open, a keep-alive goes out every
    ``every_s``, and a failure becomes an error event. Clients wait 60 s (Gemini CLI) to 600 s (harnesses.md 1.5).
    A client that did not ask for a stream gets nothing before its reply: a JSON body cannot be begun without its
    status, so its own time-out must be raised (presets do).
    """

    grace_s: float = 15.0
    every_s: float = 10.0
    form: KeepAliveForm = "default"

    def __post_init__(self) -> None:
        for name in ("grace_s", "every_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive.", fix="Give it in seconds.")
