"""SWE-bench (all, Lite, Verified) and SWE-Gym: Python, one image per instance, ``/testbed``, a command per repository.

Columns (data set card of SWE-bench; ``SWEbenchInstance`` and ``make_test_spec`` in swebench/harness): text everywhere,
FAIL_TO_PASS and PASS_TO_PASS as JSON in a string (SWE-Gym: as lists), Verified with a ``difficulty``. An expected
failure counts as passed in this family (``test_passed`` in swebench/harness/grading.py): see :data:`XFAIL_PASSES`.
"""

from __future__ import annotations

from typing import Any

from swe_rl_env.tasks.adapters.base import Row, copied, in_testbed, instance_image, test_files
from swe_rl_env.tasks.adapters.swe_bench_runs import fill, run_for

XFAIL_PASSES = frozenset({"swe-bench", "swe-gym", "swe-rebench"})
"""Formats in which a test that fails as expected (pytest's XFAIL) counts as passed."""

_COLUMNS = (
    "instance_id",
    "repo",
    "base_commit",
    "problem_statement",
    "patch",
    "test_patch",
    "FAIL_TO_PASS",
    "PASS_TO_PASS",
    "hints_text",
    "created_at",
    "license",
    "version",
    "environment_setup_commit",
)


def swe_bench(row: Row) -> dict[str, Any]:
    """A row of SWE-bench, Lite or Verified; lists are JSON inside a string there."""
    return _row(row, instance_image(row, "swebench/sweb.eval.x86_64.", "_1776_") + ":latest")


def swe_gym(row: Row) -> dict[str, Any]:
    """A row of SWE-Gym (Lite): the same columns, another naming of images (``__`` -> ``_s_``)."""
    return _row(row, instance_image(row, "xingyaoww/sweb.eval.x86_64.", "_s_") + ":latest")


def _row(row: Row, image: str) -> dict[str, Any]:
    run = run_for(str(row.get("repo", "")), str(row.get("version") or ""))
    command = fill(run.command, test_files(row), str(row.get("test_patch") or ""))
    config = {"test_cmd": [in_testbed(command)], "log_parser": run.parser, "env": dict(run.env)}
    return {
        **copied(row, *_COLUMNS),
        "language": "python",
        "image_name": row.get("image_name") or row.get("docker_image") or image,
        "workdir": "/testbed",
        "install_config": row.get("install_config") or config,
        "meta": {"difficulty": row["difficulty"]} if row.get("difficulty") else {},
    }
