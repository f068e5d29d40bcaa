"""Rows in SWE-rebench V2's own shape: inline patches, an image, a named parser. The content is ours."""

from __future__ import annotations

from typing import Any

import pytest

from drivetrain.errors import ConfigError
from swe_rl_env import prompt_for, task_from_row
from swe_rl_env.tasks.diffs import patch_lines, patch_paths, paths_after

from .rows import PATCH, TEST_PATCH, v2_row


def test_a_full_row() -> None:
    task = task_from_row(v2_row())
    assert (task.dataset, task.registry, task.private.archives) == ("swe-rebench-v2", None, None)
    assert task.image == "docker.io/swerebenchv2/acme-abacus:12-0123456"
    assert task.workdir == "/Abacus", "the second half of the repository, its case kept"
    assert task.install.test_cmd == ["pytest -rA tests"]
    assert task.install.install == ["pip install -e ."]
    assert task.private.gold_patch_paths == ("abacus/core.py",)
    assert task.private.test_patch_paths == ("tests/test_core.py",)
    assert (task.patch_lines, task.difficulty, task.created_at) == (2, "easy", "2024-01-02T03:04:05Z")
    assert (task.private.patch, task.private.test_patch) == (PATCH, TEST_PATCH)
    assert task.extra == {"unknown_column": 1}


def test_what_describes_the_fix_is_private() -> None:
    text = prompt_for(task_from_row(v2_row(hints_text="SECRET HINT")))
    assert "def add(a, b)" in text, "the interface is shown"
    for secret in ("SECRET", "return a + b", "test_core", "0123456"):
        assert secret not in text


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"install_config": {"log_parser": "parse_log_pytest", "test_cmd": "make check"}}, ["make check"]),
        ({"install_config": {"log_parser": "parse_log_pytest", "test_cmd": ["a", "b"], "install": None}}, ["a", "b"]),
        ({"install_config": '{"log_parser": "parse_log_pytest", "test_cmd": ["a"], "log_parsers": null}'}, ["a"]),
    ],
)
def test_commands_are_strings_or_lists(changes: dict[str, Any], check: list[str]) -> None:
    assert task_from_row(v2_row(**changes)).install.test_cmd == check


@pytest.mark.parametrize(
    "meta",
    [
        {"llm_metadata": {"difficulty": "easy"}},
        {"llm_metadata": [{"difficulty": "easy"}, {"difficulty": "hard"}]},
        '{"llm_metadata": [{"difficulty": "easy"}]}',
        {"difficulty": "easy"},
        [{"llm_metadata": {"difficulty": "easy"}}],
    ],
)
def test_meta_is_a_dict_or_a_list(meta: Any) -> None:
    assert task_from_row(v2_row(meta=meta)).difficulty == "easy"


def test_ids_lose_colours_and_nothing_else() -> None:
    ids = ["\x1b[32mtests/a.py::x\x1b[0m", "tests/a.py::y[a b]", "tests/a.py::y[a b]", "tests/ä.py::z [1.5 ms]"]
    task = task_from_row(v2_row(FAIL_TO_PASS=ids))
    assert task.private.fail_to_pass == ("tests/a.py::x", "tests/a.py::y[a b]", "tests/ä.py::z [1.5 ms]")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"FAIL_TO_PASS": []}, "FAIL_TO_PASS is empty"),
        ({"FAIL_TO_PASS": "[not json"}, "FAIL_TO_PASS is empty or not a list"),
        ({"FAIL_TO_PASS": ["\x1b[0m"]}, "empty test id"),
        ({"patch": ""}, "patch is empty"),
        ({"test_patch": "no header"}, "test_patch is empty or has no"),
        ({"image_name": None}, "image_name"),
        ({"install_config": {"log_parser": "no such parser", "test_cmd": ["a"]}}, "log_parser"),
        ({"install_config": {"log_parser": "parse_log_pytest", "test_cmd": []}}, "test_cmd is empty"),
        ({"install_config": {"test_cmd": ["a"]}}, "log_parser"),
        ({"install_config": "[]"}, "install_config"),
        ({"created_at": "yesterday"}, "created_at"),
        ({"instance_id": "../../up"}, "instance_id"),
        ({"instance_id": ""}, "instance_id"),
        ({"instance_id": "a\nb"}, "instance_id"),
        ({"repo": "acme/.."}, "repo"),
        ({"repo": "acme/a b"}, "repo"),
    ],
)
def test_unusable_rows_are_load_errors(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        task_from_row(v2_row(**changes))


def test_an_archive_row_keeps_its_exact_parser() -> None:
    with pytest.raises(ConfigError, match="cuts test ids"):
        task_from_row(v2_row(registry="pypi", **ARCHIVE))


ARCHIVE = {
    **dict.fromkeys(("base_version", "fix_version", "base_sdist", "base_sdist_sha256", "fix_sdist"), "x"),
    **dict.fromkeys(("fix_sdist_sha256", "patch_sha256", "test_patch_sha256"), "x"),
    "gold_patch_paths": ["a"],
    "test_patch_paths": ["b"],
}


@pytest.mark.parametrize("value", [1704164645000, "2024-01-02T03:04:05Z", "2024-01-02 03:04:05"])
def test_times(value: Any) -> None:
    assert task_from_row(v2_row(created_at=value)).created_at == "2024-01-02T03:04:05Z"


def test_paths_of_a_diff() -> None:
    diff = (
        "diff --git a/old name.py b/old name.py\n--- a/old name.py\n+++ b/old name.py\n@@ -1 +1 @@\n-x\n+y\n"
        " diff --git a/not.py b/not.py\n"
        'diff --git "a/\\303\\244.py" "b/\\303\\244.py"\nnew file mode 100644\n'
        "diff --git a/from.py b/to.py\nsimilarity index 100%\nrename from from.py\nrename to to.py\n"
        "diff --git a/b b/b b/b b/b\ndeleted file mode 100644\n"
    )
    assert patch_paths(diff) == ("b b/b", "from.py", "old name.py", "to.py", "ä.py")
    assert paths_after(diff) == ("old name.py", "to.py", "ä.py"), "neither the removed file nor a rename's old name"
    assert patch_lines(diff) == 2
    assert patch_lines(PATCH) == 2, "the lines that name files are not counted"


def test_building_needs_archives() -> None:
    with pytest.raises(ConfigError, match="comes as the image"):
        _ = task_from_row(v2_row()).archives
