"""SWE-bench (all, Lite, Verified) and SWE-Gym: Python, one image per instance, ``/testbed``, a command per repository.

Their rows name neither a command nor a parser: those stand in the benchmark's code. The table here holds what the
rows of this family run, as facts; a repository that is not in it is run with plain pytest, as most are.
"""

from __future__ import annotations

import posixpath
from typing import Any

from swe_rl_env.tasks.adapters.base import Row, copied, in_testbed, instance_image, test_files

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
_PYTEST = ("pytest -rA {files}", "parse_log_pytest")
_COMMANDS: dict[str, tuple[str, str]] = {
    "django/django": (
        "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 {modules}",
        "parse_log_django",
    ),
    "sympy/sympy": ("bin/test -C --verbose {files}", "parse_log_sympy"),
    "astropy/astropy": ("pytest -rA -vv -o console_output_style=classic --tb=no {files}", "parse_log_pytest_v2"),
    "mwaskom/seaborn": ("pytest --no-header -rA {files}", "parse_log_seaborn"),
    "sphinx-doc/sphinx": ("tox --current-env -epy39 -v -- {files}", "parse_log_pytest_v2"),
    "scikit-learn/scikit-learn": ("pytest -rA {files}", "parse_log_pytest_v2"),
}


def swe_bench(row: Row) -> dict[str, Any]:
    """A row of SWE-bench, Lite or Verified; lists are JSON inside a string there."""
    return _row(row, instance_image(row, "swebench/sweb.eval.x86_64.", "_1776_") + ":latest")


def swe_gym(row: Row) -> dict[str, Any]:
    """A row of SWE-Gym (Lite): the same columns, another naming of images (``__`` -> ``_s_``)."""
    return _row(row, instance_image(row, "xingyaoww/sweb.eval.x86_64.", "_s_") + ":latest")


def _row(row: Row, image: str) -> dict[str, Any]:
    command, parser = _COMMANDS.get(str(row.get("repo", "")).lower(), _PYTEST)
    files = [path for path in test_files(row) if path.endswith((".py", ".pyi"))] or test_files(row)
    filled = command.format(files=" ".join(files), modules=" ".join(_module(path) for path in files)).strip()
    return {
        **copied(row, *_COLUMNS),
        "language": "python",
        "image_name": row.get("image_name") or row.get("docker_image") or image,
        "workdir": "/testbed",
        "install_config": row.get("install_config") or {"test_cmd": [in_testbed(filled)], "log_parser": parser},
        "meta": {"difficulty": row["difficulty"]} if row.get("difficulty") else {},
    }


def _module(path: str) -> str:
    """Django's runner takes dotted modules relative to its tests folder."""
    return posixpath.splitext(path)[0].removeprefix("tests/").replace("/", ".")
