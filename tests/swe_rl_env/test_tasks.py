"""Rows: schema, errors, and what the agent is told."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from drivetrain.errors import ConfigError
from swe_rl_env import get_task, load_tasks, prompt_for, task_from_row


def _row(**changes: Any) -> dict[str, Any]:
    line = (files("swe_rl_env") / "data" / "swe_tasks_pypi.jsonl").read_text().splitlines()[0]
    return {**json.loads(line), **changes}


def test_every_packaged_row_loads() -> None:
    tasks = load_tasks(include_quarantined=True)
    assert len(tasks) == 31
    assert {t.registry for t in tasks} == {"pypi", "npm"}
    assert all(t.private.fail_to_pass and t.private.pass_to_pass for t in tasks)
    assert get_task("pypi__xmltodict-0.14.2").public.workdir_name == "xmltodict"


def test_unknown_task_names_close_matches() -> None:
    with pytest.raises(ConfigError, match=r"pypi__xmltodict-0\.14\.2"):
        get_task("xmltodict-0.14.2")
    with pytest.raises(ConfigError, match="31 tasks are known"):
        get_task("zzzzzzzz")


def test_lists_may_be_json_in_a_string() -> None:
    task = task_from_row(_row(FAIL_TO_PASS='["a::b"]'))
    assert task.private.fail_to_pass == ("a::b",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"FAIL_TO_PASS": []}, "FAIL_TO_PASS is empty"),
        ({"PASS_TO_PASS": None}, "PASS_TO_PASS is empty"),
        ({"problem_statement": " "}, "problem_statement is empty"),
        ({"gold_patch_paths": []}, "must not be empty"),
        ({"install_config": {"log_parser": "parse_log_nothing", "test_cmd": ["x"]}}, "log_parser"),
        ({"install_config": {"log_parser": "pytest_nodeid_exact", "test_cmd": ["make check"]}}, "python -m pytest"),
        ({"base_commit": None}, "base_commit"),
    ],
)
def test_unusable_row_is_a_load_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        task_from_row(_row(**changes))


def test_file_errors_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(_row()) + "\n" + json.dumps(_row()) + "\n")
    with pytest.raises(ConfigError, match=r"rows\.jsonl:2.*occurs twice"):
        load_tasks(path)
    path.write_text("\n{")
    with pytest.raises(ConfigError, match=r"rows\.jsonl:2"):
        load_tasks(path)
    with pytest.raises(ConfigError, match="Cannot read"):
        load_tasks(tmp_path / "absent.jsonl")


def test_unknown_columns_are_kept() -> None:
    assert task_from_row(_row(new_column=3)).extra["new_column"] == 3


def test_prompt_is_public_and_short() -> None:
    for task in load_tasks():
        text = prompt_for(task)
        assert task.public.problem_statement.strip() in text
        assert f"/work/{task.public.workdir_name}" in text
        assert len(text) < 2000
        private = task.private
        rest = text.replace(task.public.problem_statement.strip(), "")
        for secret in (
            task.instance_id,
            task.base_commit,
            task.archives.fix.version,
            task.archives.patch_sha256,
            task.archives.test_patch_sha256,
            *private.expected,
            *private.gold_patch_paths,
            *private.test_patch_paths,
        ):
            assert secret not in rest


def test_prompt_shows_the_interface() -> None:
    task = task_from_row(_row(interface="def f(x): ...", pr_description="SECRET", hints_text="SECRET"))
    assert "def f(x): ..." in prompt_for(task)
    assert "SECRET" not in prompt_for(task)
