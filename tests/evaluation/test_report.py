"""What is counted, and the three formats."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from drivetrain.cli.eval import write_reports
from drivetrain.evaluation.config import EvalConfig
from drivetrain.evaluation.folder import EvalFolder
from drivetrain.evaluation.page import page
from drivetrain.evaluation.report import make_report, markdown
from swe_rl_env.tasks.select import read_pass_rates

from .kit import TASKS, attempt, tasks

CONFIG = EvalConfig(agent="pi", model="m<b>|x", base_url="http://127.0.0.1:1")
FIRST, SECOND, THIRD = TASKS


def attempts(third: str = "infra_error") -> list:  # type: ignore[type-arg]
    return [
        attempt(FIRST, 0),
        attempt(FIRST, 1, "unresolved", stop="deadline"),
        attempt(SECOND, 0, "unresolved"),
        attempt(SECOND, 1, "infra_error"),
        attempt(THIRD, 0, third),  # type: ignore[arg-type]
        attempt(THIRD, 1, third),  # type: ignore[arg-type]
    ]


def test_ungraded_attempts_are_in_no_share() -> None:
    report = make_report(CONFIG, tasks(), attempts())
    assert (report.attempts, report.graded, report.resolved, report.infra_errors) == (6, 3, 1, 3)
    assert report.pass_rate == {FIRST: 0.5, SECOND: 0.0}, "a task without a graded attempt has no rate"
    assert report.pass_at["1"].value == pytest.approx(0.25)
    assert report.pass_at["1"].tasks == 2
    assert (report.pass_at["2"].value, report.pass_at["2"].tasks) == (1.0, 1), "only one task has two graded attempts"
    by_repo = {line.repo: line for line in report.by_repo}
    assert (by_repo["pypi/xmltodict"].tasks, by_repo["pypi/xmltodict"].resolved) == (2, 1)
    assert by_repo["npm/shell-quote"].pass_at_1 is None
    assert (report.reasons, report.stops) == ({"tests_failed": 2}, {"deadline": 1})


def test_counting_failures_of_the_machinery_would_show() -> None:
    as_failures = make_report(CONFIG, tasks(), attempts("unresolved"))
    assert as_failures.pass_at["1"].value < make_report(CONFIG, tasks(), attempts()).pass_at["1"].value


class Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.outside += [value for name, value in attrs if name in ("src", "href") and value]


def test_html_is_one_file_and_escapes(tmp_path: Path) -> None:
    text = page(make_report(CONFIG, tasks(), attempts()))
    seen = Seen()
    seen.feed(text)
    assert seen.outside == [] and "script" not in seen.tags and "link" not in seen.tags
    assert "m&lt;b&gt;|x" in text and "m<b>" not in text
    assert all(name in text for name in (FIRST, SECOND, THIRD, "pass@2", "not graded"))


def test_markdown_and_json(tmp_path: Path) -> None:
    report = make_report(CONFIG, tasks(), attempts())
    text = markdown(report)
    assert "3 could not be graded and count as nothing" in text
    assert "| pypi/xmltodict | 2 | 3 | 1 | 1 | 25.0 %" in text
    folder = EvalFolder(tmp_path)
    write_reports(folder, report)
    assert read_pass_rates(tmp_path) == {FIRST: 0.5, SECOND: 0.0}
    stored = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    assert stored["pass_at"]["1"]["method"] == "bootstrap"


def test_nothing_graded_is_no_zero() -> None:
    report = make_report(CONFIG, tasks(), [attempt(FIRST, 0, "infra_error")])
    assert report.pass_at == {} and report.pass_rate == {}
    assert "0 of 0 graded" in markdown(report)
    assert "<html" in page(report)
