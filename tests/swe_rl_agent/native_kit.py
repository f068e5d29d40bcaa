"""What the tests of Claude Code and Codex share: the bench, plus what the sandbox's kernel says about its network."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import Engine, EngineError
from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply
from drivetrain.errors import InfrastructureError, MissingDependency
from drivetrain.sandboxes.protocol import SandboxHandle
from drivetrain.tokens.codec import TokenCodec
from swe_rl_agent import CLIHarness, HarnessOutcome, get_agent
from swe_rl_agent.preset import Patience

from .conftest import Boxes
from .gateway_kit import Bench, Done, Line, Seen

BUSY = ScriptedReply(error=EngineError("no room", retryable=True))
SECRETS = "env; cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'"
"""What a shell command of the agent can see of environment and command lines."""


class NetBench(Bench):
    """Remembers the network counters of each run's sandbox, which has a network namespace of its own."""

    network: dict[str, int]
    context = 200_000

    def _engine(self, lines: Sequence[Line] | Callable[[list[int], str, int], Line]) -> Engine:
        if callable(lines):
            return ScriptedEngine(self.tiny, lines, context_length=self.context)
        return ScriptedEngine.from_lines(lines, self.tiny, then="All done.", context_length=self.context)

    async def _agent(
        self, box: SandboxHandle, task: str, key: str, deadline_s: float, max_output_tokens: int, tools: bool
    ) -> HarnessOutcome:
        await box.write(f"{box.workdir}/check.sh", b"grep -q right answer.txt && echo good\n")
        outcome = await super()._agent(box, task, key, deadline_s, max_output_tokens, tools)
        self.network = await counters(box)
        return outcome


async def counters(box: SandboxHandle) -> dict[str, int]:
    """``Tcp.ActiveOpens`` and the like, of the sandbox's network namespace."""
    lines = (await box.exec(["cat", "/proc/net/snmp", "/proc/net/snmp6"])).stdout.decode().splitlines()
    pairs = [line.split() for line in lines]
    found = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
    for names, values in itertools.pairwise(pairs):
        if len(names) > 2 and names[0] == values[0] and not names[1].lstrip("-").isdigit():
            kind = names[0].rstrip(":")
            found |= {f"{kind}.{name}": int(value) for name, value in zip(names[1:], values[1:], strict=True)}
    return found


def attempts_elsewhere(network: dict[str, int]) -> dict[str, int]:
    """Connection attempts that did not end at the gateway's relay inside; empty = none.

    There is no route out: an attempt counts as OutNoRoutes before it becomes a packet. Look-ups of names are UDP.
    """
    names = ("Ip.OutNoRoutes", "Ip6OutNoRoutes", "Ip6OutRequests", "Udp.OutDatagrams", "Tcp.AttemptFails")
    found = {name: network[name] for name in names if network[name]}
    if network["Tcp.ActiveOpens"] != network["Tcp.PassiveOpens"]:
        found["Tcp.ActiveOpens"] = network["Tcp.ActiveOpens"]
    return found


def make_bench(
    name: str,
    variant: str | None,
    boxes: Boxes,
    folder: Path,
    tiny: ModelDir,
    codec: TokenCodec,
    kind: type[NetBench] = NetBench,
) -> NetBench:
    """A bench of one agent; skips where its bundle can be neither found nor built."""
    agent = get_agent(name, variant=variant)
    try:
        agent.prepare()
    except (InfrastructureError, MissingDependency) as error:
        pytest.skip(f"the bundle of {name} cannot be built here: {error}")
    return kind(tiny, codec, boxes, folder, agent)


def impatient(agent: CLIHarness) -> CLIHarness:
    """The agent whose calls get keep-alives, in the preset's form, after 0.2 s."""
    form = agent.preset.patience.form if agent.preset.patience else "default"
    patience = Patience(grace_s=0.2, every_s=0.2, form=form)
    return CLIHarness(msgspec.structs.replace(agent.preset, patience=patience), agent.bundle)


def tool_names(seen: Seen) -> list[str]:
    """Names of a request's tools (Messages or Responses)."""
    return [tool.get("name") or tool["type"] for tool in seen.body["tools"]]


def statuses(done: Done) -> list[int]:
    """What each request got, in order; 0 = the reply was lost."""
    return [seen.status for seen in done.relay.seen]


def said(seen: Seen, field: str) -> str:
    """A part of a request as text."""
    return json.dumps(seen.body[field], ensure_ascii=False)


def tool_results(done: Done) -> str:
    """Everything the agent's tools returned, as the policy read it."""
    return "\n".join(
        message.content for turn in done.session.graph for message in turn.messages if message.role == "tool"
    )


def of_engine(done: Done) -> list[Any]:
    """Engine calls that were answered."""
    return [call for call in done.engine.calls if call.outcome != "error"]
