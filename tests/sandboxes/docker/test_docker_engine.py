"""What is particular to containers, on a real Docker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.sandboxes import Limits, Mount, SandboxGone, SandboxSpec, SandboxStartError
from drivetrain.sandboxes.docker import DockerBackend, DockerSandbox, EngineError, ImageNotFound, ImageRefused
from drivetrain.sandboxes.docker import images as images_module
from tests.conformance.sandbox.kits.docker import BARE_IMAGE, BASE_IMAGE, DockerKit

pytestmark = pytest.mark.real

REGISTRY = Path(__file__).parent / "registry.py"
OWNER = """
import asyncio, sys
from pathlib import Path
from drivetrain.sandboxes import SandboxSpec
from drivetrain.sandboxes.docker import DockerBackend

async def main(socket, image, root):
    box = await DockerBackend(socket, image=image, root=Path(root)).create(SandboxSpec())
    await box.start(["sleep", "600"])
    print(box.id, flush=True)
    await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


async def make(backend: DockerBackend, **options: object) -> DockerSandbox:
    box = await backend.create(SandboxSpec(**options))
    assert isinstance(box, DockerSandbox)
    return box


async def test_no_secret_is_in_the_container_or_on_a_command_line(backend: DockerBackend, kit: DockerKit) -> None:
    secret = "hush-4711-hush"
    box = await make(backend, env={"API_KEY": secret})
    assert (await box.exec(["sh", "-c", "echo $API_KEY $MORE"], env={"MORE": secret})).stdout.split() == [
        secret.encode()
    ] * 2
    job = await box.start(["sleep", "600"], env={"MORE": secret})
    shown = json.dumps(kit.ask("GET", f"/containers/{box.id}/json"))
    assert "API_KEY" not in shown
    assert secret not in shown
    assert secret not in json.dumps(kit.ask("GET", f"/containers/{box.id}/top"))
    assert (await box.exec(["cat", "/proc/1/environ"])).exit_code != 0
    await job.kill(0)


async def test_the_container_has_no_privilege_and_its_limits(backend: DockerBackend, kit: DockerKit) -> None:
    box = await make(backend, limits=Limits(memory_bytes=256 << 20, pids=100, cpus=0.5, open_files=256))
    host = kit.ask("GET", f"/containers/{box.id}/json")["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (256 << 20, 256 << 20, 116)
    assert (host["NanoCpus"], host["CapDrop"], host["CapAdd"], host["Privileged"]) == (
        500_000_000,
        ["ALL"],
        None,
        False,
    )
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert (host["NetworkMode"], host["IpcMode"], host["AutoRemove"]) == ("none", "private", True)
    assert "/proc/keys" in host["MaskedPaths"]
    assert all(not mount["RW"] for mount in kit.ask("GET", f"/containers/{box.id}/json")["Mounts"])
    status = (await box.exec(["cat", "/proc/self/status"])).stdout.decode()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {fields[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (fields["NoNewPrivs"], fields["Seccomp"], fields["Uid"].split()) == ("1", "2", ["1000"] * 4)


async def test_the_images_digest_is_on_the_handle(backend: DockerBackend, kit: DockerKit) -> None:
    box = await make(backend)
    assert box.image_digest == kit.ask("GET", f"/images/{BASE_IMAGE}/json")["Id"]  # imported: no registry knows it


async def test_an_image_without_python_or_a_c_library_will_do(backend: DockerBackend) -> None:
    """PID 1 brings its own; the user gets a name though the image has no accounts."""
    box = await make(backend, image=BARE_IMAGE, network="none")
    done = await box.exec(["sh", "-c", "ls /; id; echo $USER; touch f && ls"])
    assert b"lib" not in done.stdout.split()
    assert b"uid=1000(agent) gid=1000(agent)" in done.stdout, done
    assert done.stdout.split()[-2:] == [b"agent", b"f"]
    await box.write("data", bytes(range(256)))
    assert await box.read("data") == bytes(range(256))
    assert (await box.stats()).pids


async def test_another_user_owns_home_and_workdir(kit: DockerKit, tmp_path: Path) -> None:
    for user, expected in (("0:0", b"root 0 0 0 0"), ("1234:4321", b"agent 1234 4321 1234 4321")):
        backend = DockerBackend(kit.socket, image=BASE_IMAGE, root=tmp_path / "root", user=user)
        box = await backend.create(SandboxSpec(workdir="/deep/er"))
        done = await box.exec(["sh", "-c", "echo $(id -un) $(id -u) $(id -g) $(stat -c '%u %g' .); touch f $HOME/f"])
        assert (done.stdout.strip(), done.exit_code) == (expected, 0), done
        await backend.aclose()
        assert kit.left(tmp_path / "root") == []
    with pytest.raises(SandboxStartError, match="numbers"):
        DockerBackend(kit.socket, user="somebody")


async def test_folders_that_lead_to_a_mount_in_home_are_the_users(backend: DockerBackend, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    box = await make(backend, mounts=(Mount(tmp_path / "source", "/home/agent/.cache/deep/m"),))
    assert (await box.exec(["sh", "-c", "touch $HOME/.cache/f $HOME/.cache/deep/f"])).exit_code == 0
    assert (await box.exec(["sh", "-c", "touch $HOME/.cache/deep/m/f"])).exit_code != 0


@pytest.mark.case("F1")
def test_a_killed_owner_leaves_no_container_even_without_the_reaper(kit: DockerKit, tmp_path: Path) -> None:
    root = tmp_path / "root"
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(kit.socket), BASE_IMAGE, str(root)], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        name = owner.stdout.readline().strip()
        assert [each["Names"] for each in kit.containers(root)] == [[f"/{name}"]]
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    until = time.monotonic() + 30
    while kit.containers(root):
        assert time.monotonic() < until, "the container outlives its owner"
        time.sleep(0.05)
    assert [entry.name for entry in root.iterdir()] == [name]

    async def reap() -> None:
        backend = DockerBackend(kit.socket, root=root)
        await backend.reap()
        await backend.aclose()

    asyncio.run(reap())
    assert kit.left(root) == []


async def test_the_sockets_of_a_sandbox_are_no_other_users_and_the_door_is_shut(backend: DockerBackend) -> None:
    box = await make(backend)
    folder = backend.root / box.id
    assert folder.stat().st_mode & 0o077 == 0
    assert list((folder / "control").iterdir()) == [], "the control socket took one peer and is gone"
    assert (await box.exec(["sh", "-c", "ls -A /.drivetrain-control; touch /.drivetrain-control/x"])).stdout == b""


async def test_somebody_else_at_the_door_is_turned_away(
    kit: DockerKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is not the container's PID 1 gets nothing, and the sandbox starts all the same."""
    import socket

    from drivetrain.sandboxes.docker import backend as backend_module

    intruders: list[socket.socket] = []

    class Door(backend_module.ControlDoor):
        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            intruders.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            here = os.open(folder, os.O_PATH)
            intruders[0].connect(f"/proc/self/fd/{here}/init")
            os.close(here)

    monkeypatch.setattr(backend_module, "ControlDoor", Door)
    backend = DockerBackend(kit.socket, image=BASE_IMAGE, root=tmp_path / "root")
    box = await backend.create(SandboxSpec())
    assert (await box.exec(["echo", "up"])).stdout == b"up\n"
    intruders[0].settimeout(10)
    assert intruders[0].recv(100) == b""
    intruders[0].close()
    await backend.aclose()


class Proxy:
    """A way to the engine that can be taken away."""

    def __init__(self, path: Path, engine: Path) -> None:
        self._path = path
        self._engine = engine
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self._path)

    def stop(self) -> None:
        self._server.close()
        self._path.unlink()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_unix_connection(self._engine)
        self._writers += [writer, there]
        await asyncio.gather(_copy(reader, there), _copy(there_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()


@pytest.mark.case("F8")
async def test_without_its_engine_a_sandbox_goes_on_and_close_can_be_repeated(kit: DockerKit, tmp_path: Path) -> None:
    root = tmp_path / "root"
    proxy = Proxy(tmp_path / "engine.sock", kit.socket)
    await proxy.start()
    backend = DockerBackend(tmp_path / "engine.sock", image=BASE_IMAGE, root=root)
    box = await backend.create(SandboxSpec())
    proxy.stop()
    assert (await box.exec(["echo", "on"])).stdout == b"on\n"
    with pytest.raises(SandboxStartError, match="cannot be reached"):
        await backend.create(SandboxSpec())
    with pytest.raises(EngineError, match="cannot be reached"):
        await box.close()
    with pytest.raises(SandboxGone, match="closed"):
        await box.exec(["true"])
    await proxy.start()
    await box.close()
    assert kit.left(root) == []
    await backend.aclose()
    proxy.stop()


@pytest.fixture(scope="module")
def registry(kit: DockerKit) -> Iterator[tuple[str, str]]:
    """Address and image digest of a registry beside the daemon."""
    layer = kit.images_folder() / "bare.tar"
    outer = (kit.folder / "pid").read_text().strip()
    inner = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()[0]
    command = ["nsenter", "--target", inner, "--net", sys.executable, str(REGISTRY), str(layer)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port, digest = process.stdout.readline().split()
        yield f"127.0.0.1:{port}", digest
        process.kill()


async def test_a_pulled_images_digest_is_the_registrys(
    backend: DockerBackend, kit: DockerKit, registry: tuple[str, str]
) -> None:
    address, digest = registry
    image = f"{address}/library/box:1"
    boxes = await asyncio.gather(*(make(backend, image=image) for _ in range(2)))
    assert {box.image_digest for box in boxes} == {digest}
    assert (await boxes[0].exec(["sh", "-c", "echo $FROM_IMAGE $PATH"])).stdout == b"yes /bin\n"
    pinned = await make(backend, image=f"{address}/library/box@{digest}")
    assert pinned.image_digest == digest
    await backend.aclose()
    kit.ask("DELETE", f"/images/{image}?force=1")


async def test_a_real_daemons_words_for_a_registrys_refusals(
    kit: DockerKit, registry: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images_module, "_FIRST_PAUSE_S", 0.05)
    address, digest = registry
    lines: list[str] = []
    backend = DockerBackend(kit.socket, root=tmp_path / "root", progress=lines.append)
    for image, error in ((f"{address}/library/box:none", ImageNotFound), (f"{address}/private:1", ImageRefused)):
        with pytest.raises(error, match=image):
            await backend.create(SandboxSpec(image=image))
    box = await make(backend, image=f"{address}/busy:1")
    assert box.image_digest == digest
    assert any("rate limit" in line and "again in" in line for line in lines), lines
    await backend.aclose()
    kit.ask("DELETE", f"/images/{address}/busy:1?force=1")
