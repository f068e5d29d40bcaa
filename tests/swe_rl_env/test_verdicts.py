"""Reading results: the TAP parser, the rule, and the canary."""

from __future__ import annotations

from swe_rl_env import BuiltTask
from swe_rl_env.grading.canary import plant
from swe_rl_env.grading.grade import judge
from swe_rl_env.grading.tap import mark_command, parse_tap
from swe_rl_env.grading.verdicts import Verdict, worst

_LOG = """### N FILE test/a.js
TAP version 13
# first
ok 1 should be strictly equal
ok 2 should be strictly equal
# second one
ok 3 fine
not ok 4 should be strictly equal
  ---
    operator: equal
  ...
# SKIP later
# empty
1..4
# tests 4
# pass  3
ok 9 after the plan
### N EXIT 1
### EXIT 0
### N FILE test/b.js
# first
ok 1 x
### N EXIT 0
"""


def test_tap_blocks() -> None:
    verdicts, complete = parse_tap(_LOG, "N")
    assert complete
    assert verdicts["test/a.js > first"] == "PASSED"
    assert verdicts["test/a.js > second one"] == "FAILED"
    assert verdicts["test/a.js > SKIP later"] == "SKIPPED"
    assert verdicts["test/a.js > empty"] == "MISSING"
    assert verdicts["test/b.js > first"] == "PASSED"


def test_tap_worst_block_of_a_title_wins() -> None:
    log = "### FILE a\n# t\nok 1\n# t\nnot ok 2\n1..2\n### EXIT 1\n"
    assert parse_tap(log)[0] == {"a > t": "FAILED"}


def test_tap_without_exit_contributes_nothing() -> None:
    assert parse_tap("### FILE a\n# t\nok 1\n") == ({}, False)
    verdicts, complete = parse_tap("### FILE a\n# t\nok 1\n### FILE b\n# u\nok 1\n### EXIT 0\n")
    assert verdicts == {"b > u": "PASSED"} and not complete


def test_tap_markers_carry_the_nonce() -> None:
    assert mark_command('echo "### FILE $f"; node "$f"; echo "### EXIT $?"', "abc") == (
        'echo "### abc FILE $f"; node "$f"; echo "### abc EXIT $?"'
    )
    assert parse_tap("### FILE a\n# t\nok 1\n### EXIT 0\n", "abc") == ({}, True)


def test_worst() -> None:
    assert worst(None, "PASSED") == "PASSED"
    assert worst("PASSED", "ERROR") == "ERROR"
    assert worst("FAILED", "SKIPPED") == "FAILED"


def _all_passed(built: BuiltTask) -> dict[str, Verdict]:
    return dict.fromkeys(built.task.private.expected, "PASSED")


def test_rule_needs_every_id(xmltodict: BuiltTask) -> None:
    verdicts = _all_passed(xmltodict)
    assert judge(xmltodict, verdicts, "as_planted", True).reward == 1.0
    for other in ("SKIPPED", "XFAIL", "XPASS", "ERROR", "FAILED"):
        changed: dict[str, Verdict] = {**verdicts, xmltodict.task.private.pass_to_pass[0]: other}  # type: ignore[dict-item]
        assert judge(xmltodict, changed, "as_planted", True).reason == "tests_failed"
    del verdicts[xmltodict.task.private.fail_to_pass[0]]
    missing = judge(xmltodict, verdicts, "as_planted", True)
    assert (missing.reward, missing.reason) == (0.0, "tests_failed")
    assert missing.tests[xmltodict.task.private.fail_to_pass[0]] == "MISSING"


def test_rule_needs_the_canary_and_the_end(xmltodict: BuiltTask) -> None:
    verdicts = _all_passed(xmltodict)
    assert judge(xmltodict, verdicts, "altered", True).reason == "tampering"
    assert judge(xmltodict, verdicts, "missing", True).reason == "tampering"
    assert judge(xmltodict, verdicts, "as_planted", False).reason == "no_report"
    # Nothing could be collected: a broken fix, not a cheat.
    assert judge(xmltodict, {}, "missing", True).reason == "tests_failed"


def test_canary_is_fresh_and_checked(xmltodict: BuiltTask, shell_quote: BuiltTask) -> None:
    for built in (xmltodict, shell_quote):
        one, two = plant(built), plant(built)
        assert not one.files.keys() & two.files.keys()
        assert one.check(one.expected) == "as_planted"
        assert one.check({}) == "missing"
        assert one.check(dict.fromkeys(one.expected, "PASSED")) == "altered"
