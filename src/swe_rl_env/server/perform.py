"""One action in a sandbox: what the agent may do, what it may do wrong, and what is the machinery's fault."""

from __future__ import annotations

import asyncio
import posixpath

import msgspec

from drivetrain.sandboxes.protocol import ExecResult, SandboxError, SandboxGone, SandboxTimeout
from swe_rl_env.models import SWEAction
from swe_rl_env.work.survey import is_full
from swe_rl_env.work.workspace import Workspace

# bash where the image has one; the command is one argument, so nothing of it is read by this shell.
_SHELL = 'b=$(command -v bash) || b=/bin/sh; exec "$b" -c "$0"'
_WRITE = 'mkdir -p -- "$(dirname -- "$0")" && cat >"$0"'
_PATCH_TIMEOUT_S = 60.0
_KEPT_BYTES = 4 << 20  # of a stream, in memory; output_bytes of it are shown


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one action: seconds of a command, bytes of a stream and of a file."""

    command_timeout_s: float
    output_bytes: int
    file_bytes: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of an action; fields as in :class:`~swe_rl_env.models.SWEObservation`."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    timed_out: bool = False
    output_truncated: bool = False
    error: str = ""


async def perform(workspace: Workspace, action: SWEAction, bounds: Bounds) -> Outcome:
    """Carry out any action but ``submit``. What the agent can put right comes back in ``error``.

    Raises:
        SandboxError: the sandbox failed, and not because of what the agent did in it.
    """
    try:
        match action.type:
            case "bash":
                return await _bash(workspace, action, bounds)
            case "apply_patch":
                return await _apply(workspace, action, bounds)
            case "read":
                return await _read(workspace, action, bounds)
            case "write":
                return await _write(workspace, action, bounds)
            case _:
                raise AssertionError(f"{action.type} is not done in the sandbox")
    except (SandboxGone, SandboxTimeout):
        raise
    except SandboxError:
        if not await is_full(workspace.sandbox, workspace.pids):
            raise
        return Outcome(error=f"No other process can be started: the sandbox is full of them (limit {workspace.pids}).")


async def _bash(workspace: Workspace, action: SWEAction, bounds: Bounds) -> Outcome:
    assert action.command is not None
    done = await workspace.sandbox.exec(
        ["/bin/sh", "-c", _SHELL, action.command],
        cwd=workspace.repo,
        timeout_s=min(action.timeout_s or bounds.command_timeout_s, bounds.command_timeout_s),
        max_output_bytes=_KEPT_BYTES,
    )
    return _shown(done, bounds)


async def _apply(workspace: Workspace, action: SWEAction, bounds: Bounds) -> Outcome:
    assert action.patch is not None
    done = await workspace.sandbox.exec(
        ["git", "apply", "--whitespace=nowarn", "-"],
        cwd=workspace.repo,
        stdin=action.patch.encode("utf-8"),
        timeout_s=_PATCH_TIMEOUT_S,
        max_output_bytes=_KEPT_BYTES,
    )
    return _shown(done, bounds)


async def _read(workspace: Workspace, action: SWEAction, bounds: Bounds) -> Outcome:
    assert action.path is not None
    path = posixpath.join(workspace.repo, action.path)
    try:
        async with asyncio.timeout(bounds.command_timeout_s):
            data = await workspace.sandbox.read(path, max_bytes=bounds.file_bytes)
        return Outcome(stdout=data.decode("utf-8"))
    except (SandboxGone, SandboxTimeout):
        raise
    except UnicodeDecodeError:
        return Outcome(error=f"{path} is not UTF-8 text ({len(data)} bytes).")
    except TimeoutError:
        return Outcome(error=f"{path} could not be read within {bounds.command_timeout_s:g} s.", timed_out=True)
    except FileNotFoundError:
        return Outcome(error=f"There is no file {path}.")
    except SandboxError as error:
        said = str(error).replace(workspace.sandbox.id, "").strip()  # its name is no business of the agent's
        return Outcome(error=f"{path} could not be read: {said}")


async def _write(workspace: Workspace, action: SWEAction, bounds: Bounds) -> Outcome:
    assert action.path is not None and action.content is not None
    path = posixpath.join(workspace.repo, action.path)
    data = action.content.encode("utf-8")
    if len(data) > bounds.file_bytes:
        return Outcome(error=f"{path} was not written: {len(data)} bytes, and {bounds.file_bytes} are the most.")
    # Not SandboxHandle.write, which makes a new file: what is there keeps its mode, and a link is followed.
    done = await workspace.sandbox.exec(
        ["/bin/sh", "-c", _WRITE, path],
        cwd=workspace.repo,
        stdin=data,
        timeout_s=bounds.command_timeout_s,
        max_output_bytes=_KEPT_BYTES,
    )
    if done.exit_code == 0 and not done.timed_out:
        return Outcome()
    said = "it took too long" if done.timed_out else done.stderr.decode("utf-8", "replace").strip()
    return Outcome(
        error=f"{path} could not be written: {said or f'exit code {done.exit_code}'}.", timed_out=done.timed_out
    )


def _shown(done: ExecResult, bounds: Bounds) -> Outcome:
    out, cut_out = shorten(done.stdout, bounds.output_bytes)
    err, cut_err = shorten(done.stderr, bounds.output_bytes)
    return Outcome(
        stdout=out,
        stderr=err,
        exit_code=done.exit_code,
        timed_out=done.timed_out,
        output_truncated=cut_out or cut_err or done.truncated,
    )


def shorten(data: bytes, limit: int) -> tuple[str, bool]:
    """Output as text of at most about ``limit`` bytes: its head and its tail, with a line that says what is missing."""
    if len(data) <= limit:
        return data.decode("utf-8", "replace"), False
    head, tail = data[: limit // 2], data[-(limit - limit // 2) :]
    note = f"\n[... {len(data) - limit} bytes left out ...]\n"
    return head.decode("utf-8", "replace") + note + tail.decode("utf-8", "replace"), True
