"""Pulls: once for all, with progress, patience and typed errors that say what to do; before a double of the engine."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from drivetrain.errors import ConfigError, MissingDependency
from drivetrain.sandboxes import SandboxSpec, SandboxStartError, SandboxTimeout
from drivetrain.sandboxes.docker import (
    DockerBackend,
    EngineError,
    ImageNotFound,
    ImageRefused,
    RegistryBusy,
    find_socket,
)
from drivetrain.sandboxes.docker import engine as engine_module
from drivetrain.sandboxes.docker import images as images_module
from drivetrain.sandboxes.docker.engine import Engine
from drivetrain.sandboxes.docker.images import Images
from tests.sandboxes.docker.double import Answer, EngineDouble, serving

DONE: Answer = [{"status": "Pull complete", "id": "layer"}]
BUSY: Answer = (500, "toomanyrequests: You have reached your pull rate limit.")


@asynccontextmanager
async def images(double: EngineDouble, folder: Path, lines: list[str], **options: Any) -> AsyncIterator[Images]:
    async with serving(double, folder) as path:
        engine = Engine(path)
        made = Images(engine, progress=lines.append, **{"auth": None, "timeout_s": 30.0, **options})
        try:
            yield made
        finally:
            await made.close()
            await engine.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images_module, "_FIRST_PAUSE_S", 0.01)


async def test_an_image_the_engine_has_is_not_pulled(tmp_path: Path) -> None:
    double = EngineDouble(DONE)
    double.has = True
    async with images(double, tmp_path, []) as made:
        image = await made.ensure("repo:tag")
    assert (image.id, image.digest, image.env) == ("sha256:1d", "sha256:d16e57", {"A": "b=c", "PATH": "/p"})
    assert double.pulled == 0


async def test_many_wants_are_one_pull(tmp_path: Path) -> None:
    double = EngineDouble(0.3)
    async with images(double, tmp_path, []) as made:
        found = await asyncio.gather(*(made.ensure("repo:tag") for _ in range(200)))
    assert len(found) == 200
    assert double.pulled == 1


async def test_who_stops_waiting_does_not_stop_the_pull_for_the_others(tmp_path: Path) -> None:
    double = EngineDouble(0.3)
    async with images(double, tmp_path, []) as made:
        first, second = (asyncio.create_task(made.ensure("repo:tag")) for _ in range(2))
        await asyncio.sleep(0.1)
        first.cancel()
        assert (await second).id == "sha256:1d"
        assert first.cancelled() or first.done()
    assert double.pulled == 1


async def test_progress_is_told_in_bytes_and_layers(tmp_path: Path) -> None:
    lines: list[str] = []
    messages = [
        {"status": "Pulling from repo", "id": "tag"},
        {"status": "Already exists", "id": "one"},
        {"status": "Downloading", "id": "two", "progressDetail": {"current": 2_000_000, "total": 8_000_000}},
        {"status": "Downloading", "id": "two", "progressDetail": {"current": 3_000_000, "total": 8_000_000}},
        {"status": "Pull complete", "id": "two"},
    ]
    async with images(EngineDouble(messages), tmp_path, lines) as made:
        await made.ensure("repo:tag")
    # A line at most each second, so the later messages of this quick pull are in none.
    assert lines == ["pulling repo:tag", "pulling repo:tag: 0.0 of 0.0 MB, 1 of 1 layers done"]


def test_the_sum_over_layers() -> None:
    layers = images_module._Layers()
    for layer, now in (("a", 1_000_000), ("b", 500_000), ("a", 2_000_000)):
        layers.note({"status": "Downloading", "id": layer, "progressDetail": {"current": now, "total": 2_000_000}})
    assert str(layers) == "2.5 of 4.0 MB, 0 of 2 layers done"
    layers.note({"status": "Pull complete", "id": "b"})
    assert str(layers) == "4.0 of 4.0 MB, 1 of 2 layers done"


@pytest.mark.parametrize(
    "busy", [BUSY, (429, "slow down"), (500, "unexpected EOF"), [{"error": "toomanyrequests: later"}]]
)
async def test_a_busy_registry_is_asked_again(busy: Answer, tmp_path: Path) -> None:
    lines: list[str] = []
    double = EngineDouble(busy, busy, DONE)
    async with images(double, tmp_path, lines) as made:
        assert (await made.ensure("repo:tag")).id == "sha256:1d"
    assert double.pulled == 3
    assert sum("again in" in line for line in lines) == 2


async def test_a_failure_that_stays_ends_soon(tmp_path: Path) -> None:
    double = EngineDouble((500, "Get https://registry/v2/: dial tcp: network is unreachable"))
    async with images(double, tmp_path, []) as made:
        with pytest.raises(RegistryBusy, match=r"repo:tag: .*unreachable"):
            await made.ensure("repo:tag")
    assert double.pulled == 4


async def test_patience_ends_at_the_deadline(tmp_path: Path) -> None:
    double = EngineDouble(BUSY)
    async with images(double, tmp_path, [], timeout_s=0.3) as made:
        with pytest.raises(RegistryBusy, match="pull rate limit") as caught:
            await made.ensure("repo:tag")
        assert "mirror" in caught.value.fix
        assert double.pulled > 1
        double.pulls = [DONE]  # a failure is not remembered
        assert (await made.ensure("repo:tag")).id == "sha256:1d"


async def test_a_pull_that_hangs_is_given_up(tmp_path: Path) -> None:
    async with images(EngineDouble(60.0), tmp_path, [], timeout_s=0.2) as made:
        with pytest.raises(SandboxTimeout, match="pull repo:tag"):
            await made.ensure("repo:tag")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((404, "manifest for repo:tag not found: manifest unknown"), ImageNotFound),
        ((404, "pull access denied for repo, repository does not exist or may require 'docker login'"), ImageNotFound),
        ([{"error": "manifest unknown", "errorDetail": {"message": "manifest unknown"}}], ImageNotFound),
        ((500, "Get https://registry/v2/: unauthorized: authentication required"), ImageRefused),
        ((401, "unauthorized"), ImageRefused),
        ((400, "invalid reference format"), EngineError),
    ],
)
async def test_what_no_patience_helps_is_said_at_once(answer: Answer, error: type[Exception], tmp_path: Path) -> None:
    double = EngineDouble(answer)
    async with images(double, tmp_path, []) as made:
        with pytest.raises(error, match="repo"):
            await made.ensure("repo:tag")
    assert double.pulled == 1


async def test_credentials_go_to_the_engine_and_nowhere_else(tmp_path: Path) -> None:
    lines: list[str] = []
    double = EngineDouble((401, "unauthorized"))
    secret = {"username": "u", "password": "hush-hush"}
    async with images(double, tmp_path, lines, auth=secret) as made:
        with pytest.raises(ImageRefused) as caught:
            await made.ensure("registry.example/repo:tag")
    assert double.auth[0] is not None
    sent = json.loads(base64.urlsafe_b64decode(double.auth[0]))
    assert sent == {**secret, "serveraddress": "registry.example"}
    assert "hush" not in f"{caught.value} {caught.value.__cause__} {lines}"


async def test_a_missing_image_is_a_failed_start_that_leaves_nothing(tmp_path: Path) -> None:
    async with serving(EngineDouble((404, "manifest unknown")), tmp_path) as path:
        backend = DockerBackend(path, root=tmp_path / "root")
        with pytest.raises(SandboxStartError, match="'no/such:image'"):
            await backend.create(SandboxSpec(image="no/such:image"))
        assert list((tmp_path / "root").iterdir()) == []
        await backend.aclose()


async def test_podman_is_recognised(tmp_path: Path) -> None:
    for components, name in (("Podman Engine", "Podman"), ("Engine", "Docker")):
        async with serving(EngineDouble(DONE, components=components), tmp_path) as path:
            engine = Engine(path)
            await engine.identify()
            assert engine.name == name
            await engine.close()


async def test_an_engine_that_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    backend = DockerBackend(tmp_path / "none.sock", root=tmp_path / "root")
    with pytest.raises(SandboxStartError, match="cannot be reached") as caught:
        await backend.create(SandboxSpec())
    assert "DOCKER_HOST" in caught.value.fix
    assert not (tmp_path / "root").exists()
    async with serving(EngineDouble(DONE), tmp_path):  # a later one is found
        backend = DockerBackend(tmp_path / "engine.sock", root=tmp_path / "root")
        assert await backend.reap() == []
        await backend.aclose()


async def test_a_stale_socket_is_named_with_what_to_do(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "stale.sock"))
    backend = DockerBackend(tmp_path / "stale.sock", root=tmp_path / "root")
    with pytest.raises(EngineError, match="refused") as caught:
        await backend.reap()
    assert "Start the engine" in caught.value.fix


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_no_right_to_the_socket_is_said(tmp_path: Path) -> None:
    async with serving(EngineDouble(DONE), tmp_path) as path:
        path.chmod(0o600)
        engine = Engine(path)
        # The file system's view of who we are; the thread of the loop makes the call.
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        libc.setfsuid(65534)
        try:
            with pytest.raises(EngineError, match="ermission denied") as caught:
                await engine.identify()
        finally:
            libc.setfsuid(0)
            await engine.close()
        assert "usermod -aG docker" in caught.value.fix


async def test_every_call_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    double = EngineDouble(DONE)
    double.hang = True
    async with serving(double, tmp_path) as path:
        engine = Engine(path)
        with pytest.raises(SandboxTimeout, match=r"engine\.sock"):
            await engine._call("ask", engine._docker.version(), 0.2)
        await engine.close()
    assert engine_module.CALL_TIMEOUT_S < 120


def test_the_socket_is_the_given_one_or_the_environments(tmp_path: Path) -> None:
    assert find_socket("unix:///a/b.sock", {}) == Path("/a/b.sock")
    assert find_socket(tmp_path, {"DOCKER_HOST": "unix:///x"}) == tmp_path
    assert find_socket(None, {"DOCKER_HOST": "unix:///x/docker.sock"}) == Path("/x/docker.sock")
    assert find_socket(None, {"CONTAINER_HOST": "unix:///x/podman.sock"}) == Path("/x/podman.sock")
    for address in ("tcp://10.0.0.1:2375", "ssh://host"):
        with pytest.raises(ConfigError, match="DOCKER_HOST") as caught:
            find_socket(None, {"DOCKER_HOST": address})
        assert "unix://" in caught.value.fix


def test_a_users_podman_socket_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.is_socket
    monkeypatch.setattr(Path, "is_socket", lambda self: self.is_relative_to(tmp_path) and real(self))
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with pytest.raises(MissingDependency, match=str(tmp_path)) as caught:
        find_socket(None, environ)
    assert "podman.socket" in caught.value.fix
    (tmp_path / "podman").mkdir()
    with socket.socket(socket.AF_UNIX) as podman, socket.socket(socket.AF_UNIX) as docker:
        podman.bind(str(tmp_path / "podman/podman.sock"))
        assert find_socket(None, environ) == tmp_path / "podman/podman.sock"
        docker.bind(str(tmp_path / "docker.sock"))
        assert find_socket(None, environ) == tmp_path / "docker.sock"
