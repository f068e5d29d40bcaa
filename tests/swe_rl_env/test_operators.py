"""The generated family: real tasks, graded as every other; the same from the same seed; no overlap of the splits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drivetrain.cache import cache_root
from drivetrain.sandboxes import SandboxBackend
from swe_rl_env.building.build import build_task
from swe_rl_env.errors import BuildError
from swe_rl_env.grading.run import grade
from swe_rl_env.sources import fetch
from swe_rl_env.sources.operators import WORDS, draw, operator_rows
from swe_rl_env.tasks.loading import tasks_from_rows
from swe_rl_env.tasks.model import SweTask


def _tasks(count: int, split: str = "train", seed: int = 0) -> tuple[SweTask, ...]:
    rows = operator_rows(count, split=split, seed=seed)  # type: ignore[arg-type]
    loaded = tasks_from_rows([(row["instance_id"], json.loads(json.dumps(row))) for row in rows])
    assert loaded.rejected == ()
    return loaded.tasks


def test_rows_are_tasks_and_the_same_every_time() -> None:
    tasks = _tasks(5)
    assert [task.instance_id for task in tasks] == [f"operators__train-{n}" for n in range(5)]
    assert _tasks(5) == tasks != _tasks(5, seed=1)
    assert {task.registry for task in tasks} == {"local"}


@pytest.mark.parametrize("number", range(4))  # one for each operator
async def test_only_the_right_operator_scores(number: int, backend: SandboxBackend) -> None:
    instance = draw(number, "heldout", 3)
    built = build_task(_tasks(number + 1, "heldout", 3)[number])
    assert (await grade(built, built.gold_patch, backend)).reward == 1.0
    others = [operator for operator in WORDS if operator not in (instance.right, instance.wrong)]
    for operator in others[:1]:
        right, other = (f"+    return {instance.a} {sign} {instance.b}".encode() for sign in (instance.right, operator))
        assert right in built.gold_patch
        result = await grade(built, built.gold_patch.replace(right, other), backend)
        assert (result.reward, result.reason) == (0.0, "tests_failed")


def test_families_are_balanced_and_their_splits_share_no_name() -> None:
    train, heldout = ([draw(n, split, 0) for n in range(120)] for split in ("train", "heldout"))
    for family in (train, heldout):
        assert {i.word for i in family} == {word for words in WORDS.values() for word in words}
        assert all(sum(i.right == operator for i in family) == 30 for operator in WORDS)
        assert all(i.right != i.wrong and i.a != i.b for i in family)
    assert not {i.function for i in train} & {i.function for i in heldout}
    assert not {n for i in train for n in (i.a, i.b)} & {n for i in heldout for n in (i.a, i.b)}


def test_an_archive_that_left_the_cache_is_named(tmp_path: Path) -> None:
    archives = _tasks(1)[0].archives
    assert fetch(archives.base, cache_root()).is_file()
    with pytest.raises(BuildError, match=r"operators-train-0-1\.tar was generated on this machine"):
        fetch(archives.base, tmp_path)
