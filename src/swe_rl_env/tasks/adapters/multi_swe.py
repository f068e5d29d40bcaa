"""Multi-SWE-bench and Multi-SWE-RL: GitHub-shaped rows, tests as maps from name to what happened when.

Columns: the fields of ``Dataset`` and ``PullRequest`` in multi_swe_bench/harness/{dataset,pull_request}.py of
multi-swe-bench/multi-swe-bench (commits 0dd97352, 1e443b75): ``base`` {label, ref, sha}, ``resolved_issues`` a list of
{number, title, body}, ``f2p_tests`` and its kin maps from test id to {run, test, fix}. Published files add
``instance_id`` (``org__repo-number``), ``language`` and ``difficulty``; the benchmark's own id is
``org/repo:pr-number``. ``hints`` describe the fix and are left out.

The schema holds no test command and no parser: both are code of that benchmark, per repository. A row becomes a task
only where it carries an ``install_config`` (or the caller gives one for all rows); otherwise it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swe_rl_env.tasks.adapters.base import Row, Unusable, copied, json_value


def multi_swe(row: Row) -> dict[str, Any]:
    """A row of the family.

    FAIL_TO_PASS are the tests that fail, are skipped or do not exist before the fix and pass after it.

    Raises:
        Unusable: the base commit is missing, or there is no ``install_config``.
    """
    base = json_value(row.get("base"))
    if not isinstance(base, Mapping) or not base.get("sha"):
        raise Unusable("base.sha is missing")
    if not row.get("install_config"):
        raise Unusable("the schema names no test command and no log parser, and no default was given")
    org, repo, number = row.get("org"), row.get("repo"), row.get("number")
    image = f"mswebench/{org}_m_{repo}:pr-{number}".lower()
    return {
        **copied(row, "license", "hints_text", "created_at", "install_config", "test_patch"),
        "instance_id": _id(row) or f"{org}__{repo}-{number}".lower(),
        "repo": f"{org}/{repo}",
        "language": row.get("language") or row.get("lang") or "unknown",
        "base_commit": base["sha"],
        "problem_statement": _statement(row),
        "pr_description": "\n\n".join(str(row[name]) for name in ("title", "body") if row.get(name)),
        "patch": row.get("fix_patch"),
        "meta": {"difficulty": row["difficulty"]} if row.get("difficulty") else {},
        "FAIL_TO_PASS": _names(row, "f2p_tests", "s2p_tests", "n2p_tests"),
        "PASS_TO_PASS": _names(row, "p2p_tests"),
        "image_name": row.get("image_name") or image,
        "workdir": row.get("workdir") or f"/home/{repo}",
    }


def _id(row: Row) -> str:
    given = str(row.get("instance_id") or "")
    return "" if "/" in given or ":" in given else given


def _statement(row: Row) -> str:
    """The resolved issues; the title and body of the pull request describe the fix and are never shown."""
    issues = json_value(row.get("resolved_issues")) or []
    texts = [
        "\n\n".join(str(issue[name]) for name in ("title", "body") if issue.get(name))
        for issue in issues
        if isinstance(issue, Mapping)
    ]
    return "\n\n".join(text for text in texts if text)


def _names(row: Row, *columns: str) -> list[str]:
    found: dict[str, None] = {}
    for column in columns:
        tests = json_value(row.get(column)) or {}
        # A Parquet map comes as a list of pairs; absent keys of a struct come as null.
        pairs = tests.items() if isinstance(tests, Mapping) else ((t, True) for t in tests)
        found.update({str(name): None for name, value in pairs if value is not None})
    return list(found)
