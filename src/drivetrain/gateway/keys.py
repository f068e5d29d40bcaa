"""Session secrets: minted once, kept as digests, shown to nobody."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping

_PREFIX = "dt-"


def mint_key() -> str:
    """A new 256-bit secret that works as an API key in every harness."""
    return _PREFIX + secrets.token_urlsafe(32)


def digest_key(key: str) -> bytes:
    """sha256 of a key. The key is random, so that no salt is needed."""
    return hashlib.sha256(key.encode()).digest()


def same_key(digest: bytes, key: str) -> bool:
    """Constant-time comparison of a key with a stored digest."""
    return hmac.compare_digest(digest, digest_key(key))


def read_key(headers: Mapping[str, str], query: Mapping[str, str] | None = None) -> str:
    """The key a client sent as bearer token, ``x-api-key``, ``x-goog-api-key`` or ``?key=``; empty when none."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    return headers.get("x-api-key", "") or headers.get("x-goog-api-key", "") or (query or {}).get("key", "")
