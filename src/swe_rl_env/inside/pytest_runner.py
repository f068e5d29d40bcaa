"""Script: run pytest with a reporter of ours; copied into the grading sandbox, outside the checkout.

Usage: ``python -P -s RUNNER CONFIG``. CONFIG is JSON: args, pythonpath, report, nonce, shuffle_seed (null = the
suite's own order); it and this file are removed before any code of the project runs. PYTHONPATH is set here and not at
start-up, so a ``sitecustomize`` or a ``pytest`` folder in the checkout is never picked up in place of the real one.
Standard library and pytest only.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

_RANK = {"PASSED": 0, "XPASS": 1, "XFAIL": 2, "SKIPPED": 3, "FAILED": 4, "ERROR": 5}


class Reporter:
    """Collects one verdict per node id; the worst phase wins."""

    def __init__(self) -> None:
        self.verdicts: dict[str, str] = {}
        self.collect_errors: list[str] = []

    def _note(self, nodeid: str, verdict: str) -> None:
        old = self.verdicts.get(nodeid)
        if old is None or _RANK[verdict] > _RANK[old]:
            self.verdicts[nodeid] = verdict

    def pytest_runtest_logreport(self, report: Any) -> None:
        """One phase (setup, call, teardown) of one test."""
        expected_failure = hasattr(report, "wasxfail")
        if report.outcome == "failed":
            self._note(report.nodeid, "FAILED" if report.when == "call" else "ERROR")
        elif report.outcome == "skipped":
            self._note(report.nodeid, "XFAIL" if expected_failure else "SKIPPED")
        elif report.when == "call":
            self._note(report.nodeid, "XPASS" if expected_failure else "PASSED")

    def pytest_collectreport(self, report: Any) -> None:
        """A module that could not be collected."""
        if report.outcome == "failed":
            self.collect_errors.append(report.nodeid)


def shuffled(items: list[Any], seed: int) -> list[Any]:
    """The collected tests with the files, and the tests in each file, in another order."""
    files: dict[str, list[Any]] = {}
    for item in items:
        files.setdefault(item.nodeid.split("::", 1)[0], []).append(item)
    draw = random.Random(seed)
    groups = list(files.values())
    draw.shuffle(groups)
    for group in groups:
        draw.shuffle(group)
    return [item for group in groups for item in group]


def main(config_path: str) -> int:
    """Run the suite and write the report as the very last step; return pytest's exit code."""
    config = json.loads(Path(config_path).read_text())
    Path(config_path).unlink()
    Path(__file__).unlink()
    sys.argv = ["pytest", *config["args"]]
    # Bound early: code of the project may replace attributes of these modules later.
    dumps, open_, write, close = json.dumps, os.open, os.write, os.close

    import pytest

    class Shuffler:
        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            items[:] = shuffled(items, config["shuffle_seed"])

    reporter = Reporter()
    plugins = [reporter] if config["shuffle_seed"] is None else [reporter, Shuffler()]
    sys.path[:0] = config["pythonpath"]
    if config["pythonpath"]:
        os.environ["PYTHONPATH"] = os.pathsep.join(config["pythonpath"])
    code = int(pytest.main(config["args"], plugins=plugins))
    data = dumps(
        {
            "nonce": config["nonce"],
            "exit_code": code,
            "verdicts": reporter.verdicts,
            "collect_errors": reporter.collect_errors,
        }
    ).encode()
    fd = open_(config["report"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    while data:
        data = data[write(fd, data) :]
    close(fd)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
