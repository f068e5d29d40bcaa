"""swe_rl_agent: agent harnesses as pinned bundles and presets, run unmodified.

agent = get_agent("pi")
agent.prepare()                       # builds or finds the bundle
spec = SandboxSpec(mounts=agent.mounts(), network="gateway", gateway_socket=...)
outcome = await agent.run(sandbox, task=..., base_url=sandbox.gateway_url(), ...)
"""

from __future__ import annotations

from swe_rl_agent.bundle import Bundle, build_bundle
from swe_rl_agent.harness import CLIHarness, HarnessOutcome
from swe_rl_agent.preset import Preset, StopReason, check_preset, load_preset
from swe_rl_agent.registry import get_agent, list_agents

__all__ = [
    "Bundle",
    "CLIHarness",
    "HarnessOutcome",
    "Preset",
    "StopReason",
    "build_bundle",
    "check_preset",
    "get_agent",
    "list_agents",
    "load_preset",
]
