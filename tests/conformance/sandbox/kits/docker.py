"""Containers of a real Docker under test: the test processes share one private daemon (``scripts/docker-engine``)."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from drivetrain.cache import cache_root
from drivetrain.sandboxes import Feature, SandboxBackend, SandboxHandle
from drivetrain.sandboxes.docker import DockerBackend
from drivetrain.sandboxes.docker.labels import ROOT
from tests.conformance.sandbox.kits.base import BaseKit, Client, command_lines

SCRIPT = Path(__file__).parents[4] / "scripts" / "docker-engine"
BASE_IMAGE = "drivetrain-test/base:1"
"""Debian with Python and git."""
BARE_IMAGE = "drivetrain-test/bare:1"
"""One static busybox: no C library, no Python, no /etc/passwd."""


def engine_folder() -> Path:
    """Where the shared daemon lives: one for each user of this machine."""
    return Path(tempfile.gettempdir()) / f"drivetrain-engine-{os.getuid()}"


class DockerKit(BaseKit):
    name = "docker"
    measured = frozenset({"cpu_s", "memory_bytes", "memory_peak_bytes", "pids", "oom_kills"})

    def __init__(self) -> None:
        self._users: int | None = None
        self._starts = 0
        self._locks = cache_root() / "test-images"
        self.folder = engine_folder()
        self.socket = self.folder / "docker.sock"

    def missing(self) -> str | None:
        if os.getuid() != 0:
            return "only root can start a Docker daemon for the tests"
        if shutil.which("dockerd") is None:
            return "there is no dockerd (scripts/docker-engine install)"
        if not all((self.images_folder() / f"{name}.tar").exists() for name in ("base", "bare")):
            return "the test images are not built (scripts/docker-engine images)"
        return None

    def images_folder(self) -> Path:
        """Where the script keeps the images it has built."""
        recipe = next(line for line in SCRIPT.read_text().splitlines() if line.startswith("recipe=")).split()[0]
        return cache_root() / "test-images" / recipe.removeprefix("recipe=")

    def promised(self) -> frozenset[Feature]:
        return frozenset(
            {
                *("image", "mount", "writable_mount", "overlay", "network_policy", "snapshot", "host_pids"),
                *("memory_limit", "pids_limit", "cpu_limit"),
            }
        )

    def start(self) -> None:
        """Join the daemon, or start it. It ends when the last process that holds the lock has, however it ends."""
        self._starts += 1
        if self._users is not None:
            return
        with (self._locks / f"{self.folder.name}.start").open("wb") as one_at_a_time:
            fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
            users = self._locks / f"{self.folder.name}.users"  # the script looks for it
            self._users = os.open(users, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._users, fcntl.LOCK_SH)
            subprocess.run([SCRIPT, "start", self.folder], check=True, capture_output=True, timeout=110)

    def close(self) -> None:
        """Leave the daemon when whoever called :meth:`start` here has closed; the last process stops it."""
        self._starts -= 1
        if self._users is None or self._starts > 0:
            return
        fcntl.flock(self._users, fcntl.LOCK_UN)  # or two that leave together would each see the other
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            subprocess.run([SCRIPT, "stop", self.folder], check=True, capture_output=True, timeout=60)
        os.close(self._users)
        self._users = None

    def make(self, root: Path) -> SandboxBackend:
        return DockerBackend(self.socket, image=BASE_IMAGE, root=root)

    def client(self) -> Client:
        return Client("/usr/bin/python3")

    def vanish(self, handle: SandboxHandle) -> None:
        self.ask("POST", f"/containers/{handle.id}/kill")

    def left(self, root: Path) -> list[str]:
        found = [f"folder {entry}" for entry in root.iterdir()] if root.exists() else []
        found += [f"process {pid}" for pid in command_lines(bytes(root))]
        found += [f"container {each['Names']} {each['State']}" for each in self.containers(root)]
        found += [f"image {each['RepoTags'] or each['Id']}" for each in self.images(root)]
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        found += [f"mount {line}" for line in mounts if str(root) in line]
        return found

    def containers(self, root: Path) -> list[dict[str, Any]]:
        """The engine's containers, running or not, of the backends made for ``root``."""
        return list(self.ask("GET", f"/containers/json?all=1&filters={_of(root)}"))

    def images(self, root: Path) -> list[dict[str, Any]]:
        """The snapshots of the backends made for ``root``."""
        return list(self.ask("GET", f"/images/json?filters={_of(root)}"))

    def ask(self, method: str, path: str) -> Any:
        """Call the Engine API; what it answers, from JSON."""
        with contextlib.closing(_Connection(self.socket)) as connection:
            connection.request(method, path)
            response = connection.getresponse()
            data = response.read()
            assert response.status < 400, (path, response.status, data)
            return json.loads(data) if data else None


def _of(root: Path) -> str:
    return quote(json.dumps({"label": [f"{ROOT}={root}"]}))


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("engine", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
