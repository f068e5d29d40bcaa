"""``drivetrain.toml`` and the environment: what wins, and what a mistake is told as."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from drivetrain.cli.config import read_config
from drivetrain.cli.init import config_text
from drivetrain.cli.main import app
from drivetrain.cli.surface import configurable, option_name, options, walk
from tests.cli.parsing import ROOT


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, env: dict[str, str] | None = None) -> Any:
    return CliRunner().invoke(app, [*arguments], env={"COLUMNS": "200", **(env or {})})


def languages(*arguments: str, env: dict[str, str] | None = None) -> set[str]:
    done = run(*arguments, "tasks", "ls", "--json", env=env)
    assert done.exit_code == 0, done.output
    return {row["language"] for row in json.loads(done.stdout)}


def test_precedence() -> None:
    """A flag beats the environment, the environment beats the file, the file beats the default."""
    assert languages() == {"js", "python"}
    Path("drivetrain.toml").write_text('[tasks.ls]\nlanguage = ["js"]\n')
    assert languages() == {"js"}
    assert languages(env={"DRIVETRAIN_TASKS_LS_LANGUAGE": "python"}) == {"python"}
    flag = run("tasks", "ls", "--json", "-l", "js", env={"DRIVETRAIN_TASKS_LS_LANGUAGE": "python"})
    assert {row["language"] for row in json.loads(flag.stdout)} == {"js"}
    assert "1 settings of tasks ls are taken from drivetrain.toml" in flag.stderr


def test_which_file(tmp_path: Path) -> None:
    Path("drivetrain.toml").write_text('[tasks.ls]\nlanguage = ["js"]\n')
    other = tmp_path / "other.toml"
    other.write_text('[tasks.ls]\nlanguage = ["python"]\njson = true\n')
    assert languages(env={"DRIVETRAIN_CONFIG": str(other)}) == {"python"}
    assert languages("--config", str(other)) == {"python"}
    missing = run("--config", "nowhere.toml", "tasks", "ls")
    assert missing.exit_code == 2 and "nowhere.toml" in missing.stderr and "drivetrain init" in missing.stderr


def test_booleans_and_lists_from_the_environment() -> None:
    done = run("tasks", "ls", env={"DRIVETRAIN_TASKS_LS_JSON": "1", "DRIVETRAIN_TASKS_LS_LANGUAGE": "js python"})
    assert {row["language"] for row in json.loads(done.stdout)} == {"js", "python"}


def test_a_required_option_may_come_from_the_file(tmp_path: Path) -> None:
    Path("drivetrain.toml").write_text('[tasks.generate]\nout = "made.jsonl"\ncount = 2\n')
    done = run("tasks", "generate", env={"DRIVETRAIN_CACHE": str(tmp_path / "cache")})
    assert done.exit_code == 0, done.output
    assert len(Path("made.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[rollout]\nmax-turn = 3\n", "drivetrain.toml:2: [rollout] max-turn: `drivetrain rollout` has no setting"),
        ("[rollout]\nmax-turn = 3\n", "Did you mean max-turns"),
        ("[rollout]\n# turns\nmax_turns = 3\n", "drivetrain.toml:3: [rollout] max_turns"),
        ("[rollout]\nmax_turns = 3\n", "Did you mean max-turns"),
        ("[rolout]\nn = 3\n", "there is no command `drivetrain rolout`. Did you mean rollout"),
        ("[tasks.lst]\ntext = 'x'\n", "drivetrain.toml:1: there is no command `drivetrain tasks lst`"),
        ("[init]\nout = 'x'\n", "there is no command `drivetrain init`"),
        ("n = 3\n", "drivetrain.toml:1: n is a setting outside the table of a command"),
        ("[tasks]\ntext = 'x'\n", "[tasks] text is a setting outside the table of a command"),
        ("[rollout]\nmax-turns = '3'\n", 'drivetrain.toml:2: [rollout] max-turns is "3"; it must be a whole number'),
        ("[rollout]\nmax-turns = 3.5\n", "it must be a whole number"),
        ("[rollout]\nmax-turns = true\n", "max-turns is true; it must be a whole number"),
        ("[rollout]\ntemperature = 'hot'\n", 'temperature is "hot"; it must be a number'),
        ("[rollout]\nmodel = 3\n", "model is 3; it must be a text in quotes"),
        ("[rollout]\nno-probe = 1\n", "no-probe is 1; it must be true or false"),
        ("[rollout]\nagent = 'pi'\n", 'agent is "pi", not a list. Write agent = [...]'),
        ("[rollout]\nagent = ['pi', 3]\n", "agent is 3; it must be a text"),
        ("[rollout]\nreasoning = 'keeep'\n", 'reasoning is "keeep". Did you mean keep'),
        ("[rollout\n", "drivetrain.toml is no TOML"),
    ],
)
def test_a_mistake_anywhere_in_the_file_is_one_clear_line(text: str, says: str) -> None:
    Path("drivetrain.toml").write_text(text)
    done = run("tasks", "ls")  # another command than the one in the file
    assert done.exit_code == 2 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert says in line


def test_a_value_that_the_option_refuses() -> None:
    Path("drivetrain.toml").write_text("[serve]\n\nport = 70000\n")
    done = run("serve")
    assert done.exit_code == 2 and "error: drivetrain.toml:3: [serve] port: " in done.stderr, done.stderr
    Path("drivetrain.toml").unlink()
    done = run("serve", env={"DRIVETRAIN_SERVE_PORT": "http"})
    assert done.exit_code == 2 and "error: $DRIVETRAIN_SERVE_PORT: " in done.stderr, done.stderr


def test_help_and_init_work_beside_a_broken_file() -> None:
    Path("drivetrain.toml").write_text("[rolout]\n")
    assert run("rollout", "--help").exit_code == 0
    assert run("init", "--out", "new.toml").exit_code == 0
    assert run("completion", "bash").exit_code == 0


def test_init_writes_what_loads() -> None:
    """As written the file sets nothing; with every setting uncommented it still loads, and says the defaults."""
    done = run("init", "--json")
    assert done.exit_code == 0, done.output
    text = Path("drivetrain.toml").read_text()
    told = json.loads(done.stdout)
    assert told["settings"] == sum(len(command.settings) for command in configurable(ROOT)) > 150
    assert all(not values for values in read_config(Path("drivetrain.toml"), configurable(ROOT)).values.values())
    whole = re.sub(r"(?m)^#(?=[a-z])", "", text)
    Path("whole.toml").write_text(whole)
    values = read_config(Path("whole.toml"), configurable(ROOT)).values
    for path, command in walk(ROOT):
        if path in values:
            assert len(values[path]) == len(options(command)), path
            for parameter in options(command):
                value = tomllib.loads(whole)
                for name in (*path, option_name(parameter)):
                    value = value[name]
                if parameter.default not in (None, []) and not callable(parameter.default):
                    assert value == getattr(parameter.default, "value", parameter.default) or value == str(
                        parameter.default
                    ), (path, parameter.name)
    assert len(values) == told["commands"]
    again = run("init")
    assert again.exit_code == 2 and "left as it is" in again.stderr
    assert Path("drivetrain.toml").read_text() == text


def test_help_texts_are_in_the_file() -> None:
    text = " ".join(line.lstrip("# ") for line in config_text(configurable(ROOT)).splitlines())
    for command in configurable(ROOT):
        for setting in command.settings.values():
            assert " ".join(setting.help.split()) in text
