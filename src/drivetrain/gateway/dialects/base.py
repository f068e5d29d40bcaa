"""What a dialect does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from drivetrain.gateway.memo import MessageMemo
from drivetrain.gateway.refusal import Refusal
from drivetrain.messages import Call, Reply


class Dialect(Protocol):
    """One API: decode a request, encode a reply as JSON or as server-sent events, encode an error."""

    name: str

    def decode(self, body: bytes, memo: MessageMemo | None = None) -> Call:
        """Read a request body; messages that ``memo`` knows are not decoded again.

        Raises:
            Refusal: malformed, or asks for what cannot be served or trained.
        """

    def encode(self, reply: Reply) -> bytes:
        """The JSON reply."""

    def events(self, reply: Reply, call: Call) -> Sequence[bytes]:
        """The reply as framed events, the terminal one last."""

    def keep_alive(self) -> bytes:
        """Bytes that keep a waiting client from giving up and mean nothing."""

    def error(self, refusal: Refusal) -> bytes:
        """The JSON error body."""

    def error_events(self, refusal: Refusal) -> Sequence[bytes]:
        """An error after the stream was opened."""
