"""Messages a session has seen already, by their raw JSON.

A harness sends its whole history in every call. Each message is decoded and hashed once; when the same bytes come
again, that work is a look-up (design section 4, "Match": work proportional to what is new).
"""

from __future__ import annotations

import msgspec

from drivetrain.messages import Message
from drivetrain.trace.keys import Key, message_key

_LIMIT_BYTES = 32 << 20


class KnownMessage(msgspec.Struct, frozen=True):
    """A decoded message and its tolerant key."""

    message: Message
    key: Key


class MessageMemo:
    """Decoded messages by raw slice; forgets everything when the slices exceed ``limit_bytes``."""

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._known: dict[bytes, KnownMessage] = {}
        self._bytes = 0
        self.decoded = 0
        """Messages that had to be decoded so far."""

    def get(self, raw: bytes) -> KnownMessage | None:
        """What these bytes decoded to before, or None."""
        return self._known.get(raw)

    def put(self, raw: bytes, message: Message) -> KnownMessage:
        """Remember a decoded message."""
        self.decoded += 1
        self._bytes += len(raw)
        if self._bytes > self._limit:
            self._known.clear()
            self._bytes = len(raw)
        known = KnownMessage(message, message_key(message))
        self._known[raw] = known
        return known

    def clear(self) -> None:
        """Forget everything: the session is sealed."""
        self._known.clear()
        self._bytes = 0
