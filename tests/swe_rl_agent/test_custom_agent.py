"""A custom agent is a preset of a few lines: the examples of docs/agents.md run as they stand there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.errors import ConfigError
from drivetrain.rollout.config import RolloutConfig, episodes_of
from drivetrain.tokens.codec import TokenCodec
from swe_rl_agent import CLIHarness, check_preset, get_agent

from .conftest import Boxes
from .gateway_kit import tool_call
from .native_kit import NetBench, attempts_elsewhere

DOCS = Path(__file__).parents[2] / "docs" / "agents.md"


def example(kind: str) -> str:
    """The block of the page that is marked as an example of that kind."""
    found = re.search(rf"<!-- example: {kind} -->\n+```\w+\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    assert found, kind
    return found[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The preset and its program, in a folder each."""
    (tmp_path / "my-agent").mkdir()
    (tmp_path / "my-agent" / "agent.py").write_text(example("program"))
    (tmp_path / "my.toml").write_text(example("preset"))
    return tmp_path


@pytest.mark.real
async def test_the_example_works_from_a_folder(
    folder: Path, sandbox_for: Boxes, socket_path: Path, tiny_model: ModelDir, codec: TokenCodec
) -> None:
    assert len([line for line in example("preset").splitlines() if line.strip()]) <= 20
    agent = get_agent(str(folder / "my.toml"))
    bundle = agent.prepare()
    assert (bundle.name, bundle.files, bundle.path) == ("my-agent", 1, folder / "my-agent")
    bench = NetBench(tiny_model, codec, sandbox_for, socket_path.parent, agent)
    lines = [tool_call("bash", command="sed -i s/wrong/right/ answer.txt"), "It is done."]
    done = await bench.run(lines)
    assert (done.outcome.stop, done.outcome.word) == ("completed", "exit 0"), done.summary()
    assert done.files["answer.txt"] == b"right\n"
    done.assert_one_exact_chain(2)
    assert attempts_elsewhere(bench.network) == {}
    assert done.outcome.versions["bundle_sha256"] == bundle.sha256
    failed = await bench.run([], key="dt-agent-wrong-0123456789")
    assert (failed.outcome.stop, failed.outcome.word) == ("model_error", "exit 1"), failed.summary()
    assert "401" in failed.outcome.detail


@pytest.mark.real
async def test_the_python_form_runs_a_program_of_the_image(
    sandbox_for: Boxes, socket_path: Path, tiny_model: ModelDir, codec: TokenCodec
) -> None:
    if not Path("/usr/bin/curl").exists():
        pytest.skip("there is no curl in the local sandbox")
    names: dict[str, CLIHarness] = {}
    exec(example("python"), names)
    agent = names["agent"]
    agent.prepare()
    assert agent.mounts() == ()
    done = await NetBench(tiny_model, codec, sandbox_for, socket_path.parent, agent).run(["I would not know."])
    assert done.outcome.stop == "completed", done.summary()
    done.assert_one_exact_chain(1)
    assert b"I would not know." in done.outcome.stdout_tail


def test_the_preset_is_about_the_folder_not_where_it_lies(folder: Path, tmp_path: Path) -> None:
    first = get_agent(str(folder / "my.toml"))
    other = tmp_path / "other"
    other.mkdir()
    shutil.copytree(folder / "my-agent", other / "my-agent")
    shutil.copy(folder / "my.toml", other)
    moved = get_agent(str(other / "my.toml"))
    assert moved.preset.sha256 == first.preset.sha256 and moved.preset.bundle != first.preset.bundle
    before = first.prepare().sha256
    (other / "my-agent" / "agent.py").write_text("pass\n")
    assert moved.prepare().sha256 != before


def test_rollouts_name_it_as_its_preset_does(folder: Path) -> None:
    config = RolloutConfig(tasks=("t",), agents=(str(folder / "my.toml"), "pi"))
    assert [spec.rollout_id for spec in episodes_of(config)] == ["t.my-agent.0", "t.pi.0"]
    twice = RolloutConfig(tasks=("t",), agents=(str(folder / "my.toml"),) * 2)
    with pytest.raises(ConfigError, match="two agents are called 'my-agent'"):
        episodes_of(twice)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (('bundle = "./my-agent"', 'bundle = ""'), "uses {bundle} and names none"),
        (('name = "my-agent"', 'name = "a/b"'), "has the name 'a/b'"),
    ],
)
def test_what_is_wrong_is_said(change: tuple[str, str], complaint: str, folder: Path) -> None:
    text = (folder / "my.toml").read_text()
    assert change[0] in text
    (folder / "my.toml").write_text(text.replace(*change))
    with pytest.raises(ConfigError, match=r"Preset my\.toml") as caught:
        get_agent(str(folder / "my.toml"))
    assert complaint in str(caught.value)


def test_a_folder_that_is_not_there_is_named(folder: Path) -> None:
    shutil.rmtree(folder / "my-agent")
    with pytest.raises(ConfigError, match=r"my-agent, .*/my-agent, is no folder"):
        get_agent(str(folder / "my.toml")).prepare()
    with pytest.raises(ConfigError, match=r"none\.toml is not valid"):
        get_agent(str(folder / "none.toml"))
    names: dict[str, CLIHarness] = {}
    exec(example("python"), names)
    check_preset(names["agent"].preset)
