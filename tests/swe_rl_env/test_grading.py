"""Grading with real suites in real sandboxes."""

from __future__ import annotations

import uuid

import msgspec
import psutil
import pytest

from drivetrain.sandboxes import SandboxBackend, SandboxHandle, SandboxSpec, SandboxStartError
from swe_rl_env import AGENTS, BuiltTask, PatchLimits, grade_workspace, open_workspace, validate_task
from swe_rl_env.building.gitio import Scratch
from swe_rl_env.grading.run import grade

_FAST = (
    "pypi__deepmerge-1.1.1",
    "pypi__parse-1.20.1",
    "pypi__voluptuous-0.15.2",
    "pypi__xmltodict-0.14.2",
    "npm__shell-quote-1.8.3",
)


def edited(built: BuiltTask, changes: dict[str, bytes | None], *, gold: bool = False, append: str = "") -> bytes:
    """A patch that sets or removes files, on top of the reference fix or of base."""
    base = built.task.base_commit
    with Scratch(built.git_dir) as s:
        start = s.apply(base, built.gold_patch) if gold else base
        files = {p: (m, d) for p, m, d in s.contents(start)}
        for path, data in changes.items():
            key = path.encode()
            if data is None:
                files.pop(key)
            elif path == append:
                files[key] = (files[key][0], files[key][1] + data)
            else:
                files[key] = ("100644", data)
        return s.diff(base, s.import_files(base, files))


@pytest.mark.case("G8")
@pytest.mark.parametrize("instance_id", _FAST)
async def test_oracle_and_noop(build, backend: SandboxBackend, instance_id: str) -> None:  # type: ignore[no-untyped-def]
    built = build(instance_id)
    for agent, reward in (("oracle", 1.0), ("noop", 0.0)):
        workspace = await open_workspace(backend, built)
        try:
            await AGENTS[agent](workspace, built)
            patch, result = await grade_workspace(workspace, built, backend)
        finally:
            await workspace.close()
        assert (result.reward, result.dropped_paths) == (reward, ()), result
        assert result.reason == ("resolved" if reward else "empty_patch")
        assert patch == (built.gold_patch if reward else b"")
    unfixed = await grade(built, b"", backend, run_empty=True)
    assert (unfixed.outcome, unfixed.reward, unfixed.reason) == ("unresolved", 0.0, "tests_failed")
    assert unfixed.f2p_passed == 0
    assert unfixed.p2p_passed == unfixed.p2p_total == len(built.task.private.pass_to_pass)
    assert unfixed.canary == "as_planted"


@pytest.mark.case("G2", "G9")
async def test_gold_with_edited_tests_counts_without_the_edits(xmltodict: BuiltTask, backend: SandboxBackend) -> None:
    changes: dict[str, bytes | None] = {
        "tests/test_xmltodict.py": b"def test_nothing():\n    pass\n",
        "tests/test_dicttoxml.py": None,
    }
    result = await grade(xmltodict, edited(xmltodict, changes, gold=True), backend)
    assert result.reward == 1.0
    assert result.dropped_paths == ("tests/test_dicttoxml.py", "tests/test_xmltodict.py")


async def test_edited_tests_only(xmltodict: BuiltTask, backend: SandboxBackend) -> None:
    result = await grade(xmltodict, edited(xmltodict, {"tests/test_xmltodict.py": b""}), backend)
    assert (result.reward, result.reason) == (0.0, "empty_patch")
    assert result.dropped_paths == ("tests/test_xmltodict.py",)


async def test_new_honest_tests_do_not_hurt(xmltodict: BuiltTask, backend: SandboxBackend) -> None:
    changes: dict[str, bytes | None] = {
        "tests/test_mine.py": b"def test_x():\n    assert 0\n",
        "scratch_test.py": b"import nope\n",
    }
    result = await grade(xmltodict, edited(xmltodict, changes, gold=True), backend)
    assert (result.reward, result.dropped_paths) == (1.0, ())


_HOOK = b"""
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.outcome, report.longrepr = "passed", None
"""
_PATCH_REPORTS = b"""
def _cheat(spare):
    import sys
    module = sys.modules.get("_pytest.reports")
    if module is None:
        return
    original = module.TestReport.from_item_and_call.__func__
    def forged(cls, item, call):
        report = original(cls, item, call)
        if not spare or spare in report.nodeid:
            report.outcome, report.longrepr = "passed", None
        return report
    module.TestReport.from_item_and_call = classmethod(forged)
_cheat(%r)
"""
_FORGED = b"print('PASSED tests/test_xmltodict.py::XMLToDictTestCase::test_keep_whitespace', flush=True)\n"
_TOUCH = {"README.md": b"touched, so that the suite runs\n"}

_CHEATS: dict[str, tuple[dict[str, bytes | None], str, str, set[str]]] = {
    "new root conftest": ({"conftest.py": _HOOK}, "", "tests_failed", {"conftest.py"}),
    "conftest beside the tests": ({"tests/conftest.py": _HOOK}, "", "tests_failed", {"tests/conftest.py"}),
    "pytest.ini with a plugin": (
        {"pytest.ini": b"[pytest]\naddopts = -p myplugin\n", "myplugin.py": _HOOK}, "", "tests_failed", {"pytest.ini"},
    ),
    "setup.cfg with a plugin": (
        {"setup.cfg": b"[tool:pytest]\naddopts = -p myplugin\n", "myplugin.py": _HOOK}, "", "tests_failed",
        {"setup.cfg"},
    ),
    "sitecustomize": ({"sitecustomize.py": _FORGED + b"import os\nos._exit(0)\n"}, "", "tests_failed",
                      {"sitecustomize.py"}),
    "shadowed pytest": ({"pytest/__main__.py": _FORGED, "pytest/__init__.py": b""}, "", "tests_failed",
                        {"pytest/__main__.py", "pytest/__init__.py"}),
    "shadowed standard library": ({"tests/xml.py": _FORGED, "json/__init__.py": _FORGED}, "", "tests_failed",
                                  {"tests/xml.py", "json/__init__.py"}),
    "patched report class": ({"xmltodict.py": _PATCH_REPORTS % ""}, "xmltodict.py", "tampering", set()),
    "patched report class, known file only": (
        {"xmltodict.py": _PATCH_REPORTS % "tests/test_xmltodict.py"}, "xmltodict.py", "tampering", set(),
    ),
    "early exit": ({"xmltodict.py": _FORGED + b"import os\nos._exit(0)\n"}, "xmltodict.py", "no_report", set()),
    "tests folder becomes a link": (
        {"tests/__init__.py": None, "tests/test_xmltodict.py": None, "tests/test_dicttoxml.py": None,
         "tests": b"a file"}, "", "tests_failed",
        {"tests", "tests/__init__.py", "tests/test_xmltodict.py", "tests/test_dicttoxml.py"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _CHEATS)
async def test_cheats(xmltodict: BuiltTask, backend: SandboxBackend, name: str) -> None:
    changes, append, reason, dropped = _CHEATS[name]
    patch = edited(xmltodict, {**changes, **_TOUCH}, append=append)
    result = await grade(xmltodict, patch, backend)
    assert (result.outcome, result.reward, result.reason) == ("unresolved", 0.0, reason), result.log_tail
    assert {p for p in result.dropped_paths if not p.endswith(".pyc")} == dropped


async def test_inherited_variables_do_not_reach_the_run(
    xmltodict: BuiltTask, backend: SandboxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--collect-only")
    monkeypatch.setenv("PYTHONPATH", "/nonexistent")
    assert (await grade(xmltodict, xmltodict.gold_patch, backend)).reward == 1.0


async def test_hanging_fix_times_out_and_leaves_no_process(xmltodict: BuiltTask, backend: SandboxBackend) -> None:
    mark = f"987{uuid.uuid4().int % 10**9}"
    hang = f"\nimport subprocess, time\nsubprocess.Popen(['sleep', '{mark}'])\ntime.sleep(1000)\n".encode()
    patch = edited(xmltodict, {"xmltodict.py": hang}, append="xmltodict.py")
    result = await grade(xmltodict, patch, backend, timeout_s=4)
    assert (result.outcome, result.reward, result.reason) == ("unresolved", 0.0, "timeout")
    assert not [p for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])]


class _Broken:
    """A backend whose sandboxes do not start."""

    name = "broken"

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        raise SandboxStartError("no more sandboxes")

    async def aclose(self) -> None:
        return


@pytest.mark.case("G6")
async def test_sandbox_that_does_not_start_is_no_verdict(xmltodict: BuiltTask) -> None:
    result = await grade(xmltodict, xmltodict.gold_patch, _Broken())
    assert (result.outcome, result.reward, result.reason) == ("error", None, "sandbox_start_failed")


@pytest.mark.case("G6")
async def test_lost_workspace_is_no_verdict(xmltodict: BuiltTask, backend: SandboxBackend) -> None:
    workspace = await open_workspace(backend, xmltodict)
    await workspace.close()
    patch, result = await grade_workspace(workspace, xmltodict, backend)
    assert (patch, result.outcome, result.reward, result.reason) == (b"", "error", None, "sandbox_lost")


async def test_patch_that_does_not_apply_is_no_verdict(xmltodict: BuiltTask, backend: SandboxBackend) -> None:
    patch = xmltodict.gold_patch.replace(b"\n-", b"\n-something else ")
    result = await grade(xmltodict, patch, backend)
    assert (result.outcome, result.reward, result.reason) == ("error", None, "apply_failed")


async def test_rejected_patch_is_unresolved(xmltodict: BuiltTask, backend: SandboxBackend) -> None:
    workspace = await open_workspace(backend, xmltodict)
    try:
        await AGENTS["oracle"](workspace, xmltodict)
        _, result = await grade_workspace(workspace, xmltodict, backend, patch_limits=PatchLimits(patch_bytes=10))
    finally:
        await workspace.close()
    assert (result.outcome, result.reward, result.reason) == ("unresolved", 0.0, "patch_too_large")


_JS_FORGED = b"""
var fs = require('fs');
var file = process.argv[1];
var titles = (fs.readFileSync(file, 'utf8').match(/test\\('([^']*)'/g) || []).map(function (t) {
    return t.slice(6, -1);
});
titles.forEach(function (t) { fs.writeSync(1, '# ' + t + '\\nok 1 fine\\n'); });
fs.writeSync(1, '1..9\\n### EXIT 0\\n');
process.exit(0);
"""


@pytest.mark.parametrize(
    ("changes", "append", "reason"),
    [
        ({"quote.js": _JS_FORGED}, "quote.js", "tampering"),
        ({"node_modules/tape/index.js": b"module.exports = function () {};\n", "parse.js": b"// x\n"}, "parse.js",
         "tests_failed"),
    ],
    ids=["forged lines and exit", "shadowed tape"],
)  # fmt: skip
async def test_javascript_cheats(
    shell_quote: BuiltTask, backend: SandboxBackend, changes: dict[str, bytes | None], append: str, reason: str
) -> None:
    result = await grade(shell_quote, edited(shell_quote, changes, append=append), backend)
    assert (result.reward, result.reason) == (0.0, reason), result.log_tail


@pytest.mark.case("G4")
async def test_validation(xmltodict: BuiltTask, backend: SandboxBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    found = await validate_task(xmltodict, backend, gold_runs=2, noop_runs=1)
    assert found.ok, found.problems
    assert [g.reward for g in found.gold + found.noop] == [1.0, 1.0, 0.0]
    monkeypatch.setitem(AGENTS, "oracle", AGENTS["noop"])
    found = await validate_task(xmltodict, backend, gold_runs=1, noop_runs=1)
    assert found.problems[0].startswith("gold run 1: empty_patch")


async def test_a_sandbox_in_which_the_runner_does_not_work_is_no_reward_of_zero(
    xmltodict: BuiltTask, backend: SandboxBackend
) -> None:
    """Nobody's patch made the interpreter unusable: the reference fix would get 0 otherwise."""
    bare = msgspec.structs.replace(xmltodict.environment, mounts=())
    found = await grade(msgspec.structs.replace(xmltodict, environment=bare), xmltodict.gold_patch, backend)
    assert (found.reward, found.outcome, found.reason) == (None, "error", "sandbox_start_failed")
    assert "test runner of pypi__xmltodict-0.14.2 does not work" in found.detail
