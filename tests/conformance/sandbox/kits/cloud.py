"""What the kits of cloud backends share: a double in this process, or that of the process which started this one."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drivetrain.sandboxes import NetworkPolicy, SandboxHandle
from drivetrain.sandboxes.remote.labels import KEY_OWNER, owner_key
from tests.conformance.sandbox.kits.base import BaseKit, Client
from tests.sandboxes.doubles import box


class CloudKit(BaseKit):
    """Needs: :meth:`serve` and :meth:`make`."""

    measured = frozenset({"cpu_s", "memory_bytes", "pids"})
    reachable: NetworkPolicy = "none"

    def __init__(self) -> None:
        self.url = ""
        self.server: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def variable(self) -> str:
        return f"DRIVETRAIN_DOUBLE_{self.name.upper()}"

    def serve(self, root: Path) -> Any:
        """A new double, not started."""
        raise NotImplementedError

    def missing(self) -> str | None:
        return box.missing()

    def start(self) -> None:
        self.url = os.environ.get(self.variable, "")
        if not self.url:
            self._folder = tempfile.TemporaryDirectory(prefix="double-")
            Path(self._folder.name).chmod(0o755)
            self.server = self.serve(Path(self._folder.name) / "boxes")
            self.server.start()
            self.url = self.server.url

    def environ(self) -> Mapping[str, str]:
        return {self.variable: self.url}

    def client(self) -> Client:
        return Client("/usr/bin/python3")

    @staticmethod
    def scope(root: Path) -> str:
        return hashlib.sha256(bytes(root)).hexdigest()[:16]

    def left(self, root: Path) -> list[str]:
        with urllib.request.urlopen(f"{self.url}/double", timeout=10) as reply:
            boxes = json.load(reply)
        owner = owner_key(self.scope(root))
        return [f"box {name}" for name, metadata in boxes.items() if metadata.get(KEY_OWNER) == owner]

    def vanish(self, handle: SandboxHandle) -> None:
        self.server.vanish(handle.provider_id)  # type: ignore[attr-defined]

    def cut(self) -> int:
        count: int = self.server.cut()
        return count

    def close(self) -> None:
        if self.server is not None:
            self.server.stop()
            self.server = None
        if self._folder is not None:
            self._folder.cleanup()
