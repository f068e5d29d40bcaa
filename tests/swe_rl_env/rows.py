"""Rows of every known format, about a project that does not exist."""

from __future__ import annotations

import json
from typing import Any

PATCH = """diff --git a/abacus/core.py b/abacus/core.py
--- a/abacus/core.py
+++ b/abacus/core.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""
TEST_PATCH = """diff --git a/tests/test_core.py b/tests/test_core.py
--- a/tests/test_core.py
+++ b/tests/test_core.py
@@ -1,2 +1,5 @@
 from abacus.core import add
+
+def test_add():
+    assert add(1, 2) == 3
"""
COMMIT = "0123456789abcdef0123456789abcdef01234567"
F2P, P2P = ["tests/test_core.py::test_add"], ["tests/test_core.py::test_zero"]


def v2_row(**changes: Any) -> dict[str, Any]:
    return {
        "instance_id": "acme__abacus-12",
        "repo": "Acme/Abacus",
        "base_commit": COMMIT,
        "created_at": 1704164645000,
        "language": "python",
        "license": "MIT",
        "image_name": "docker.io/swerebenchv2/acme-abacus:12-0123456",
        "patch": PATCH,
        "test_patch": TEST_PATCH,
        "problem_statement": "Adding two numbers subtracts them.",
        "pr_description": "SECRET: use plus",
        "interface": "def add(a, b)",
        "FAIL_TO_PASS": F2P,
        "PASS_TO_PASS": P2P,
        "install_config": {
            "base_image_name": "python_3.11",
            "docker_specs": {"python_image": "3.11-slim"},
            "install": "pip install -e .",
            "log_parser": "parse_log_pytest",
            "log_parsers": None,
            "test_cmd": "pytest -rA tests",
        },
        "meta": {
            "num_modified_files": 1,
            "llm_metadata": [{"code": "A", "difficulty": "easy", "detected_issues": {"B1": False}}],
        },
        "unknown_column": 1,
        **changes,
    }


def swe_bench_row(**changes: Any) -> dict[str, Any]:
    return {
        "instance_id": "acme__abacus-12",
        "repo": "acme/abacus",
        "base_commit": COMMIT,
        "problem_statement": "Adding two numbers subtracts them.",
        "hints_text": "SECRET",
        "patch": PATCH,
        "test_patch": TEST_PATCH,
        "created_at": "2024-01-02T03:04:05Z",
        "version": "1.0",
        "environment_setup_commit": COMMIT,
        "FAIL_TO_PASS": json.dumps(F2P),
        "PASS_TO_PASS": json.dumps(P2P),
        **changes,
    }


def swe_gym_row(**changes: Any) -> dict[str, Any]:
    row = swe_bench_row(FAIL_TO_PASS=F2P, PASS_TO_PASS=P2P)
    del row["environment_setup_commit"]
    return {**row, **changes}


def rebench_v1_row(**changes: Any) -> dict[str, Any]:
    return {
        **swe_bench_row(FAIL_TO_PASS=F2P, PASS_TO_PASS=P2P, FAIL_TO_FAIL=[], PASS_TO_FAIL=[]),
        "license_name": "Apache License 2.0",
        "docker_image": "swerebench/sweb.eval.x86_64.acme_1776_abacus-12",
        "install_config": {
            "python": "3.9",
            "install": "pip install -e .[dev]",
            "pip_packages": ["pytest"],
            "packages": "requirements.txt",
            "reqs_path": ["requirements.txt"],
            "env_vars": None,
            "env_yml_path": None,
            "pre_install": None,
            "no_use_env": None,
            "log_parser": "parse_log_pytest",
            "test_cmd": "pytest --no-header -rA",
        },
        "meta": {"is_lite": True, "llm_score": {"difficulty_score": 2, "issue_text_score": 0, "test_score": 0}},
        **changes,
    }


def multi_swe_row(**changes: Any) -> dict[str, Any]:
    run = {"run": "FAIL", "test": "FAIL", "fix": "PASS"}
    return {
        "org": "acme",
        "repo": "abacus",
        "number": 12,
        "title": "SECRET: use plus",
        "body": "SECRET",
        "base": {"label": "acme:main", "ref": "main", "sha": COMMIT},
        "resolved_issues": [{"number": 3, "title": "Adding subtracts", "body": "1 + 2 gives -1."}],
        "fix_patch": PATCH,
        "test_patch": TEST_PATCH,
        "f2p_tests": {"core.add": run, "absent": None},
        "n2p_tests": {"core.new": run},
        "s2p_tests": {},
        "p2p_tests": {"core.zero": run},
        "language": "go",
        "difficulty": "easy",
        "hints": "SECRET",
        "install_config": {"test_cmd": "go test -v ./...", "log_parser": "parse_log_gotest"},
        **changes,
    }


def nemo_row(inner: dict[str, Any], dataset: str = "some/set") -> dict[str, Any]:
    metadata = {"instance_dict": json.dumps(inner), "dataset_name": dataset, "base_commit": COMMIT}
    return {"responses_create_params": {"input": [], "metadata": metadata}, "agent_ref": {"name": "x"}}
