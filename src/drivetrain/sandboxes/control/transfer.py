"""Files in and out of a local sandbox. The work is done by a process inside (``inside/files.py``)."""

from __future__ import annotations

import os
from pathlib import Path

from drivetrain.sandboxes.protocol import ExecResult, SandboxError, SandboxTimeout

TRANSFER_TIMEOUT_S = 300.0
_NOT_FOUND, _TOO_LARGE = 44, 45  # as in inside/files.py


class FileTransfer:
    """The file half of ``SandboxHandle``; relative paths are below the workdir."""

    @property
    def workdir(self) -> str:
        """Default cwd, inside path."""
        raise NotImplementedError

    async def _run(
        self,
        request: dict[str, object],
        *,
        stdin: bytes | None,
        timeout_s: float,
        max_output_bytes: int,
        spill: Path | None = None,
    ) -> ExecResult:
        raise NotImplementedError

    async def read(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        """Content of a regular file.

        Raises:
            FileNotFoundError: no such file.
            SandboxError: larger than ``max_bytes``, unreadable, or no regular file.
            SandboxTimeout: not done within 300 s.
        """
        return await self._file("read", path, max_bytes, what=f"read {path}", max_output_bytes=max_bytes)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Create or replace a file atomically; parents are made. A symlink at ``path`` is replaced, not followed.

        Raises:
            SandboxError: the place is read-only, full, a directory or over the file size limit.
            SandboxTimeout: not done within 300 s.
        """
        await self._file("write", path, mode, what=f"write {path}", stdin=data)

    async def upload(self, tar: bytes, target: str) -> None:
        """Unpack a tar archive below directory ``target``, which is created if missing.

        Raises:
            SandboxError: a member would land outside ``target`` or is no file, directory or link; no valid archive.
            SandboxTimeout: not done within 300 s.
        """
        await self._file("upload", target, what=f"unpack into {target}", stdin=tar)

    async def download(self, path: str, *, max_bytes: int = 512 << 20) -> bytes:
        """A directory's content as an uncompressed tar, member names relative to ``path``, owner 0.

        Raises:
            FileNotFoundError: no such directory.
            SandboxError: larger than ``max_bytes`` or unreadable.
            SandboxTimeout: not done within 300 s.
        """
        return await self._file("download", path, what=f"pack {path}", max_output_bytes=max_bytes)

    async def _file(
        self,
        operation: str,
        path: str,
        *arguments: int,
        what: str,
        stdin: bytes | None = None,
        max_output_bytes: int = 0,
    ) -> bytes:
        request: dict[str, object] = {
            "file": (operation, os.fsencode(path), *arguments),
            "cwd": os.fsencode(self.workdir),
        }
        done = await self._run(
            request, stdin=stdin, timeout_s=TRANSFER_TIMEOUT_S, max_output_bytes=max(max_output_bytes, 4096)
        )
        said = done.stderr.decode(errors="replace").strip()
        if done.timed_out:
            raise SandboxTimeout(f"Could not {what} in the sandbox within {TRANSFER_TIMEOUT_S:g} s.")
        if done.exit_code == _NOT_FOUND and operation in ("read", "download"):
            raise FileNotFoundError(f"Could not {what} in the sandbox: {said}")
        if done.exit_code == _TOO_LARGE or len(done.stdout) > max_output_bytes or done.truncated:
            raise SandboxError(f"Could not {what} in the sandbox: more than {max_output_bytes} bytes.")
        if done.exit_code != 0:
            raise SandboxError(f"Could not {what} in the sandbox: {said or f'exit code {done.exit_code}'}.")
        return done.stdout
