"""The same test command with a machine-readable report, where the runner offers one without more packages."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swe_rl_env.parsers import reports
from swe_rl_env.parsers.results import LogParser

_SHELL = frozenset("|&;<>()`$\n*?[]{}~#!")


@dataclass(frozen=True)
class Structured:
    """How to run a suite so that it writes a report.

    Attributes:
        command: what to run instead.
        read: reads the report's text.
        in_output: the report is the command's standard output; else it is the file that was asked for.
        beside: the usual output stays what it was, so that a named parser reads it as before.
    """

    command: str
    read: LogParser
    in_output: bool
    beside: bool = False


def structured_for(test_cmd: Sequence[str], report: str) -> Structured | None:
    """The command with a report, or None when it is not one plain call of a known runner.

    The ids differ from the named parsers' ids: they are the results of rows whose ids came from a report, and a second
    opinion for others.

    Args:
        test_cmd: the row's test commands.
        report: path of the report file inside the sandbox; put a nonce into it.
    """
    if len(test_cmd) != 1 or _has_shell(test_cmd[0]):
        return None
    try:
        words = shlex.split(test_cmd[0])
    except ValueError:
        return None
    front = _runner_at(words)
    if front is None:
        return None
    length, rule = front
    return rule(words[:length], words[length:], report)


def _has_shell(command: str) -> bool:
    """Whether the shell would do more than split words: quoted text is left out of the look."""
    lexer = shlex.shlex(command, posix=False, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return True
    return any(_SHELL & set(word) for word in words if word[:1] not in "'\"") or "\n" in command.strip()


_Rule = Callable[[list[str], list[str], str], Structured | None]


def _file(command: list[str], read: LogParser, *, beside: bool = False) -> Structured:
    return Structured(shlex.join(command), read, in_output=False, beside=beside)


def _pytest(front: list[str], rest: list[str], report: str) -> Structured | None:
    if any(w.startswith(("--junitxml", "--junit-xml")) for w in rest):
        return None
    words = [*front, "-o", "junit_family=xunit1", f"--junitxml={report}", *rest]
    return _file(words, reports.pytest_xml, beside=True)


def _jest(front: list[str], rest: list[str], report: str) -> Structured | None:
    if any(w.startswith(("--json", "--outputFile", "--watch")) for w in rest):
        return None
    return _file([*front, "--json", f"--outputFile={report}", *rest], reports.jest_json, beside=True)


def _vitest(front: list[str], rest: list[str], report: str) -> Structured | None:
    if rest[:1] != ["run"] and "--run" not in rest:
        return None  # it would wait for changes
    if any(w.startswith(("--reporter", "--outputFile")) for w in rest):
        return None
    return _file([*front, *rest, "--reporter=json", f"--outputFile={report}"], reports.jest_json)


def _mocha(front: list[str], rest: list[str], report: str) -> Structured | None:
    if any(w.startswith(("--reporter", "-R", "-w", "--watch")) for w in rest):
        return None
    return _file([*front, "--reporter", "json", "--reporter-option", f"output={report}", *rest], reports.mocha_json)


def _go(front: list[str], rest: list[str], report: str) -> Structured | None:
    del report
    if "-json" in rest or "-c" in rest:
        return None
    return Structured(shlex.join([*front, "-json", *(w for w in rest if w != "-v")]), reports.go_json, in_output=True)


def _phpunit(front: list[str], rest: list[str], report: str) -> Structured | None:
    if "--log-junit" in rest:
        return None
    return _file([*front, "--log-junit", report, *rest], reports.junit_xml, beside=True)


def _ctest(front: list[str], rest: list[str], report: str) -> Structured | None:
    if "--output-junit" in rest:
        return None
    return _file([*front, "--output-junit", report, *rest], reports.junit_xml, beside=True)


def _rspec(front: list[str], rest: list[str], report: str) -> Structured | None:
    if any(w.startswith(("-f", "--format", "-o", "--out")) for w in rest):
        return None
    return _file([*front, "--format", "json", "--out", report, *rest], reports.rspec_json)


def _cargo(front: list[str], rest: list[str], report: str) -> Structured | None:
    """libtest's JSON needs a nightly toolchain."""
    del report
    if "+nightly" not in front or any(w.startswith("--format") for w in rest):
        return None
    own, dashes, libtest = _split_at(rest, "--")
    del dashes
    words = [*front, *own, "--", "-Z", "unstable-options", "--format", "json", *libtest]
    return Structured(shlex.join(words), reports.libtest_json, in_output=True)


def _split_at(words: list[str], mark: str) -> tuple[list[str], bool, list[str]]:
    if mark not in words:
        return words, False, []
    index = words.index(mark)
    return words[:index], True, words[index + 1 :]


_RUNNERS: tuple[tuple[tuple[str, ...], _Rule], ...] = (
    (("python", "-m", "pytest"), _pytest),
    (("python3", "-m", "pytest"), _pytest),
    (("pytest",), _pytest),
    (("py.test",), _pytest),
    (("npx", "jest"), _jest),
    (("yarn", "jest"), _jest),
    (("jest",), _jest),
    (("npx", "vitest"), _vitest),
    (("vitest",), _vitest),
    (("npx", "mocha"), _mocha),
    (("mocha",), _mocha),
    (("go", "test"), _go),
    (("cargo", "test"), _cargo),
    (("cargo", "+nightly", "test"), _cargo),
    (("phpunit",), _phpunit),
    (("vendor/bin/phpunit",), _phpunit),
    (("ctest",), _ctest),
    (("rspec",), _rspec),
    (("bundle", "exec", "rspec"), _rspec),
)


def _runner_at(words: list[str]) -> tuple[int, _Rule] | None:
    plain = [w.removeprefix("./").removeprefix("node_modules/.bin/") for w in words[:3]]
    for front, rule in _RUNNERS:
        if tuple(plain[: len(front)]) == front:
            return len(front), rule
    return None
