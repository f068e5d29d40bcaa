"""Who asked: the headers by which harnesses tell their conversations apart (harnesses.md sections 1.12 and 3)."""

from __future__ import annotations

from collections.abc import Mapping

SESSION_HEADERS = (
    "x-session-id",  # OpenCode
    "session_id",  # Pi, opt-in
    "x-claude-code-session-id",
    "session-id",  # Codex
    "thread-id",  # Codex
)
PARENT_HEADERS = (
    "x-parent-session-id",  # OpenCode
    "x-claude-code-agent-id",
    "x-codex-parent-thread-id",
)
KIND_HEADER = "x-openai-subagent"  # Codex: what kind of helper asks
IDENTITY_HEADERS = (*SESSION_HEADERS, *PARENT_HEADERS, KIND_HEADER)
_MAX_CHARS = 200


def read_origin(headers: Mapping[str, str], *, secret: str = "") -> dict[str, str]:
    """The identity headers of a request: an allow-list, so that no credential is ever recorded.

    Args:
        headers: the request's headers, names in any case if the mapping allows that.
        secret: the session's key; a value that holds it is left out.
    """
    found = {name: headers[name][:_MAX_CHARS] for name in IDENTITY_HEADERS if headers.get(name)}
    return {name: value for name, value in found.items() if not secret or secret not in headers[name]}


def parent_header(origin: Mapping[str, str]) -> str:
    """The header by which a request says that it belongs to a sub-agent; empty when it does not."""
    return next((name for name in (*PARENT_HEADERS, KIND_HEADER) if origin.get(name)), "")
