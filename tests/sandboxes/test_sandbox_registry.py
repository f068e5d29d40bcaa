"""Backends by name, and what importing the package costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from drivetrain.errors import ConfigError
from drivetrain.sandboxes import SandboxBackend, backend_names, get_backend, registry


class FakePoint:
    def __init__(self, name: str, target: object) -> None:
        self.name = name
        self.target = target

    def load(self) -> object:
        return self.target


def test_local_is_known() -> None:
    assert "local" in backend_names()
    backend = get_backend("local")
    assert isinstance(backend, SandboxBackend)
    assert backend.name == "local"


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'locl'.*Did you mean 'local'\? Known: .*local"):
        get_backend("locl")


def test_third_parties_register_through_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    class Theirs:
        name = "theirs"
        features: frozenset[str] = frozenset()

        async def create(self, spec: object) -> object: ...

        async def drop(self, snapshot: object) -> None: ...

        async def reap(self) -> list[str]: ...

        async def aclose(self) -> None: ...

    points = [FakePoint("theirs", Theirs), FakePoint("broken", dict), FakePoint("local", dict)]

    def entry_points(group: str, name: str | None = None) -> list[FakePoint]:
        assert group == "drivetrain.sandboxes"
        return [point for point in points if name in (None, point.name)]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    assert isinstance(get_backend("theirs"), Theirs)
    assert set(backend_names()) >= {"local", "theirs"}
    with pytest.raises(ConfigError, match="not a SandboxBackend"):
        get_backend("broken")
    assert get_backend("local").name == "local"  # a built-in name is not for the taking


def test_import_is_light() -> None:
    script = "import sys, drivetrain.sandboxes; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "drivetrain.sandboxes.protocol" in loaded
    assert loaded.isdisjoint({"asyncio", "subprocess", "aiohttp", "numpy", "drivetrain.sandboxes.local"})
