"""Filters, splits, counts, and the quarantine file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drivetrain.errors import ConfigError
from swe_rl_env import load_tasks, task_from_row
from swe_rl_env.tasks.catalog import get_task, without_quarantined
from swe_rl_env.tasks.quarantine import Entry, quarantine_path, read_quarantine, update_quarantine
from swe_rl_env.tasks.select import Filters, read_pass_rates, select, split_of, stats

from .rows import v2_row

TASKS = load_tasks(include_quarantined=True)


def chosen(rates: dict[str, float] | None = None, **filters: Any) -> set[str]:
    return {t.instance_id for t in select(TASKS, Filters(**filters), rates)}


def test_filters() -> None:
    js = {t.instance_id for t in TASKS if t.public.language == "js"}
    assert chosen(languages=("JS",)) == js
    assert len(chosen(languages=("js", "python"))) == len(TASKS)
    assert (
        chosen(repos=("xmltodict",)) == chosen(repos=("pypi/XMLtodict",)) == {i for i in chosen() if "xmltodict" in i}
    )
    assert chosen(max_lines=4) == {t.instance_id for t in TASKS if t.patch_lines is not None and t.patch_lines <= 4}
    assert chosen(min_lines=100) & chosen(max_lines=99) == set()
    assert len(chosen(min_lines=100)) + len(chosen(max_lines=99)) == len(TASKS), "every packaged task has a size"
    assert chosen(difficulties=("hard",), languages=("js",)) == set()
    assert "pypi__xmltodict-0.14.2" in chosen(text="WHITESPACE")


def test_pass_rates(tmp_path: Path) -> None:
    rates = {"pypi__xmltodict-0.14.2": 0.25, "pypi__parse-1.20.1": 1.0}
    assert chosen(rates, min_pass_rate=0.2, max_pass_rate=0.9) == {"pypi__xmltodict-0.14.2"}
    assert chosen(rates, min_pass_rate=0.0) == set(rates), "a task without a rate is left out"
    with pytest.raises(ConfigError, match="A pass rate needs"):
        chosen(min_pass_rate=0.1)
    (tmp_path / "report.json").write_text(json.dumps({"pass_rate": rates}))
    assert read_pass_rates(tmp_path) == read_pass_rates(tmp_path / "report.json") == rates
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds no pass rates"):
        read_pass_rates(tmp_path)


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        ({"languages": ("pythn",)}, "Did you mean: python"),
        ({"repos": ("xmltodct",)}, "xmltodict"),
        ({"difficulties": ("esy",)}, "easy"),
        ({"languages": ("zz",)}, "There are: js, python"),
    ],
)
def test_a_typing_error_is_no_empty_set(filters: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        chosen(**filters)


def test_no_repository_is_in_two_splits() -> None:
    by_repo: dict[str, set[str]] = {}
    for task in TASKS:
        by_repo.setdefault(task.public.repo, set()).add(split_of(task))
    assert all(len(splits) == 1 for splits in by_repo.values())
    assert chosen(split="train") | chosen(split="validation") | chosen(split="test") == chosen()
    first = task_from_row(v2_row(repo="Acme/Abacus"))
    assert split_of(first) == split_of(task_from_row(v2_row(repo="acme/abacus", instance_id="other")))


def test_splits_are_fixed_and_have_their_shares() -> None:
    assert split_of(get_task("npm__shell-quote-1.8.3")) == "test", "a split that moves makes old results worthless"
    made = [split_of(task_from_row(v2_row(repo=f"acme/{n}"))) for n in range(1000)]
    assert 750 < made.count("train") < 850
    assert 70 < made.count("validation") < 130


def test_counts() -> None:
    counted = stats(TASKS)
    assert counted["tasks"] == sum(counted["language"].values()) == sum(counted["split"].values()) == len(TASKS)
    assert counted["fail_to_pass"]["sum"] == sum(len(t.private.fail_to_pass) for t in TASKS)
    assert stats([])["tasks"] == 0


def entry(kind: str) -> Entry:
    return Entry(kind=kind, reasons=("because",), backend="local")


def test_quarantine_is_respected_and_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVETRAIN_QUARANTINE", str(tmp_path / "q.json"))
    assert read_quarantine() == {} and len(load_tasks()) == len(TASKS)
    flaky, lost = TASKS[0].instance_id, TASKS[1].instance_id
    update_quarantine(None, {flaky: entry("flaky"), lost: entry("infrastructure"), "other": entry("unsolvable")}, [])
    assert {t.instance_id for t in TASKS} - {t.instance_id for t in load_tasks()} == {flaky}, (
        "an infrastructure failure says nothing about a task"
    )
    assert len(load_tasks(include_quarantined=True)) == len(TASKS)
    assert without_quarantined(TASKS)[1] == {flaky: read_quarantine()[flaky]}
    assert get_task(flaky).instance_id == flaky, "naming a task is a decision"
    assert read_quarantine()[flaky].at.endswith("Z")
    update_quarantine(None, {}, [flaky])
    assert set(read_quarantine()) == {lost, "other"}, "entries of tasks that were not looked at stay"
    assert [path.name for path in tmp_path.iterdir()] == ["q.json"]


def test_a_broken_quarantine_file_is_said(tmp_path: Path) -> None:
    for text in ("{", '{"version": 1, "tasks": {"a": 1}}', '{"version": 2, "tasks": {}}', '{"flaky": []}'):
        (tmp_path / "q.json").write_text(text)
        with pytest.raises(ConfigError, match=r"q\.json"):
            read_quarantine(tmp_path / "q.json")


def test_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRIVETRAIN_QUARANTINE", raising=False)
    monkeypatch.setenv("DRIVETRAIN_CACHE", str(tmp_path))
    assert quarantine_path() == tmp_path / "quarantine.json"
    assert quarantine_path(tmp_path / "x") == tmp_path / "x"
