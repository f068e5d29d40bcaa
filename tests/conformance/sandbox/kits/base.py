"""What the suite needs to know about a backend under test: how to make one, and what it leaves behind."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from drivetrain.sandboxes import Feature, Mount, NetworkPolicy, SandboxBackend, SandboxHandle, SandboxSpec


class Client(NamedTuple):
    """A Python 3.9+ that runs inside: its path there, and the mounts it takes."""

    python: str
    mounts: tuple[Mount, ...] = ()


class Kit(Protocol):
    """One backend, as the suite sees it.

    A kit is made once for each test process. :class:`BaseKit` has defaults for everything that most backends on this
    machine share.
    """

    name: str
    measured: frozenset[str]
    """Fields of ``SandboxStats`` that are never None here."""
    reachable: NetworkPolicy
    """A network policy under which ``SandboxHandle.reach`` works, where there is ``reach``."""

    def missing(self) -> str | None:
        """Why the backend cannot run on this machine; None when it can. Cheap after the first call."""

    def promised(self) -> frozenset[Feature]:
        """The features it must have here, found out without asking the backend."""

    def start(self) -> None:
        """Once, before the first :meth:`make`: start the daemon or server its backends talk to, or join a running one.

        :meth:`environ` of another process's kit is then in the environment.
        """

    def make(self, root: Path) -> SandboxBackend:
        """A new backend whose sandboxes belong to ``root`` (a folder that is not there yet)."""

    def strict(self, root: Path) -> SandboxBackend:
        """As :meth:`make`, but one that accepts no weaker network policy than it is asked for."""

    def spec(self, **changes: Any) -> SandboxSpec:
        """The spec that the suite calls the default (an image, a template), with changes."""

    def client(self) -> Client:
        """The Python that test clients run on, inside a sandbox of :meth:`spec`."""

    def left(self, root: Path) -> list[str]:
        """What the backends made for ``root`` left behind after ``aclose``, in words; empty when nothing."""

    def processes(self, words: str) -> list[int]:
        """Host pids of live processes, wherever a sandbox runs them, whose command line holds these words in a row."""

    def environ(self) -> Mapping[str, str]:
        """Variables with which a kit in another process uses the same daemon or server as this one."""

    def vanish(self, handle: SandboxHandle) -> None:
        """End this sandbox from outside, without its owner, as a host that crashes would; blocks briefly."""

    def cut(self) -> int:
        """Sever every connection between backends of this kit and their sandboxes; how many. 0: it has none."""

    def close(self) -> None:
        """At the end of the test process: stop what :meth:`start` started."""


class BaseKit:
    """Defaults: no image, this Python mounted at its own path, sandboxes whose processes the host sees."""

    name = ""
    measured: frozenset[str] = frozenset()
    reachable: NetworkPolicy = "open"

    def missing(self) -> str | None:
        return None

    def start(self) -> None:
        pass

    def make(self, root: Path) -> SandboxBackend:
        raise NotImplementedError

    def strict(self, root: Path) -> SandboxBackend:
        return self.make(root)

    def spec(self, **changes: Any) -> SandboxSpec:
        return SandboxSpec(**changes)

    def client(self) -> Client:
        prefix = Path(sys.base_prefix)
        return Client(str(Path(sys.executable).resolve()), (Mount(source=prefix, target=str(prefix)),))

    def processes(self, words: str) -> list[int]:
        return command_lines(words.replace(" ", "\0").encode())

    def environ(self) -> Mapping[str, str]:
        return {}

    def cut(self) -> int:
        return 0

    def close(self) -> None:
        pass


def command_lines(text: bytes) -> list[int]:
    """Pids of processes on this machine (no zombies: they have no command line) with ``text`` in their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if text in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found
