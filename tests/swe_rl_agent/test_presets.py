"""Presets are data: they load, they are checked, and a bad one says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drivetrain.errors import ConfigError
from swe_rl_agent import get_agent, list_agents, load_preset
from swe_rl_agent.plan import LaunchPlan, make_plan
from swe_rl_agent.preset import PRESETS
from swe_rl_agent.template import Value, fill, merge

KEY = "dt-key-0123456789"
GOOD = """
name = "x"
bundle = "pi"
dialect = "openai_chat"
stream = true
log_reader = "pi_json"
argv = ["x", "{task}"]
stops = { stop = "completed" }
[[files]]
path = ".x/config.json"
content = { url = "{base_url}", key = "{api_key}" }
"""

DIALECTS = {
    "claude-code": "anthropic",
    "codex": "openai_responses",
    "gemini-cli": "google",
    "mini-swe-agent": "openai_chat",
    "opencode": "openai_chat",
    "pi": "openai_chat",
    "qwen-code": "openai_chat",
}


def plan(
    name: str, task: str = "fix it", *, key: str = KEY, home: str = "/home/agent", url: str = "http://g"
) -> LaunchPlan:
    return make_plan(
        get_agent(name).preset,
        bundle=f"/opt/drivetrain/agents/{name}",
        home=home,
        cwd="/work",
        task=task,
        base_url=url,
        api_key=key,
        model="m",
        context_length=8192,
        max_output_tokens=1024,
    )


def test_every_preset_file_loads_and_is_named_like_its_file() -> None:
    assert list_agents() == tuple(sorted(path.stem for path in PRESETS.glob("*.toml"))) == tuple(sorted(DIALECTS))
    for name in list_agents():
        preset = get_agent(name).preset
        assert preset.name == name and preset.dialect == DIALECTS[name] and preset.switched_off


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("openai_chat", "openai_chatt"), "Invalid enum value 'openai_chatt'"),
        (("stream = true", "steam = true"), "unknown field `steam`"),
        (("stream = true", "stream = 1"), "Expected `bool`"),
        (('"{task}"', '"{tusk}"'), "unknown placeholders: tusk"),
        (('"{task}"', '"work"'), "never uses {task}"),
        (('"{task}"', '"{task}", "--key={api_key}"'), "puts {api_key} into its argv or env"),
        ((".x/config.json", "../config.json"), "leaves HOME"),
        (("stop =", "stop ="), ""),
        (("[[files]]", "[[files]"), "is not valid"),
        (("stream =", 'stdin = "task.md"\nstream ='), "stdin task.md is no file it writes"),
        (("completed", "finished"), "Invalid enum value 'finished'"),
    ],
)
def test_a_bad_preset_says_what_is_wrong(change: tuple[str, str], complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(GOOD.replace(*change))
    if not complaint:
        assert load_preset(path).name == "x"
        return
    with pytest.raises(ConfigError, match=r"Preset x\.toml") as caught:
        load_preset(path)
    assert complaint in str(caught.value)


def test_unknown_names_are_answered_with_close_ones() -> None:
    with pytest.raises(ConfigError, match=r"Unknown agent: 'mini-swe'\. Did you mean mini-swe-agent"):
        get_agent("mini-swe")
    with pytest.raises(ConfigError, match=r"Known: claude-code, .*, qwen-code\."):
        get_agent("aider")
    with pytest.raises(ConfigError, match=r"Unknown variant of pi: 'smal'\. Did you mean small"):
        get_agent("pi", variant="smal")


@pytest.mark.parametrize("name", ["pi", "mini-swe-agent"])
def test_a_plan_keeps_the_key_in_files_of_home(name: str) -> None:
    made = plan(name)
    assert not any(KEY in text for text in [*made.argv, *made.env.values()])
    assert sum(KEY.encode() in file.data for file in made.files) == 1
    assert all(file.path.startswith("/home/agent/") for file in made.files)
    assert all(json.loads(file.data) for file in made.files)
    assert "{" not in "".join(made.argv)


@pytest.mark.parametrize("name", ["pi", "mini-swe-agent"])
def test_the_config_hash_is_about_the_configuration_only(name: str) -> None:
    first = plan(name).config_sha256
    assert first == plan(name, "other task", key="dt-other-key-9876", home="/h", url="http://elsewhere").config_sha256
    assert get_agent(name).preset.sha256 != get_agent(name, variant="small").preset.sha256


def test_numbers_stay_numbers_and_templates_of_the_harness_stay_templates() -> None:
    tree: Value = {
        "n": "{max_turns}",
        "text": "at most {max_turns}",
        "jinja": "{{task}} {% if a %}",
        "list": ["{task}"],
    }
    assert fill(tree, {"max_turns": 3, "task": "{model}"}) == {
        "n": 3,
        "text": "at most 3",
        "jinja": "{{task}} {% if a %}",
        "list": ["{model}"],
    }
    assert merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}) == {"a": {"b": 3, "c": 2}}


def test_a_task_that_looks_like_an_option_or_a_file_stays_text() -> None:
    assert plan("pi", "@answer.txt is wrong").argv[-2:] == ("--", " @answer.txt is wrong")
    assert plan("pi", "--help is wrong").argv[-2:] == ("--", "--help is wrong")
    mini = json.loads(plan("mini-swe-agent", "@a {{b}} {model}").files[0].data)
    assert mini["run"]["task"] == "@a {{b}} {model}"


@pytest.mark.parametrize("name", ["gemini-cli", "opencode", "qwen-code"])
def test_a_task_on_standard_input_is_verbatim_and_no_argument(name: str) -> None:
    task = '@a "b" {model} {{c}} --help é\n'
    made = plan(name, task)
    files = {file.path: file.data for file in made.files}
    assert files[made.stdin] == task.encode()
    assert not any("--help é" in word for word in made.argv)
    assert [path for path, data in files.items() if KEY.encode() in data] != [] and plan("pi").stdin == "/dev/null"
    assert not any(KEY in text for text in [*made.argv, *made.env.values()])


@pytest.mark.parametrize(
    "values",
    [{"key": "short"}, {"key": "dt-$HOME-0123456"}, {"key": "!touch-0123456"}, {"task": " \n"}, {"task": "a\0b"}],
)
def test_values_a_harness_would_change_are_refused(values: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        plan("pi", **values)
