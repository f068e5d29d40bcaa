"""Tools of an environment reach every harness that speaks MCP, and what they answer comes back to the policy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.errors import ConfigError
from drivetrain.gateway.mcp import HostedTool, ToolOutcome
from drivetrain.tokens.codec import TokenCodec
from swe_rl_agent import get_agent, list_agents

from .conftest import Boxes
from .gateway_kit import Bench, tool_call, tool_names

NAMES = {
    "claude-code": "mcp__environment__open_vault",
    "codex": "mcp__environment__open_vault",
    "gemini-cli": "mcp_environment_open_vault",
    "opencode": "environment_open_vault",
    "qwen-code": "mcp__environment__open_vault",
}
"""What each harness calls the tool ``open_vault`` of the server ``environment``."""

SPEAKERS = [name for name in list_agents() if get_agent(name).preset.tools is not None]


class Vault:
    """One tool, whose answer no harness could know."""

    def __init__(self) -> None:
        self.calls: list[Mapping[str, Any]] = []

    def tools(self) -> Sequence[HostedTool]:
        schema = {"type": "object", "properties": {"door": {"type": "string"}}, "required": ["door"]}
        return [HostedTool("open_vault", "Opens a door of the vault and tells its secret.", schema)]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        if name != "open_vault":
            raise KeyError(name)
        self.calls.append(arguments)
        return ToolOutcome("behind it: violet-4711")


@pytest.mark.real
@pytest.mark.agent_claim("tools over MCP")
@pytest.mark.parametrize("name", SPEAKERS)
async def test_the_policy_calls_a_tool_of_the_environment(
    name: str, sandbox_for: Boxes, socket_path: Path, tiny_model: ModelDir, codec: TokenCodec
) -> None:
    agent = get_agent(name)
    agent.prepare()
    vault = Vault()
    done = await Bench(tiny_model, codec, sandbox_for, socket_path.parent, agent).run(
        [tool_call(NAMES[name], door="north"), "All done."], tool_host=vault
    )
    assert done.outcome.stop == "completed", done.summary()
    asked = tool_names(done.relay.seen[-1].body)
    assert sum("open_vault" in each for each in asked) == 1, f"the policy must see the tool: {asked}"
    assert vault.calls == [{"door": "north"}], done.summary()
    assert "violet-4711" in json.dumps(done.relay.seen[-1].body)
    done.assert_one_exact_chain(2)
    assert {seen.path for seen in done.relay.seen} >= {"/mcp"}


@pytest.mark.parametrize("name", sorted(set(list_agents()) - set(SPEAKERS)))
def test_an_agent_without_mcp_is_refused_tools(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} speaks no MCP"):
        get_agent(name).preset.with_tools(True)
