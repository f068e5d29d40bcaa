"""``trace why-forked`` and ``trace stats`` on a small run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from drivetrain.cli.trace import app
from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.errors import ConfigError
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.messages import Call, Message, ToolSpec
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.selection import Selection
from drivetrain.tokens.codec import TokenCodec


@pytest.fixture
async def run(tmp_path: Path, codec: TokenCodec, tiny_model: ModelDir) -> RunDir:
    """Two rollouts: one with a title call and a system text that changes, one that is linear."""
    folder = RunDir.create(tmp_path / "run")
    folder.write_info({"model": {"name": "tiny", "path": str(tiny_model.path)}, "selection": Selection()})
    gateway = Gateway(ScriptedEngine.from_lines(["one", "two", "three"], tiny_model), codec, folder.journal, model="m")
    tools = (ToolSpec("bash"),)
    for name, systems in (("t.a.0", ["be brief", "be quick"]), ("t.a.1", ["be brief", "be brief"])):
        session, _ = await gateway.open_session(SessionPolicy(model="m"), labels={"rollout": name, "agent": "a"})
        if name == "t.a.0":
            title = Call("test", "m", (Message("user", "title, please"),))
            await gateway.delivered(session, await gateway.serve(session, title, b"title"))
        history: list[Message] = [Message("user", "fix the bug")]
        for text in systems:
            call = Call("test", "m", (Message("system", text), *history), tools)
            served = await gateway.serve(session, call, repr(call).encode())
            await gateway.delivered(session, served)
            history += [Message("assistant", served.reply.content), Message("user", "go on")]
    await gateway.aclose()
    return folder


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


async def test_why_forked(run: RunDir, capfd: pytest.CaptureFixture[str]) -> None:
    found = json.loads(invoke("why-forked", str(run.path), "--json"))
    assert {name: [fork["reason"] for fork in forks] for name, forks in found.items()} == {
        "t.a.0": ["tools_changed", "system_changed"],
        "t.a.1": [],
    }
    changed = found["t.a.0"][1]
    assert (changed["message"], changed["nearest"], changed["drift"]) == (0, 1, "hard")
    assert "-be brief" in changed["message_diff"] and "+be quick" in changed["message_diff"]
    assert "".join(changed["tokens_now"]).startswith(("quick", " quick", "qu"))
    text = invoke("why-forked", str(run.path), "t.a.0") + capfd.readouterr().out
    assert "system_changed, hard drift" in text and "+be quick" in text and "before: " in text
    with pytest.raises(ConfigError, match="no rollout begins with"):
        invoke("why-forked", str(run.path), "nope")


async def test_stats(run: RunDir, capfd: pytest.CaptureFixture[str]) -> None:
    found = json.loads(invoke("stats", str(run.path), "--json"))
    forked, linear = found["rollouts"]["t.a.0"], found["rollouts"]["t.a.1"]
    assert forked["labels"] == {"title": 1, "agent": 2}
    assert (forked["rows"], forked["prefix_match_rate"], forked["hard_drift"]) == (2, 0.0, 1)
    assert (linear["rows"], linear["prefix_match_rate"], linear["duplicated_tokens"]) == (1, 1.0, 0)
    assert found["total"]["rows_per_rollout"] == 1.5
    assert found["total"]["prefix_match_rate"] == 0.5
    assert set(forked["masked_fraction"]) == {"label:title"}
    text = invoke("stats", str(run.path)) + capfd.readouterr().out
    assert "1.50 rows per rollout" in text


async def test_show_names_the_label_and_its_reason(run: RunDir, capfd: pytest.CaptureFixture[str]) -> None:
    text = invoke("show", str(run.path), "t.a.0") + capfd.readouterr().out
    assert "title" in text and "without tools" in " ".join(text.split())
