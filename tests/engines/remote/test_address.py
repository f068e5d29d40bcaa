"""Addresses of engine servers."""

from __future__ import annotations

import pytest

from drivetrain.engines.remote import base_urls
from drivetrain.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        (" https://engine.example/a/b/ ", "https://engine.example/a/b"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_a_base_url(given: str, base: str) -> None:
    assert base_urls(given) == (base,)


def test_several_keep_their_order_and_double_ones_go() -> None:
    assert base_urls(["http://b:1", "http://a:1/", "http://b:1"]) == ("http://b:1", "http://a:1")


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ([], "no engine server is named"),
        ("", "is no address"),
        ("127.0.0.1:8000", "is no address"),
        ("ftp://host:1", "is no address"),
        ("unix:///run/engine.sock", "is no address"),
        ("http://host:99999", "is no URL"),
        ("http://host?key=hunter2", "query or a fragment"),
        ("http://user:hunter2@host", "user or a password"),
        ("ftp://user:hunter2@host", "user or a password"),
    ],
)
def test_anything_else_is_refused(given: str | list[str], what: str) -> None:
    with pytest.raises(ConfigError, match=what) as error:
        base_urls(given)
    assert "hunter2" not in str(error.value)
    assert error.value.fix
