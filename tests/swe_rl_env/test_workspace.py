"""What the agent's sandbox holds, and above all what it does not."""

from __future__ import annotations

from drivetrain.sandboxes import SandboxBackend
from swe_rl_env import BuiltTask, open_workspace, prompt_for


def _added_lines(patch: bytes) -> set[bytes]:
    lines = {line[1:].strip() for line in patch.splitlines() if line.startswith(b"+") and not line.startswith(b"+++")}
    return {line for line in lines if len(line) > 12}


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
        task.private.patch_sha256.encode(),
        *_added_lines(xmltodict.gold_patch),
        *_added_lines(xmltodict.test_patch),
    ):
        assert secret not in inside, secret
    assert b"PASS_TO_PASS" not in inside
    assert prompt_for(task).encode() not in inside


async def test_project_is_only_there_once(build, backend: SandboxBackend) -> None:  # type: ignore[no-untyped-def]
    """No other copy of the project, perhaps with the fix, in the interpreter's or the system's packages."""
    built = build("pypi__pyjwt-2.6.0")
    workspace = await open_workspace(backend, built)
    try:
        found = await workspace.sandbox.exec(
            [
                "/bin/sh",
                "-c",
                "find / -xdev -name api_jwt.py -not -path '/proc/*' 2>/dev/null; find / -name pip -type d",
            ]
        )
    finally:
        await workspace.close()
    assert found.stdout.decode().split() == ["/work/pyjwt/jwt/api_jwt.py"]


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
