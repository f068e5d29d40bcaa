"""``validate``: what each pattern of runs means, resuming, the report; and one real task."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from drivetrain.errors import ConfigError
from drivetrain.sandboxes import SandboxBackend, SandboxGone
from swe_rl_env import BuiltTask, Grade, get_task, validate_task
from swe_rl_env.errors import BuildError
from swe_rl_env.grading import campaign, validate
from swe_rl_env.grading.campaign import Plan, known_elsewhere, read_checked, validate_tasks
from swe_rl_env.grading.campaign_report import BEGIN, END, markdown, quarantined, summary, write_table
from swe_rl_env.inside.pytest_runner import shuffled
from swe_rl_env.tasks.model import SweTask

TASK = "pypi__xmltodict-0.14.2"
A, B = "t.py::a", "t.py::b"


class Fake:
    """What the code under test asks of a built task."""

    gold_patch = b"gold"

    def __init__(self, task: SweTask) -> None:
        self.task = task


class Backend:
    name = "fake"


def good(**tests: Any) -> Grade:
    return Grade(
        instance_id="x", outcome="resolved", reward=1.0, reason="resolved", tests=tests.get("tests", {A: "PASSED"})
    )


def bad(reason: Any = "tests_failed", f2p_passed: int = 0, **tests: Any) -> Grade:
    return Grade(
        instance_id="x",
        outcome="unresolved",
        reward=0.0,
        reason=reason,
        f2p_passed=f2p_passed,
        tests=tests.get("tests", {A: "FAILED"}),
    )


LOST = Grade(instance_id="x", outcome="error", reward=None, reason="sandbox_lost", detail="gone")
Script = Callable[..., list[str]]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Grades by what is graded; returns the list of runs made."""

    def use(
        gold: Sequence[Grade], noop: Sequence[Grade], other: Sequence[Grade] = (), use_image: str | None = None
    ) -> list[str]:
        made: list[str] = []
        queues = {"gold": list(gold), "noop": list(noop), "other": list(other) or [good()] * 9}

        def take(kind: str) -> Grade:
            made.append(kind)
            return queues[kind].pop(0)

        async def oracle(_built: Any, _backend: Any, _image: Any) -> tuple[bytes, Grade]:
            return b"gold", take("gold")

        async def grade(
            _built: Any, patch: bytes, _backend: Any, *, image: Any, run_empty: bool, shuffle_seed: Any
        ) -> Grade:
            assert run_empty and image == use_image
            return take("other" if shuffle_seed is not None else "gold" if patch else "noop")

        monkeypatch.setattr(validate, "_oracle", oracle)
        monkeypatch.setattr(validate, "grade", grade)
        return made

    return use


async def checked() -> Any:
    return await validate_task(Fake(get_task(TASK)), Backend())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gold", "noop", "kind", "says"),
    [
        ([good()] * 3, [bad()] * 3, "fit", None),
        ([bad()] * 3, [bad()] * 3, "unsolvable", "gold run 1: tests_failed"),
        ([good()] * 3, [good()] * 3, "no_signal", "no-op run 1: resolved"),
        ([good()] * 3, [bad(f2p_passed=1)] * 3, "no_signal", "1 FAIL_TO_PASS tests pass without"),
        ([good(), bad(), good()], [bad()] * 3, "flaky", "gold run 2"),
        (
            [bad(tests={A: "PASSED", B: "FAILED"}), bad(tests={A: "FAILED", B: "FAILED"}), bad()],
            [bad()] * 3,
            "flaky",
            "",
        ),
        ([good()] * 3, [bad(), bad("timeout"), bad()], "flaky", "no-op run 2: timeout"),
        ([good(tests={A: "PASSED"}), good(tests={A: "PASSED", B: "PASSED"}), good()], [bad()] * 3, "flaky", B),
    ],
)
async def test_what_the_runs_say(runs: Script, gold: Any, noop: Any, kind: str, says: str | None) -> None:
    runs(gold, noop)
    done = await checked()
    assert done.kind == kind
    assert done.ok == (kind == "fit") == (not done.problems)
    assert says is None or any(says in problem for problem in done.problems), done.problems


async def test_infrastructure_is_tried_again_and_is_never_a_verdict(runs: Script) -> None:
    made = runs([LOST, LOST, good(), good(), good()], [LOST, bad(), bad(), bad()])
    assert (await checked()).kind == "fit"
    assert made.count("gold") == 5
    made = runs([good(), LOST, LOST, LOST, good()], [bad()] * 3)
    done = await checked()
    assert (done.kind, done.problems) == ("infrastructure", ("sandbox_lost: gone",))
    assert "noop" not in made, "what cannot be judged any more is not run"


async def test_another_order_is_a_remark(runs: Script) -> None:
    runs([good()] * 3, [bad()] * 3, [bad()])
    done = await checked()
    assert (done.kind, done.order_dependent) == ("fit", (A,))
    assert done.shuffled is not None and done.shuffled.reason == "tests_failed"


def test_shuffling_keeps_files_together() -> None:
    class Item:
        def __init__(self, nodeid: str) -> None:
            self.nodeid = nodeid

    items = [Item(f"{file}.py::{n}") for file in "abcd" for n in range(5)]
    first = [i.nodeid for i in shuffled(items, 0)]
    assert sorted(first) == sorted(i.nodeid for i in items) and first != [i.nodeid for i in items]
    assert first == [i.nodeid for i in shuffled(items, 0)] != [i.nodeid for i in shuffled(items, 1)]
    files = [name.split("::")[0] for name in first]
    assert sum(x != y for x, y in itertools.pairwise(files)) == 3


async def test_a_stopped_campaign_goes_on(runs: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [get_task(name) for name in (TASK, "pypi__parse-1.20.1", "npm__shell-quote-1.8.3")]
    broken = {tasks[2].instance_id}

    async def build(task: SweTask, *_: Any) -> Fake:
        if task.instance_id in broken:
            raise BuildError("no network")
        return Fake(task)

    monkeypatch.setattr(campaign, "prepare_task", build)
    plan = Plan(gold_runs=1, noop_runs=1, shuffle_seed=None)
    made = runs([good(), bad()], [bad(), bad()])
    done = await validate_tasks(tasks, Backend(), tmp_path, plan=plan)  # type: ignore[arg-type]
    assert [c.kind for c in done] == ["fit", "unsolvable", "infrastructure"]
    assert len(made) == 4
    assert {name: e.kind for name, e in quarantined(done).items()} == {
        tasks[1].instance_id: "unsolvable",
        tasks[2].instance_id: "infrastructure",
    }
    with (tmp_path / "checked.jsonl").open("ab") as file:
        file.write(b'{"cut')
    broken.clear()
    made = runs([good()], [bad()])
    again = await validate_tasks(tasks, Backend(), tmp_path, plan=plan)  # type: ignore[arg-type]
    assert made == ["gold", "noop"], "only what failed for reasons of the machinery is run again"
    assert [c.kind for c in again] == ["fit", "unsolvable", "fit"]
    made = runs([good()] * 6, [bad()] * 3)
    await validate_tasks(tasks, Backend(), tmp_path, plan=Plan(gold_runs=2, noop_runs=1, shuffle_seed=None))  # type: ignore[arg-type]
    assert len(made) == 9, "another plan is another question"
    assert len(read_checked(tmp_path)) == 7

    report = summary(again, plan)
    assert report["pass_rate"] == {TASK: 1.0, "pypi__parse-1.20.1": 0.0, "npm__shell-quote-1.8.3": 1.0}
    json.dumps(report)
    table = markdown(again, plan)
    assert table.startswith("2 of 3 tasks are fit in fake.") and "unsolvable: gold run 1: tests_failed" in table
    assert table.count("\n| ") == 4


async def test_results_of_two_kinds_of_sandbox_stand_side_by_side(
    runs: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Container(Backend):
        name = "boxed"

    async def build(task: SweTask, *_: Any) -> Fake:
        return Fake(task)

    monkeypatch.setattr(campaign, "prepare_task", build)
    plan, tasks = Plan(gold_runs=1, noop_runs=1, shuffle_seed=None), [get_task(TASK), get_task("pypi__parse-1.20.1")]
    runs([good()], [bad()])
    first = await validate_tasks(tasks[:1], Backend(), tmp_path, plan=plan)  # type: ignore[arg-type]
    made = runs([bad(), good()], [bad(), bad()], use_image="debian")
    other = await validate_tasks(tasks, Container(), tmp_path, plan=plan, image="debian")  # type: ignore[arg-type]
    assert len(made) == 4, "another place is another question"
    assert known_elsewhere(tmp_path, tasks, plan, "boxed") == first
    assert known_elsewhere(tmp_path, tasks, Plan(), "boxed") == [], "another plan says nothing about this one"
    assert known_elsewhere(tmp_path, tasks, plan, "fake") == other
    text, _, head, _, *rows = markdown([*first, *other], plan).splitlines()
    assert text.startswith("1 of 1 tasks are fit in fake, 1 of 2 tasks are fit in boxed (image debian). ")
    assert head.count("fake: ") == head.count("boxed: ") == 4
    assert [len(row.split(" | ")) for row in (head, *rows)] == [13] * 3
    assert rows[0].endswith("| fake: fit; boxed: unsolvable: gold run 1: tests_failed () |")
    assert rows[1].endswith("| - | - | - | - | 1/1 | 1/1 | - | 0.0 | boxed: fit |")


def test_the_table_goes_between_the_marks_of_a_document(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    write_table(page, "one\n")
    assert page.read_text() == f"{BEGIN}\n\none\n\n{END}\n"
    page.write_text(f"before\n{page.read_text()}after\n")
    write_table(page, "two \\1\n")
    assert page.read_text() == f"before\n{BEGIN}\n\ntwo \\1\n\n{END}\nafter\n"
    for wrong in ("no marks", f"{END} {BEGIN}", f"{BEGIN} {BEGIN} {END}"):
        page.write_text(wrong)
        with pytest.raises(ConfigError, match="does not say where"):
            write_table(page, "x\n")
        assert page.read_text() == wrong


async def test_a_sandbox_that_dies_under_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dies(_built: Any, _backend: Any, _image: Any) -> Any:
        raise SandboxGone("killed")

    monkeypatch.setattr(validate, "_oracle", dies)
    done = await checked()
    assert (done.kind, done.problems) == ("infrastructure", ("infra_error: SandboxGone: killed",))


@pytest.mark.real
async def test_a_real_task(xmltodict: BuiltTask, backend: SandboxBackend) -> None:
    done = await validate_task(xmltodict, backend, gold_runs=1, noop_runs=1, shuffle_seed=3)
    assert (done.kind, done.problems) == ("fit", ())
    assert done.shuffled is not None and done.shuffled.canary == "as_planted"
    assert dict(done.shuffled.tests) == dict(done.gold[0].tests)
