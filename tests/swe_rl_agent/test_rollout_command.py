"""``drivetrain rollout --agent ... --sandbox docker``, the command of docs/agents.md: every agent solves a task.

Only the engine is scripted. The command line, the agents, their containers, the gateway and the grading are real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from drivetrain.cli.main import app
from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from swe_rl_agent import list_agents
from swe_rl_env.building.build import build_task
from swe_rl_env.tasks.catalog import get_task
from tests.conformance.sandbox.kits.docker import BASE_IMAGE, DockerKit

from .agents_kit import WAYS
from .gateway_kit import CONTEXT

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

TASK = "pypi__xmltodict-0.14.2"
SIGNS = {
    "claude-code": '"name": "NotebookEdit"',
    "codex": '"name": "exec_command"',
    "gemini-cli": '"name": "invoke_agent"',
    "mini-swe-agent": "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
    "opencode": '"name": "todowrite"',
    "qwen-code": '"name": "run_shell_command"',
    "pi": '"name": "bash"',
}
"""What only the prompt of that agent holds, looked for in this order."""


@pytest.fixture(scope="module")
def docker() -> Iterator[DockerKit]:
    kit = DockerKit()
    if why := kit.missing():
        pytest.skip(why)
    kit.start()
    yield kit
    kit.close()


def solve(_ids: list[int], text: str, index: int) -> str:
    """Apply the reference fix, then end the way the agent's policy ends."""
    way = WAYS[next(name for name, sign in SIGNS.items() if sign in text)]
    fix = build_task(get_task(TASK)).gold_patch.decode()
    command = f"cat > ../fix.patch <<'END'\n{fix}END\ngit apply ../fix.patch && echo applied"
    return way.shell(command) if index == 0 else way.last


@pytest.mark.agent_claim("rollout command", agents=list_agents())
def test_every_agent_solves_a_task_in_containers(
    docker: DockerKit, tiny_model: ModelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scripted(*_: Any, **__: Any) -> ScriptedEngine:
        return ScriptedEngine(tiny_model, solve, context_length=CONTEXT)

    monkeypatch.setattr("drivetrain.rollout.stack.open_engine", scripted)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{docker.socket}")
    agents = [word for name in list_agents() for word in ("--agent", name)]
    where = ["--sandbox", "docker", "--image", BASE_IMAGE, "--task", TASK]
    how = ["--model", str(tiny_model.path), "--max-tokens", "8000", "--deadline", "400", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, ["rollout", *agents, *where, *how, "--json"])
    assert done.exit_code == 0, done.output
    results = {result["agent"]: result for result in json.loads(done.stdout)["results"]}
    assert set(results) == set(list_agents())
    for result in results.values():
        assert (result["status"], result["reward"], result["turns"], result["rows"]) == ("ok", 1.0, 2, 1), result
        assert (result["harness"]["stop"], result["fork_reasons"], result["log_findings"]) == ("completed", {}, [])
