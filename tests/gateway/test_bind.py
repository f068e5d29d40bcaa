"""Addresses: loopback freely, public ones under TLS or by explicit override, strong keys for the admin surface."""

from __future__ import annotations

import ssl
from pathlib import Path

import aiohttp
import pytest

from drivetrain.errors import ConfigError
from drivetrain.gateway.bind import Tls, check_address, is_loopback
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.keys import AdminKeys, mint_key
from drivetrain.gateway.server import GatewayServer
from drivetrain.tokens.codec import TokenCodec
from tests.gateway.certificates import write_certificate
from tests.gateway.conftest import StartRig


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    check_address(host, tls=None, allow_public=False, keys=AdminKeys("a" * 16))


@pytest.mark.case("D13")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.7", "8.8.8.8", "example.org", "localhost.example.org"])
def test_public(host: str) -> None:
    tls = Tls(Path("cert.pem"), Path("key.pem"))
    strong, weak = AdminKeys("a" * 32), AdminKeys("a" * 31)
    with pytest.raises(ConfigError, match=r"in the clear.*TLS certificate"):
        check_address(host, tls=None, allow_public=False)
    with pytest.raises(ConfigError, match="in the clear"):
        check_address(host, tls=None, allow_public=False, keys=strong)
    for given in ({"tls": tls, "allow_public": False}, {"tls": None, "allow_public": True}):
        check_address(host, **given)  # type: ignore[arg-type]
        check_address(host, **given, keys=strong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="shorter than 32"):
            check_address(host, **given, keys=weak)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="shorter than 32"):
            check_address(host, **given, keys=AdminKeys("a" * 32, "t" * 16))  # type: ignore[arg-type]


@pytest.mark.case("D13")
async def test_servers_refuse(start_rig: StartRig, codec: TokenCodec, tmp_path: Path) -> None:
    rig = await start_rig()
    other = GatewayServer(Gateway(rig.gateway.engine, codec, tmp_path / "other.sqlite", model="m"))
    try:
        with pytest.raises(ConfigError, match="in the clear"):
            await other.listen_tcp(0, "0.0.0.0")
        with pytest.raises(ConfigError, match="in the clear"):
            await other.listen_admin(0, mint_key("admin"), "0.0.0.0")
        with pytest.raises(ConfigError, match=f"port {rig.port} on 127.0.0.1 is in use"):
            await other.listen_tcp(rig.port)
        with pytest.raises(ConfigError, match="in use"):
            await other.listen_admin(rig.port, mint_key("admin"))
        with pytest.raises(ConfigError, match="admin key is shorter than 16"):
            await other.listen_admin(0, "short")
        assert await other.listen_admin(0, "a" * 16) > 0
        with pytest.raises(ConfigError, match="already"):
            await other.listen_admin(0, "a" * 16)
    finally:
        await other.aclose()


async def test_both_surfaces_speak_tls(start_rig: StartRig, tmp_path: Path) -> None:
    rig = await start_rig(["ok"])
    tls = write_certificate(tmp_path)
    admin_key = mint_key("admin")
    port = await rig.server.listen_tcp(0, tls=tls)
    admin = await rig.server.listen_admin(0, admin_key, tls=tls)
    _, client = await rig.session()
    trusted = ssl.create_default_context(cafile=str(tls.certificate))
    async with aiohttp.ClientSession() as http:
        for url, key in (
            (f"https://127.0.0.1:{port}/v1/models", client.api_key),
            (f"https://127.0.0.1:{admin}/admin/sessions", admin_key),
        ):
            async with http.get(url, headers={"Authorization": f"Bearer {key}"}, ssl=trusted) as response:
                assert response.status == 200
            with pytest.raises(aiohttp.ClientError):
                await http.get(url.replace("https", "http"), headers={"Authorization": f"Bearer {key}"})


def test_unusable_certificates_are_named(tmp_path: Path) -> None:
    one, two = write_certificate(tmp_path / "one"), write_certificate(tmp_path / "two")
    one.context()
    with pytest.raises(ConfigError, match="no TLS certificate at"):
        Tls(tmp_path / "none.pem", one.key).context()
    with pytest.raises(ConfigError, match="no TLS private key at"):
        Tls(one.certificate, tmp_path / "none.pem").context()
    with pytest.raises(ConfigError, match="cannot be used"):
        Tls(one.certificate, two.key).context()
    one.key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
    with pytest.raises(ConfigError, match="cannot be used"):
        one.context()
