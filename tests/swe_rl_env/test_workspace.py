"""What the agent's sandbox holds, and above all what it does not."""

from __future__ import annotations

import pytest

from drivetrain.sandboxes import SandboxBackend
from swe_rl_env import BuiltTask, open_workspace, prompt_for


def _added_lines(patch: bytes) -> set[bytes]:
    lines = {line[1:].strip() for line in patch.splitlines() if line.startswith(b"+") and not line.startswith(b"+++")}
    return {line for line in lines if len(line) > 12}


@pytest.mark.case("G1")
async def test_nothing_private_is_inside(xmltodict: BuiltTask, backend: SandboxBackend) -> None:
    task = xmltodict.task
    workspace = await open_workspace(backend, xmltodict)
    try:
        box = workspace.sandbox
        everything = await box.download(box.workdir) + await box.download(box.home)
        objects = await box.exec(
            ["git", "cat-file", "--batch-all-objects", "--batch", "--unordered"], cwd=workspace.repo
        )
        env = await box.exec(["env"])
        history = await box.exec(["git", "log", "--all", "--format=%H"], cwd=workspace.repo)
    finally:
        await workspace.close()
    inside = everything + objects.stdout + env.stdout
    assert history.stdout.decode().split() == [task.base_commit]
    for secret in (
        task.instance_id.encode(),
        task.archives.patch_sha256.encode(),
        *_added_lines(xmltodict.gold_patch),
        *_added_lines(xmltodict.test_patch),
    ):
        assert secret not in inside, secret
    assert b"PASS_TO_PASS" not in inside
    assert prompt_for(task).encode() not in inside


async def test_project_is_only_there_once(xmltodict: BuiltTask, backend: SandboxBackend) -> None:
    """No package folder but the task's own has content: another copy of the project could hold the fix."""
    environment = xmltodict.environment
    workspace = await open_workspace(backend, xmltodict)
    try:
        script = (
            "find /usr /opt /root /home /work -type d "
            "\\( -name site-packages -o -name dist-packages -o -name node_modules \\) -prune 2>/dev/null "
            "| while read d; do [ -z \"$(ls -A $d)\" ] || echo $d; done; python -c 'import sys; print(sys.base_prefix)'"
        )
        found = await workspace.sandbox.exec(["/bin/sh", "-c", script])
        prefix = found.stdout.decode().split()[-1]
        own = await workspace.sandbox.exec(["/bin/sh", "-c", f"ls -A {prefix}/lib/python*/site-packages"])
    finally:
        await workspace.close()
    assert found.stdout.decode().split()[:-1] == ["/opt/task-env/lib/python3.11/site-packages"]
    assert own.stdout == b"" or prefix == "/usr"
    assert "xmltodict" not in environment.modules


async def test_suite_runs_inside(xmltodict: BuiltTask, backend: SandboxBackend) -> None:
    workspace = await open_workspace(backend, xmltodict, extra_env={"EXTRA": "1"})
    try:
        box = workspace.sandbox
        done = await box.exec(["/bin/sh", "-c", "python -m pytest -q && pytest --version"], cwd=workspace.repo)
        assert done.exit_code == 0, done.stdout
        extra = await box.exec(["/bin/sh", "-c", "echo $EXTRA $PYTHONPATH; git status --short"], cwd=workspace.repo)
        assert extra.stdout.decode().split() == ["1", workspace.repo]
    finally:
        await workspace.close()
