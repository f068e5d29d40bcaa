"""Secrets and what they open: minted once, kept as digests, shown to nobody.

Three scopes. An *agent* key opens the model calls of one session and nothing else. The *trainer* key opens, reads and
seals sessions and works the fence; the *admin* key opens everything. A key's prefix tells people and log filters what
it is (:mod:`drivetrain.gateway.redact`); what it opens is decided by its digest.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Literal

from drivetrain.errors import ConfigError
from drivetrain.gateway.refusal import Refusal

Scope = Literal["agent", "trainer", "admin"]
AdminScope = Literal["trainer", "admin"]

MIN_ADMIN_KEY = 16
"""Characters of an admin or trainer key at least; on a public address twice as many."""


def mint_key(scope: Scope = "agent") -> str:
    """A new 256-bit secret; an agent's works as an API key in every harness."""
    return f"dt-{scope}-{secrets.token_urlsafe(32)}"


def digest_key(key: str) -> bytes:
    """sha256 of a key. The key is random, so that no salt is needed."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def same_key(digest: bytes, key: str) -> bool:
    """Constant-time comparison of a key with a stored digest."""
    return hmac.compare_digest(digest, digest_key(key))


def read_key(headers: Mapping[str, str], query: Mapping[str, str] | None = None) -> str:
    """The key a client sent as bearer token, ``x-api-key``, ``x-goog-api-key`` or ``?key=``; empty when none."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    return headers.get("x-api-key", "") or headers.get("x-goog-api-key", "") or (query or {}).get("key", "")


class AdminKeys:
    """The keys of the admin surface; only digests are held.

    Args:
        admin: opens everything.
        trainer: opens what a trainer needs; empty = there is no such key.

    Raises:
        ConfigError: a key is too short, or both are the same.
    """

    def __init__(self, admin: str, trainer: str = "") -> None:
        for scope, key in (("admin", admin), ("trainer", trainer or admin)):
            if len(key) < MIN_ADMIN_KEY:
                raise ConfigError(
                    f"the {scope} key is shorter than {MIN_ADMIN_KEY} characters.", fix="Use a long random key."
                )
        if admin == trainer:
            raise ConfigError("the trainer key is the admin key.", fix="Give the trainer a key of its own, or none.")
        self._admin = digest_key(admin)
        self._trainer = digest_key(trainer or mint_key("trainer"))
        self.shortest = min(len(admin), len(trainer or admin))
        """Characters of the shorter key."""

    def require(self, key: str, scope: AdminScope) -> AdminScope:
        """The scope of a key that opens at least ``scope``.

        Raises:
            Refusal: the key is unknown (401), or opens less (403).
        """
        is_admin, is_trainer = same_key(self._admin, key), same_key(self._trainer, key)
        if is_admin:
            return "admin"
        if not is_trainer:
            raise Refusal("invalid_api_key", "unknown admin key.", fix="Use the key the gateway was started with.")
        if scope == "admin":
            raise Refusal("forbidden", "the trainer key does not open this.", fix="Use the admin key.")
        return "trainer"
