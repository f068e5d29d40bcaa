"""Which addresses are served, and how: loopback freely, public ones under TLS (case row D13)."""

from __future__ import annotations

import errno
import ipaddress
import ssl
from pathlib import Path

import msgspec
from aiohttp import web

from drivetrain.errors import ConfigError
from drivetrain.gateway.keys import MIN_ADMIN_KEY, AdminKeys


class Tls(msgspec.Struct, frozen=True):
    """Files in PEM: the certificate with its chain, and its private key (not encrypted)."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """What a server listens with; TLS 1.2 and newer.

        Raises:
            ConfigError: a file is missing or unusable, or the two do not belong together.
        """
        for path, what in ((self.certificate, "certificate"), (self.key, "private key")):
            if not path.is_file():
                raise ConfigError(f"no TLS {what} at {path}.", fix="Name a file in PEM.")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # A password is never asked for: an encrypted key fails like a broken one.
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(
                f"the TLS certificate {self.certificate} and key {self.key} cannot be used: {error}.",
                fix="Give a certificate in PEM and the unencrypted private key that belongs to it.",
            ) from error
        return context


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address; a host name other than ``localhost`` counts as public."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_address(host: str, *, tls: Tls | None, allow_public: bool, keys: AdminKeys | None = None) -> None:
    """Refuse to listen where a key would travel in the clear, or where a short one could be guessed.

    Args:
        host: the address.
        tls: what it is served with.
        allow_public: the caller knows that something in front of it encrypts.
        keys: of the admin surface.

    Raises:
        ConfigError: the address is public and neither TLS nor the override is given, or a key is too short for it.
    """
    if is_loopback(host):
        return
    if tls is None and not allow_public:
        raise ConfigError(
            f"refusing to listen on {host}: keys would travel in the clear.",
            fix="Give a TLS certificate and key, use 127.0.0.1 (with a tunnel), or allow a public address explicitly "
            "when a proxy in front of it speaks TLS.",
        )
    if keys is not None and keys.shortest < 2 * MIN_ADMIN_KEY:
        raise ConfigError(
            f"refusing to serve the admin surface on {host} with a key shorter than {2 * MIN_ADMIN_KEY} characters.",
            fix="Use a long random key, or 127.0.0.1.",
        )


async def bind(runner: web.AppRunner, host: str, port: int, tls: Tls | None = None) -> int:
    """Listen; port 0 picks a free one. Returns the port.

    Raises:
        ConfigError: the port is in use, the address is not of this machine, or see :meth:`Tls.context`.
    """
    site = web.TCPSite(runner, host, port, ssl_context=tls.context() if tls else None)
    try:
        await site.start()
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", None) != errno.EADDRINUSE:
            raise ConfigError(f"cannot listen on {host}:{port}: {error}.") from error
        raise ConfigError(
            f"port {port} on {host} is in use.", fix="Choose another port, or 0 for any free one."
        ) from error
    return int(runner.addresses[-1][1])
