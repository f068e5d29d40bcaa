"""What a sandbox of ours says of itself, and how a command becomes a request to ``inside/init.py``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from drivetrain.errors import ConfigError
from drivetrain.sandboxes.control.transfer import FileTransfer
from drivetrain.sandboxes.protocol import SandboxError, SandboxSpec


class Commands(FileTransfer):
    """The part of ``SandboxHandle`` that needs no connection.

    Args:
        sandbox_id: unique name.
        spec: as given to ``create``.
        environment: defaults of every command (HOME, PATH, TMPDIR, USER, LANG, ...); the spec's ``env`` goes over them.
    """

    def __init__(self, sandbox_id: str, spec: SandboxSpec, environment: Mapping[str, str]) -> None:
        self._id = sandbox_id
        self._spec = spec
        self._environment = dict(environment)

    @property
    def id(self) -> str:
        """Unique name, also the label the reaper looks for."""
        return self._id

    @property
    def workdir(self) -> str:
        """Default cwd, inside path."""
        return self._spec.workdir

    @property
    def home(self) -> str:
        """HOME of every command, inside path."""
        return self._environment["HOME"]

    def gateway_url(self) -> str:
        """Base URL of the gateway as seen from inside.

        Raises:
            SandboxError: the sandbox has no gateway network.
        """
        url = self._gateway_at()
        if url is None:
            raise SandboxError(
                f"Sandbox {self.id} has no way to the gateway: its network is {self._spec.network!r}.",
                fix='Create it with network="gateway" and a gateway_socket.',
            )
        return url

    def _gateway_at(self) -> str | None:
        raise NotImplementedError

    def _command(self, argv: Sequence[str], cwd: str | None, env: Mapping[str, str] | None) -> dict[str, object]:
        if isinstance(argv, str) or not argv:
            raise ConfigError(f"A command is a non-empty list of strings, not {argv!r}.")
        whole = {**self._environment, **self._spec.env, **(env or {})}
        return {
            "argv": [os.fsencode(word) for word in argv],
            "cwd": os.fsencode(cwd or self.workdir),
            "env": {os.fsencode(name): os.fsencode(value) for name, value in whole.items()},
        }
