"""A served environment on loopback, and a backend that counts what is open and fails when told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from drivetrain.sandboxes import SandboxBackend, SandboxHandle, SandboxSpec, SandboxStartError, get_backend
from swe_rl_env.server.app import build_app
from swe_rl_env.server.host import Host
from swe_rl_env.server.settings import Settings

TASK = "pypi__xmltodict-0.14.2"


class Watched:
    """The local backend. ``open`` are the sandboxes that are, by role; ``refuse`` names a role that gets none."""

    def __init__(self) -> None:
        self._inner: SandboxBackend = get_backend("local")
        self.open: dict[str, tuple[str, SandboxHandle]] = {}
        self.refuse = ""
        self.made: list[str] = []

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def features(self) -> Any:
        return self._inner.features

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        role = spec.labels["role"]
        if role == self.refuse:
            raise SandboxStartError("no room on this machine, in /secret/place")
        box = await self._inner.create(spec)
        self.open[box.id] = role, box
        self.made.append(role)
        close = box.close

        async def closing() -> None:
            await close()
            self.open.pop(box.id, None)

        box.close = closing  # type: ignore[method-assign]
        return box

    def agents(self) -> list[SandboxHandle]:
        return [box for role, box in self.open.values() if role == "agent"]

    async def drop(self, snapshot: Any) -> None:
        await self._inner.drop(snapshot)

    async def reap(self) -> list[str]:
        return await self._inner.reap()

    async def aclose(self) -> None:
        await self._inner.aclose()


class Served:
    """A running server: its address, its host, its backend."""

    def __init__(self, url: str, host: Host, backend: Watched) -> None:
        self.url = url
        self.host = host
        self.backend = backend


@contextmanager
def serve(**settings: Any) -> Iterator[Served]:
    """A server with these settings, ended with everything it opened."""
    backend = Watched()
    host = Host(Settings(**settings), backend=backend)
    config = uvicorn.Config(build_app(host), host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Served(f"http://127.0.0.1:{port}", host, backend)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
        assert host.closed
        assert not backend.open, "the server's end closes every sandbox"


def wait_until(true: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Wait for it, or fail."""
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
