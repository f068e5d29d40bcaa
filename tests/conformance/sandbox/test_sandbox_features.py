"""Who skips what: a backend has the features it is said to have, and a case is skipped for a missing feature only."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import NamedTuple, get_args

import pytest

from drivetrain.sandboxes import Feature
from tests.conformance.sandbox.kits import get_kit, known_kits
from tests.conformance.sandbox.kits.base import Kit

FEATURES = frozenset(get_args(Feature))
DOCS = Path(__file__).parents[3] / "docs" / "sandboxes.md"
MACHINE = frozenset({"memory_limit", "pids_limit", "cpu_limit", "disk_limit"})
"""What the local backend has only where the machine lets it."""


# What a backend does not run where it can do all the table in docs/sandboxes.md says.
SKIPPED: dict[str, set[str]] = {
    "local": {
        "test_a_disk_limit_that_cannot_be_held_is_said",
        "test_a_policy_that_cannot_be_enforced_is_refused",
        "test_a_port_inside_is_reached_from_the_host",
        "test_a_processor_limit_that_cannot_be_held_is_said",
        "test_a_writable_mount_is_refused",
        "test_an_image_that_is_not_there_is_named",
        "test_an_overlay_is_refused",
        "test_job_pid_is_the_sandboxes",
        "test_without_snapshots_it_says_so",
    },
    "docker": {
        "test_a_full_disk_is_an_error_inside",
        "test_a_policy_that_cannot_be_enforced_is_refused",
        "test_a_port_inside_is_reached_from_the_host",
        "test_a_processor_limit_that_cannot_be_held_is_said",
        "test_a_writable_mount_is_refused",
        "test_an_image_is_refused",
        "test_an_overlay_is_refused",
        "test_job_pid_is_the_sandboxes",
        "test_many_files_do_not_get_around_the_disk_limit",
        "test_without_snapshots_it_says_so",
    },
    "e2b": {
        "test_a_full_disk_is_an_error_inside",
        "test_a_memory_bomb_is_contained",
        "test_a_policy_that_cannot_be_enforced_is_refused",
        "test_an_image_is_refused",
        "test_an_overlay_is_refused",
        "test_job_pid_is_the_hosts",
        "test_many_files_do_not_get_around_the_disk_limit",
        "test_memory_that_files_take_is_limited_too",
        "test_the_processor_share_is_limited",
        "test_without_a_way_in_reach_says_so",
        "test_without_snapshots_it_says_so",
        "test_writes_to_a_writable_mount_reach_the_host",
    },
    "hf": {
        "test_a_full_disk_is_an_error_inside",
        "test_a_memory_bomb_is_contained",
        "test_a_sandbox_goes_on_after_its_snapshot",
        "test_a_snapshot_of_nothing_is_refused",
        "test_abstract_unix_sockets_of_the_host_are_out_of_reach",
        "test_an_image_is_refused",
        "test_an_overlay_is_refused",
        "test_files_come_back_as_they_were",
        "test_job_pid_is_the_hosts",
        "test_many_files_do_not_get_around_the_disk_limit",
        "test_memory_that_files_take_is_limited_too",
        "test_no_packet_leaves",
        "test_the_hosts_loopback_is_another",
        "test_the_processor_share_is_limited",
        "test_there_is_no_route_and_no_interface",
        "test_two_sandboxes_do_not_share_a_network",
        "test_what_was_written_over_a_mount_is_kept",
        "test_without_a_way_in_reach_says_so",
        "test_writes_to_a_writable_mount_reach_the_host",
    },
}


class Case(NamedTuple):
    """A test of the suite and the features that decide whether it runs."""

    needs: frozenset[str]
    lacks: frozenset[str]


def marked(node: ast.AST, mark: str) -> frozenset[str]:
    """The features in ``@pytest.mark.<mark>(...)`` of a function."""
    decorators = getattr(node, "decorator_list", [])
    calls = [each for each in decorators if isinstance(each, ast.Call)]
    words = [word for call in calls if ast.unparse(call.func) == f"pytest.mark.{mark}" for word in call.args]
    return frozenset(ast.literal_eval(word) for word in words)


@functools.cache
def cases() -> dict[str, Case]:
    """Every test of the suite by name."""
    found: dict[str, Case] = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                assert node.name not in found, f"two tests are called {node.name}"
                found[node.name] = Case(marked(node, "needs"), marked(node, "lacks"))
    return found


def documented() -> dict[str, dict[str, str]]:
    """Backend -> feature -> what the table of docs/sandboxes.md says: ``yes``, ``no``, or a condition."""
    lines = DOCS.read_text("utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    head, *body = [row for row in rows if row[0] == "feature" or row[0].strip("`") in FEATURES]
    return {name: {row[0].strip("`"): row[column] for row in body} for column, name in enumerate(head) if column > 1}


def skipped(has: frozenset[str]) -> set[str]:
    """The cases that a backend with these features skips."""
    return {name for name, case in cases().items() if case.needs - has or case.lacks & has}


def test_the_backend_has_the_features_it_promises(kit: Kit, tmp_path: Path) -> None:
    assert kit.make(tmp_path / "sandboxes").features == kit.promised()


def test_the_documentation_says_what_the_backend_has(kit: Kit) -> None:
    said = documented()[kit.name]
    assert set(said) == FEATURES
    has = kit.promised()
    wrong = {
        feature: word
        for feature, word in said.items()
        if (word.startswith("yes") and feature not in has and not (kit.name == "local" and feature in MACHINE))
        or (word.startswith("no") and feature in has)
    }
    assert wrong == {}


@pytest.mark.parametrize("name", known_kits())
def test_what_a_backend_skips_is_written_down(name: str) -> None:
    """A case that starts or stops to run on a backend shows here."""
    has = frozenset(feature for feature, word in documented()[name].items() if not word.startswith("no"))
    assert skipped(has) == set(SKIPPED[name])


def test_every_feature_has_a_case() -> None:
    """Of those who have it, and, where a call or a spec can ask for it in vain, of those who do not."""
    all_cases = cases().values()
    assert {feature for case in all_cases for feature in case.needs} == FEATURES
    askable = FEATURES - {"memory_limit", "pids_limit", "mount"}
    assert {feature for case in all_cases for feature in case.lacks} == askable
    assert len(all_cases) >= 60


def test_nothing_else_skips() -> None:
    ways = {f"pytest.{word}" for word in ("skip", "xfail", "importorskip", "mark.skip", "mark.skipif", "mark.xfail")}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        nodes = ast.walk(ast.parse(path.read_text("utf-8")))
        used = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
        assert used & ways == set(), path.name


def test_kits_are_named_after_their_backends() -> None:
    assert [get_kit(name).name for name in known_kits()] == known_kits()
