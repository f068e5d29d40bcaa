"""A row in SWE-rebench V2's schema, with a project of our own, from its image to a verdict in a real Docker."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from drivetrain.sandboxes.docker import DockerBackend
from swe_rl_env import AGENTS, BuiltTask, grade_workspace, open_workspace, task_from_row
from swe_rl_env.building.image import build_image_task
from swe_rl_env.grading.run import grade
from tests.conformance.sandbox.kits import get_kit, wanted
from tests.conformance.sandbox.kits.docker import BASE_IMAGE, DockerKit, _Connection

pytestmark = [pytest.mark.real, pytest.mark.case("G1", "G2", "G3")]

IMAGE = "drivetrain-test/tally:1"
_SOURCE = (
    "def total(numbers):\n    return sum(numbers)\n\n\ndef mean(numbers):\n    return total(numbers) / len(numbers)\n"
)
_FIXED = _SOURCE.replace(
    "    return total(numbers) /", "    if not numbers:\n        return 0.0\n    return total(numbers) /"
)
_TESTS = """import pytest

from tally import mean, total


@pytest.mark.parametrize("words", ["one two"])
def test_total(words):
    assert total(len(w) for w in words.split()) == 6


def test_mean():
    assert mean([1, 3]) == 2
"""
_NEW_TESTS = _TESTS + "\n\ndef test_mean_of_nothing():\n    assert mean([]) == 0.0\n"


def _git(repo: Path, *args: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "safe.directory=*"]
    done = subprocess.run(["git", *identity, *args], cwd=repo, check=True, capture_output=True, text=True)
    return done.stdout


def _write(repo: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (repo / name).parent.mkdir(exist_ok=True)
        (repo / name).write_text(text)


def make_repo(repo: Path) -> dict[str, Any]:
    """The project at its base commit, with the fix left in its history as images have it; the V2 row for it."""
    repo.mkdir(parents=True)
    _git(repo, "init", "-q", "-b", "main")
    _write(repo, {"tally.py": _SOURCE, "tests/test_tally.py": _TESTS, ".gitignore": "build/\n", "conftest.py": ""})
    _git(repo, "add", ".")
    _git(repo, "commit", "-qm", "base")
    base = _git(repo, "rev-parse", "HEAD").strip()
    _write(repo, {"tally.py": _FIXED})
    patch = _git(repo, "diff")
    _write(repo, {"tally.py": _SOURCE, "tests/test_tally.py": _NEW_TESTS})
    test_patch = _git(repo, "diff")
    _write(repo, {"tally.py": _FIXED})
    _git(repo, "commit", "-qam", "the fix")
    _git(repo, "tag", "v2")
    _git(repo, "reset", "-q", "--hard", base)
    _write(repo, {"build/made-by-set-up.txt": "x\n"})
    return {
        "instance_id": "acme__tally-7",
        "repo": "Acme/tally",
        "base_commit": base,
        "created_at": 1700000000000,
        "language": "python",
        "license": "MIT",
        "image_name": IMAGE,
        "patch": patch,
        "test_patch": test_patch,
        "problem_statement": "mean() of nothing raises; it should be 0.0.",
        "pr_description": "secret",
        "interface": None,
        "FAIL_TO_PASS": ["tests/test_tally.py::test_mean_of_nothing"],
        # As the named parser cuts it: at the first blank.
        "PASS_TO_PASS": json.dumps(["tests/test_tally.py::test_mean", "tests/test_tally.py::test_total[one"]),
        "install_config": {
            "test_cmd": ["cat no-such-file", "python3 -m pytest -rA --tb=short -p no:cacheprovider tests"],
            "install": "true",
            "log_parser": "parse_log_pytest",
            "base_image_name": "python",
            "docker_specs": None,
        },
        "meta": [{"num_modified_files": 1, "llm_metadata": {"code": "A"}}],
    }


def _image(kit: DockerKit, repo: Path, packages: Path) -> None:
    """The base image with the project at /tally, everybody's to change, and pytest."""
    content = io.BytesIO()

    def anyone(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.mode = 0o777
        return member

    with tarfile.open(fileobj=content, mode="w") as tar:
        tar.add(repo, "tally", filter=anyone)
        tar.add(packages, "usr/local/lib/python3.11/dist-packages")
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        for name, data in {
            "Dockerfile": f"FROM {BASE_IMAGE}\nADD content.tar /\n".encode(),
            "content.tar": content.getvalue(),
        }.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    with contextlib.closing(_Connection(kit.socket)) as connection:
        connection.request("POST", f"/build?t={IMAGE}", context.getvalue(), {"Content-Type": "application/x-tar"})
        response = connection.getresponse()
        said = response.read()
    assert response.status == 200 and b"Successfully built" in said, said[-2000:]


@pytest.fixture(scope="module")
def kit() -> Iterator[DockerKit]:
    made = get_kit("docker")
    assert isinstance(made, DockerKit)
    if reason := made.missing():
        if "docker" in (wanted() or []):
            pytest.fail(f"docker was asked for: {reason}")
        pytest.skip(reason)
    made.start()
    yield made
    made.close()


@pytest.fixture
async def docker(kit: DockerKit, tmp_path: Path) -> AsyncIterator[DockerBackend]:
    made = DockerBackend(kit.socket, image=BASE_IMAGE, root=tmp_path / "sandboxes")
    yield made
    await made.aclose()


@pytest.fixture
async def built(kit: DockerKit, docker: DockerBackend, xmltodict: BuiltTask, tmp_path: Path) -> BuiltTask:
    row = make_repo(tmp_path / "tally")
    _image(kit, tmp_path / "tally", xmltodict.environment.folder / "lib" / "python3.11" / "site-packages")
    return await build_image_task(task_from_row(row), docker, tmp_path / "cache")


async def test_from_the_image_to_a_verdict(built: BuiltTask, docker: DockerBackend) -> None:
    workspace = await open_workspace(docker, built)
    try:
        box = workspace.sandbox
        assert workspace.repo == "/tally"
        history = await box.exec(["git", "log", "--all", "--format=%s"], cwd="/tally")
        objects = await box.exec(["git", "cat-file", "--batch-all-objects", "--batch", "--unordered"], cwd="/tally")
        clean = await box.exec(["git", "status", "--short"], cwd="/tally")
        assert (history.stdout, clean.stdout) == (b"base\n", b"")
        assert b"def mean" in objects.stdout and b"if not numbers" not in objects.stdout
        await AGENTS["oracle"](workspace, built)
        await box.exec(["/bin/sh", "-c", "git commit -qam mine; echo > tests/test_tally.py"], cwd="/tally")
        patch, result = await grade_workspace(workspace, built, docker)
    finally:
        await workspace.close()
    assert (result.reward, result.reason, result.canary) == (1.0, "resolved", "as_planted"), result
    assert result.dropped_paths == ("tests/test_tally.py",)
    assert "report_disagrees" not in {f.kind for f in result.findings}
    assert b"made-by-set-up" not in patch
    unfixed = await grade(built, b"", docker, run_empty=True)
    assert (unfixed.reward, unfixed.reason, unfixed.canary) == (0.0, "tests_failed", "as_planted"), unfixed
    assert (unfixed.f2p_passed, unfixed.p2p_passed) == (0, 2)
    assert (await grade(built, b"", docker)).reason == "empty_patch"


_CHEATS = {
    "conftest": ("echo 'import os; os._exit(0)' | tee conftest.py tests/conftest.py; echo >> tally.py", "tests_failed"),
    "history": ("git checkout -q v2 2>/dev/null; git -C /tally show v2:tally.py > tally.py || git checkout -q .",
                "empty_patch"),
    "forged lines": (
        # The runner captures descriptor 1; where the output really goes is one of the others.
        "cat >> tally.py <<'EOF'\nimport os\nfor fd in range(1, 20):\n    try:\n"
        "        os.write(fd, b'\\n' + b''.join(b'PASSED tests/test_tally.py::' + t + b'\\n' for t in "
        "(b'test_mean_of_nothing', b'test_mean', b'test_total[one')))\n"
        "    except OSError:\n        pass\nos._exit(0)\nEOF",
        "tampering",
    ),
    "patched reports": (
        "cat >> tally.py <<'EOF'\nimport _pytest.reports as r\no = r.TestReport.from_item_and_call.__func__\n"
        "def f(cls, item, call):\n    x = o(cls, item, call)\n"
        "    x.outcome, x.longrepr = 'passed', None\n    return x\n"
        "r.TestReport.from_item_and_call = classmethod(f)\nEOF",
        "tampering",
    ),
}  # fmt: skip


async def test_cheats(built: BuiltTask, docker: DockerBackend) -> None:
    for name, (does, reason) in _CHEATS.items():
        workspace = await open_workspace(docker, built)
        try:
            await workspace.sandbox.exec(["/bin/sh", "-c", does], cwd=workspace.repo)
            _, result = await grade_workspace(workspace, built, docker)
        finally:
            await workspace.close()
        assert (result.reward, result.reason) == (0.0, reason), (name, result.detail, result.log_tail)
        contradicted = "report_disagrees" in {f.kind for f in result.findings}
        assert contradicted == (name == "forged lines"), (name, result.findings)
