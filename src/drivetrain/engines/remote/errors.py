"""What an engine server's refusal means. Field names: engines.md section 2 ("Errors")."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from drivetrain.engines.protocol import ContextOverflow, EngineError

_MAX_SAID = 300
_RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
_OVERFLOW = re.compile(
    r"maximum (?:context|model) length"
    r"|context[_ ]length[_ ]exceeded"
    r"|longer than the (?:model's context|maximum model|maximum allowed|context) length"
    r"|exceeds? the (?:model's |maximum )*(?:context|model) (?:length|window|size)"
    r"|(?:input|prompt)[^.]{0,80} (?:is too long|exceeds the maximum)",
    re.IGNORECASE,
)
_FIXES = {
    401: "Give the key that the server was started with.",
    403: "Give a key that may do this, or start the server with this endpoint switched on.",
    404: "Check the base URL and the model's name.",
}


def error_of_reply(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> EngineError:
    """The error that a reply with a status of 300 or more stands for.

    Status, the server's own name for the error and Retry-After are kept. ``retryable`` says what HTTP says: 408, 425,
    429 and 5xx (but 501 and 505) are, every other 4xx is not. A redirect is never followed: the body, and the key,
    would go where nobody configured.
    """
    headers = headers or {}
    if 300 <= status < 400:
        return EngineError(
            f"the engine server answered {status}, a redirect.",
            fix="Configure the address that it points at.",
            status=status,
            retryable=False,
        )
    kind, said = _said(body, headers.get("Content-Type", ""))
    return EngineError(
        f"the engine server answered {status}: {said or 'nothing'}",
        fix=_FIXES.get(status, ""),
        status=status,
        kind=kind,
        retryable=status in _RETRYABLE or (status > 505 and status < 600),
        retry_after_s=_seconds(headers.get("Retry-After")),
    )


def says_overflow(text: str) -> bool:
    """Does the text of a 400 or 413 say that the prompt leaves no room in the context?"""
    return _OVERFLOW.search(text) is not None


def as_overflow(error: EngineError, *, prompt_tokens: int, context_length: int) -> EngineError:
    """:class:`ContextOverflow` where ``error`` is one, else ``error`` itself.

    A 400 or 413 is one when its text says so, or when the prompt fills the context.
    """
    if error.status in (400, 413) and (says_overflow(error.what) or prompt_tokens >= context_length):
        overflow = ContextOverflow(prompt_tokens, context_length)
        overflow.status, overflow.kind = error.status, error.kind
        return overflow
    return error


def _said(body: bytes, content_type: str) -> tuple[str, str]:
    """(the server's name for the error, its words on one line)."""
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError:
        text = body.decode("utf-8", "replace")
        if "html" in content_type.lower() or text.lstrip()[:1] == "<":
            title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
            return "", _line(f"a page ({title.group(1).strip()})" if title else "a page")
        return "", _line(text)
    inner: Any = value.get("error", value) if isinstance(value, dict) else value
    if not isinstance(inner, dict):
        return "", _line(str(inner))
    kind = inner.get("type") or inner.get("code") or ""
    words = next((inner[key] for key in ("message", "detail", "error", "msg") if inner.get(key)), "")
    return (kind if isinstance(kind, str) else ""), _line(words if isinstance(words, str) else repr(words))


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_SAID else line[:_MAX_SAID] + " ..."


def _seconds(value: str | None) -> float | None:
    """Retry-After in seconds; its date form is not used by engines and counts as none."""
    try:
        seconds = float(value) if value else None
    except ValueError:
        return None
    return seconds if seconds is not None and 0 <= seconds < 86400 else None
