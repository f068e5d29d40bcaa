"""Addresses of engine servers, checked before anything is sent to them."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from drivetrain.errors import ConfigError

_EXAMPLE = "Give it as http://host:port, for example http://127.0.0.1:8000."


def base_urls(urls: str | Sequence[str]) -> tuple[str, ...]:
    """Base URLs without a trailing slash, in the order given, each once.

    Raises:
        ConfigError: there is none; one is no http or https URL, or carries a user, a query or a fragment. The message
            never quotes what may be a secret.
    """
    given = [urls] if isinstance(urls, str) else list(urls)
    if not given:
        raise ConfigError("no engine server is named.", fix=_EXAMPLE)
    return tuple(dict.fromkeys(_base(url) for url in given))


def _base(url: str) -> str:
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"the address of an engine server is no URL: {error}.", fix=_EXAMPLE) from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"the address of the engine server at {host} carries a user or a password.", fix="Pass api_key instead."
        )
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{url!r} is no address of an engine server.", fix=_EXAMPLE)
    if parts.query or parts.fragment:
        raise ConfigError(f"the address of the engine server at {host} has a query or a fragment.", fix=_EXAMPLE)
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}{f':{port}' if port else ''}{parts.path.rstrip('/')}"
