"""Commands with a report, and what a report's contradictions mean."""

from __future__ import annotations

import pytest

from swe_rl_env.parsers import reports, structured_for


@pytest.mark.parametrize(
    ("command", "changed"),
    [
        ("pytest -rA tests/a.py", "pytest -o junit_family=xunit1 --junitxml=/r -rA tests/a.py"),
        ("python -m pytest -k 'a and b'", "python -m pytest -o junit_family=xunit1 --junitxml=/r -k 'a and b'"),
        ("pytest 't.py::x[a b]'", "pytest -o junit_family=xunit1 --junitxml=/r 't.py::x[a b]'"),
        ("go test -v ./...", "go test -json ./..."),
        ("npx jest --ci", "npx jest --json --outputFile=/r --ci"),
        ("npx vitest run", "npx vitest run --reporter=json --outputFile=/r"),
        (
            "./node_modules/.bin/mocha test",
            "./node_modules/.bin/mocha --reporter json --reporter-option output=/r test",
        ),
        ("vendor/bin/phpunit --testdox", "vendor/bin/phpunit --log-junit /r --testdox"),
        ("ctest -V", "ctest --output-junit /r -V"),
        ("bundle exec rspec", "bundle exec rspec --format json --out /r"),
        (
            "cargo +nightly test -- --test-threads=1",
            "cargo +nightly test -- -Z unstable-options --format json --test-threads=1",
        ),
    ],
)
def test_a_plain_call_gets_a_report(command: str, changed: str) -> None:
    structured = structured_for([command], "/r")
    assert structured is not None and structured.command == changed


@pytest.mark.parametrize(
    "command",
    [
        "cd x && pytest",
        "pytest; true",
        "pytest | tee log",
        "pytest $ARGS",
        "FOO=1 pytest",
        "make check",
        "",
        "pytest 'open",
        "cargo test",
        "vitest",
        "pytest --junitxml=mine.xml",
        "go test -json ./...",
        "mocha -R dot",
        "pytest\nrm x",
        "pytest `x`",
    ],
)
def test_anything_else_is_left_alone(command: str) -> None:
    assert structured_for([command], "/r") is None


def test_two_commands_are_left_alone() -> None:
    assert structured_for(["pytest a", "pytest b"], "/r") is None


def test_contradicting_words_about_one_id_count_as_the_worse() -> None:
    case = '<testcase classname="a" name="b"/>'
    bad = '<testcase classname="a" name="b"><failure/></testcase>'
    for order in (case + bad, bad + case):
        assert reports.junit_xml(f"<r>{order}</r>") == {"a::b": "FAILED"}
    assert reports.go_json(
        '{"Action":"fail","Package":"p","Test":"T"}\n{"Action":"pass","Package":"p","Test":"T"}\nnoise'
    ) == {"p.T": "FAILED"}


def test_a_package_that_does_not_build_is_an_error() -> None:
    assert reports.go_json('{"Action":"fail","Package":"p"}') == {"p": "ERROR"}


def test_a_broken_report_says_nothing() -> None:
    assert reports.junit_xml("<r><testcase") == {} == reports.jest_json("{") == reports.rspec_json("[]")


def test_a_report_behind_other_output_is_found() -> None:
    assert reports.rspec_json(
        'warning {\n{"examples":[{"file_path":"a","full_description":"b","status":"passed"}]}'
    ) == {"a b": "PASSED"}
