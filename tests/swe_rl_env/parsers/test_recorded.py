"""Parsers on what real runners printed (see fixtures/README.md)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from swe_rl_env.parsers import get_parser, reports

FIXTURES = Path(__file__).parent / "fixtures"
P, F, S, E = "PASSED", "FAILED", "SKIPPED", "ERROR"
WORDS = "test_words.py::"


def text(name: str) -> str:
    return (FIXTURES / name).read_text(encoding="utf-8")


NAMED: list[tuple[str, str, dict[str, str]]] = [
    (
        "parse_log_gotest",
        "gotest.txt",
        {
            "TestPlain": P,
            "TestTable": F,
            "TestTable/one": P,
            "TestTable/two_words": F,
            "TestTable/é_(x)": P,
            "TestLater": S,
        },
    ),
    ("parse_log_cargo", "cargo.txt", {"tests::doubles": P, "tests::wrong": F, "outside": P}),
    ("parse_log_jest", "jest.txt", {"adds numbers": F, "takes 3 words": P, "fails (really)": F, "skipped later": S}),
    (
        "parse_log_tap",
        "mocha_tap.txt",
        {
            "outer adds numbers": P,
            "outer is slow": P,
            "outer fails": F,
            "outer later # SKIP -": P,
            "outer to be written # SKIP -": P,
        },
    ),
    ("parse_log_tap", "tape.txt", {"should be strictly equal": P, "named": P}),
    ("parse_log_js_3", "node_tap.txt", {"adds": P, "fails": F, "later": P, "outer": F, "top": P}),
    (
        "parse_log_js_2",
        "mocha.txt",
        {"adds numbers": P, "is slow": P, "fails": F, "later": S, "to be written": S, "outer": F},
    ),
    (
        "parse_log_phpunit",
        "phpunit.txt",
        {
            "None > Adds numbers": P,
            "None > Fails": F,
            "None > Later": S,
            'None > Word with data set "two words"': P,
            'None > Word with data set "bad one"': F,
            "None > Word with data set #0": P,
        },
    ),
    (
        "parse_log_ruby_v2",
        "minitest.txt",
        {"WordsTest#test_adds": P, "WordsTest#test_fails": F, "WordsTest#test_boom": F, "WordsTest#test_later": S},
    ),
    ("parse_log_doctest", "doctest.txt", {"words > adds": P, "words > fails": F, "words > also <odd>": P}),
    ("parse_log_cpp_v4", "ctest.txt", {"two words": P}),
    ("parse_log_django", "unittest.txt", {"A docstring takes the id's place.": P, "test_boom": E, "test_bad": F}),
]


@pytest.mark.parametrize(("name", "file", "expected"), NAMED)
def test_named_parser(name: str, file: str, expected: dict[str, str]) -> None:
    found = get_parser(name)(text(file))
    assert {k: v for k, v in found.items() if k in expected} == expected


def test_pytest_cuts_ids_and_reads_through_colours() -> None:
    plain = get_parser("parse_log_pytest")(text("pytest_rA.txt"))
    assert plain[WORDS + "test_plain"] == P and plain[WORDS + "test_bad"] == F and plain[WORDS + "test_fixture"] == E
    assert WORDS + "test_word[a" in plain and WORDS + "test_word[a b]" not in plain
    options = get_parser("parse_log_pytest_options")(text("pytest_rA.txt"))
    assert options[WORDS + "test_word[/q]"] == P
    coloured = get_parser("parse_log_pytest_v2")(text("pytest_colour.txt"))
    assert coloured[WORDS + "test_plain"] == P and coloured[WORDS + "TestBox::test_in_box"] == P
    workers = get_parser("parse_log_pytest_nebo")(text("pytest_xdist.txt"))
    assert workers[WORDS + "test_word[a b]"] == P and workers[WORDS + "test_word[a c]"] == F


def test_vitest_googletest_and_exunit() -> None:
    vitest = get_parser("parse_log_vitest")(text("vitest.txt"))
    assert vitest["v/a.test.mjs > outer > adds numbers"] == P
    assert vitest["v/a.test.mjs > outer > inner é > adds numbers"] == F
    gtest = get_parser("parse_log_googletest")(text("googletest.txt"))
    assert gtest["Words.Adds"] == P and gtest["Words.Fails"] == F and "Words.Later" not in gtest
    assert gtest["Few/Sizes.Holds/1, where GetParam() = 2"] == F
    # Without a terminal ExUnit prints the start and the end of a test on one line, and the id keeps both.
    assert get_parser("parse_log_elixir")(text("elixir.txt"))["fails (really)"] == F


REPORTS: list[tuple[str, str, dict[str, str]]] = [
    (
        "pytest_xml",
        "pytest_junit.xml",
        {
            WORDS + "test_word[a b]": P,
            WORDS + "test_word[a c]": F,
            WORDS + "test_later": S,
            WORDS + "test_known": S,
            WORDS + "test_fixture": E,
            WORDS + "TestBox::test_in_box": P,
            WORDS + "test_word[[/tmp/q]]": P,
        },
    ),
    (
        "go_json",
        "gotest.json",
        {
            "example.com/gom.TestPlain": P,
            "example.com/gom/sub.TestPlain": P,
            "example.com/gom.TestTable/two_words": F,
            "example.com/gom.TestLater": S,
        },
    ),
    (
        "libtest_json",
        "cargo.json",
        {"tests::doubles": P, "tests::wrong": F, "tests::slow": S, "tests::panics": P, "outside": P},
    ),
    (
        "mocha_json",
        "mocha.json",
        {"m/a.js > outer adds numbers": P, "m/a.js > outer fails": F, "m/a.js > outer later": S},
    ),
    (
        "junit_xml",
        "phpunit_junit.xml",
        {"WordsTest::testAddsNumbers": P, "WordsTest::testFails": F, "WordsTest::testLater": S},
    ),
    (
        "junit_xml",
        "ctest_junit.xml",
        {"words::words": F, "two words::two words": P, "fails::fails": F, "later::later": S},
    ),
    (
        "rspec_json",
        "rspec.json",
        {
            "./spec/words_spec.rb Words adds": P,
            "./spec/words_spec.rb Words fails - passed on": F,
            "./spec/words_spec.rb Words later": S,
        },
    ),
]


@pytest.mark.parametrize(("reader", "file", "expected"), REPORTS)
def test_report(reader: str, file: str, expected: dict[str, str]) -> None:
    found = getattr(reports, reader)(text(file))
    assert {k: v for k, v in found.items() if k in expected} == expected


@pytest.mark.parametrize("file", ["jest.json", "vitest.json"])
def test_equal_titles_stay_apart_in_a_report(file: str) -> None:
    found = reports.jest_json(text(file))
    by_title = {k.partition(" > ")[2]: v for k, v in found.items()}
    assert by_title["outer > adds numbers"] == P and by_title["outer > inner é > adds numbers"] == F
    assert Counter(found.values()) == {P: 2, F: 2, S: 1}
