"""How a command's program is found inside: as ``os.execvpe`` does, which PID 1 does without (os is slow to import)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from drivetrain.sandboxes import SandboxHandle

SCRIPT = b"#!/bin/sh\necho $0\n"


async def run(box: SandboxHandle, name: str, path: Sequence[str]) -> tuple[int, bytes]:
    await box.write("/tmp/refused/tool", SCRIPT, mode=0o644)
    await box.write("/tmp/good/tool", SCRIPT, mode=0o755)
    await box.write("/tmp/later/tool", SCRIPT, mode=0o755)
    done = await box.exec([name], env={"PATH": ":".join(path)})
    return done.exit_code, done.stdout.strip()


@pytest.mark.parametrize(
    ("path", "outcome"),
    [
        (["/tmp/good", "/tmp/later"], (0, b"/tmp/good/tool")),
        (["/tmp/none", "/etc/passwd", "/tmp/good"], (0, b"/tmp/good/tool")),
        (["/tmp/refused", "/tmp/good"], (0, b"/tmp/good/tool")),
        (["/tmp/refused", "/tmp/none"], (126, b"")),
        (["/etc/passwd", "/tmp/none"], (127, b"")),
        ([""], (127, b"")),
    ],
)
async def test_path(box: SandboxHandle, path: list[str], outcome: tuple[int, bytes]) -> None:
    assert await run(box, "tool", path) == outcome


async def test_an_empty_entry_is_the_working_directory(box: SandboxHandle) -> None:
    await box.write("tool", SCRIPT, mode=0o755)
    assert (await box.exec(["tool"], env={"PATH": "/tmp/none:"})).exit_code == 0
