"""The loop around attempts: resuming, retrying, giving up. The agent and the sandbox are replaced, nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drivetrain.errors import ConfigError
from drivetrain.evaluation import attempt as attempts_module
from drivetrain.evaluation import run as run_module
from drivetrain.evaluation.attempt import Attempter
from drivetrain.evaluation.config import EvalConfig
from drivetrain.evaluation.folder import Attempt, EvalFolder
from drivetrain.evaluation.run import EndpointHopeless, evaluate
from swe_rl_env.errors import BuildError
from swe_rl_env.tasks.model import SweTask

from .kit import TASKS, attempt, tasks

CONFIG = EvalConfig(agent="noop", infra_tries=3)
Once = Callable[[str, int], Attempt]


class Built:
    def __init__(self, task: SweTask) -> None:
        self.task = task


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Once], list[tuple[str, int]]]:
    """Replace one try of one attempt; returns the list of tries made."""

    def use(once: Once) -> list[tuple[str, int]]:
        made: list[tuple[str, int]] = []

        async def built(task: SweTask, *_: Any) -> Built:
            return Built(task)

        async def _once(self: Attempter, built: Any, index: int) -> Attempt:
            made.append((built.task.instance_id, index))
            return once(built.task.instance_id, index)

        monkeypatch.setattr(attempts_module.Attempter, "_once", _once)
        monkeypatch.setattr(run_module, "prepare_task", built)
        return made

    return use


async def go(folder: Path, config: EvalConfig = CONFIG, **options: Any) -> list[Attempt]:
    options = {"n": 2, "tell": lambda _: None, **options}
    return await evaluate(config, tasks(), EvalFolder.open(folder, config), **options)


async def test_finished_attempts_are_not_repeated(tmp_path: Path, scripted: Any) -> None:
    made = scripted(lambda task, index: attempt(task, index))
    assert len(await go(tmp_path, n=1)) == 3
    assert made == [(task, 0) for task in TASKS]
    made.clear()
    done = await go(tmp_path, n=2)
    assert made == [(task, 1) for task in TASKS], "only what is missing"
    assert [(a.task_id, a.index) for a in done] == [(task, index) for task in TASKS for index in (0, 1)]


async def test_failures_of_the_machinery_are_tried_again_up_to_a_bound(tmp_path: Path, scripted: Any) -> None:
    def once(task: str, index: int) -> Attempt:
        first = made.count((task, index)) == 1
        return attempt(task, index, "infra_error" if task == TASKS[0] or first else "resolved", detail="lost")

    made = scripted(once)
    done = await go(tmp_path, n=1)
    assert [(a.status, a.tries) for a in done] == [("infra_error", 3), ("resolved", 2), ("resolved", 2)]
    made.clear()
    await go(tmp_path, n=1)
    assert made == [(TASKS[0], 0)] * 3, "the next run takes up what was not graded, and only that"


async def test_a_failed_attempt_is_not_tried_again(tmp_path: Path, scripted: Any) -> None:
    made = scripted(lambda task, index: attempt(task, index, "unresolved"))
    done = await go(tmp_path, n=1)
    assert len(made) == 3 and {a.tries for a in done} == {1}


async def test_it_stops_when_the_endpoint_is_down(tmp_path: Path, scripted: Any) -> None:
    made = scripted(lambda task, index: attempt(task, index, "infra_error", detail="model_error: 401"))
    config = EvalConfig(agent="noop", infra_tries=1)
    with pytest.raises(EndpointHopeless, match=r"model_error: 401.*--out"):
        await go(tmp_path, config, n=20)
    assert len(made) == 8
    assert len(EvalFolder(tmp_path).attempts()) == 8, "what finished is recorded"


async def test_a_task_that_cannot_be_built_is_no_failure_of_the_model(
    tmp_path: Path, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(lambda task, index: attempt(task, index))

    async def build(task: SweTask, *_: Any) -> Built:
        if task.instance_id == TASKS[1]:
            raise BuildError("no network")
        return Built(task)

    monkeypatch.setattr(run_module, "prepare_task", build)
    done = await go(tmp_path, n=1)
    assert [a.status for a in done] == ["resolved", "infra_error", "resolved"]


async def test_a_folder_of_something_else_is_refused(tmp_path: Path, scripted: Any) -> None:
    scripted(lambda task, index: attempt(task, index))
    await go(tmp_path, n=1)
    with pytest.raises(ConfigError, match=r"deadline_s was 1800.0, is 5.0"):
        EvalFolder.open(tmp_path, EvalConfig(agent="noop", deadline_s=5.0))
    with (tmp_path / "attempts.jsonl").open("ab") as file:
        file.write(b'{"task_id": "cut off')
    assert len(EvalFolder(tmp_path).attempts()) == 3
    EvalFolder(tmp_path).append(attempt("new", 0))
    assert len(EvalFolder(tmp_path).attempts()) == 4, "a line that was cut off spoils no other"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"agent": "pi"}, "no base URL"),
        ({"agent": "pi", "base_url": "http://x/v1", "model": "m"}, "ends in /v1"),
        ({"agent": "pi", "base_url": "http://x"}, "--model"),
        ({"agent": "noop", "deadline_s": 0.0}, "deadline_s must be positive"),
    ],
)
def test_bad_configuration(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        EvalConfig(**options)


async def test_an_unknown_agent_leaves_nothing_behind(tmp_path: Path) -> None:
    config = EvalConfig(agent="pii", base_url="http://127.0.0.1:1", model="m")
    with pytest.raises(ConfigError, match="pi"):
        await go(tmp_path / "new", config)
    assert not (tmp_path / "new").exists()
