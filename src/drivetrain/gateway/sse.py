"""Server-sent event framing."""

from __future__ import annotations


def data_event(payload: bytes) -> bytes:
    """One unnamed event. JSON payloads hold no raw newline, so that one data line is enough."""
    return b"data: " + payload + b"\n\n"


def comment(text: str = "keep-alive") -> bytes:
    """A comment line; clients ignore it."""
    return f": {text}\n\n".encode()
