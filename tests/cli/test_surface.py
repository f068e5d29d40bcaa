"""Every command explains itself in the same way: a summary, an example that parses, a help text for each option."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from typer.testing import CliRunner

from drivetrain.cli import surface
from drivetrain.cli.main import app
from tests.cli.parsing import ROOT, parse

WALKED = dict(surface.walk(ROOT))
_EXAMPLE = re.compile(r"^\s*(?:Example: |then: )?(drivetrain [a-z].*)$", re.MULTILINE)
VERBS = {"ls", "show", "check", "build", "validate", "generate", "stats", "export", "view", "why-forked"}


@pytest.mark.parametrize("path", WALKED, ids=" ".join)
def test_help(path: tuple[str, ...]) -> None:
    command = WALKED[path]
    text = command.help or ""
    summary = text.strip().split("\n\n")[0]
    assert 15 < len(summary) < 250 and summary.endswith("."), summary
    examples = _EXAMPLE.findall(text)
    assert examples, f"`{' '.join(path)}` shows no example"
    for example in examples:
        parse(example)
    assert any(parse(example) == path for example in examples), "one example is of this very command"
    for parameter in command.params:
        if parameter.name != "help":
            assert len(parameter.help or "") > 3, f"{parameter.name} is not explained"
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "160"})
    assert shown.exit_code == 0 and "--json" in shown.stdout


def test_the_same_option_has_the_same_name_and_short_form_everywhere() -> None:
    short: dict[str, Counter[str]] = {}
    for command in WALKED.values():
        for parameter in surface.options(command):
            for flag in parameter.opts:
                if re.fullmatch(r"-[a-z]", flag) and flag != "-n":  # -n is always "how many"
                    short.setdefault(flag, Counter())[surface.option_name(parameter)] += 1
    several = {flag: names for flag, names in short.items() if len(names) > 1}
    assert several == {"-t": Counter({"task": 3, "tasks": 1})}, "eval also takes --tasks all"


def test_groups_use_the_same_verbs() -> None:
    assert {path[-1] for path in WALKED if len(path) > 1} <= VERBS
    assert all(len(path) <= 2 for path in WALKED)


def test_names_are_unambiguous() -> None:
    for command in surface.commands(ROOT):
        values = [value for value in command.settings.values() if value.name == "json"]
        assert len(values) == 1 and values[0].kind == "boolean", command.path
        assert all(re.fullmatch(r"[a-z][a-z-]*", name) for name in command.settings)
    variables = [parameter.envvar for command in WALKED.values() for parameter in surface.options(command)]
    assert len(variables) == len(set(variables))
    assert all(re.fullmatch(r"DRIVETRAIN_[A-Z_]+", name) for name in variables)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rolout"], "'rollout'"),
        (["trace", "chekc"], "'check'"),
        (["tasks", "ls", "--langage", "js"], "--language"),
        (["tasks", "show", "pypi__xmltodict-0.14.3"], "pypi__xmltodict-0.14.2"),
        (["eval", "-a", "codx", "-t", "all", "--base-url", "http://127.0.0.1:1", "-m", "x"], "Did you mean codex"),
        (["eval", "-a", "noop", "-t", "all", "--sandbox", "dcker"], "'docker'"),
        (["template-check", "SmolLM2-135M-Instuct"], "Did you mean SmolLM2-135M-Instruct"),
        (["agents", "build", "opencde"], "Did you mean opencode"),
    ],
)
def test_did_you_mean(arguments: list[str], says: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert says in " ".join((done.stderr + done.stdout).split())
    assert not list(tmp_path.iterdir())
