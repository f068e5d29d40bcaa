"""A real agent against the real gateway: scripted engine, local sandbox, and a relay between them that counts requests
and can lose replies."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
from aiohttp import web

from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import Engine
from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.mcp import PATH as MCP
from drivetrain.gateway.mcp import ToolHost
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.server import GatewayServer
from drivetrain.gateway.sessions import Session
from drivetrain.gateway.turn import STOPPING
from drivetrain.rollout.cross_check import cross_check
from drivetrain.rollout.patience import patience_of
from drivetrain.rollout.selection import Selection
from drivetrain.sandboxes import SandboxHandle
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.sample import HarnessTrace
from swe_rl_agent import CLIHarness, HarnessOutcome
from swe_rl_agent.plan import ToolsEndpoint

from .conftest import Boxes

MODEL = "policy"
TASK = "Replace wrong by right in answer.txt, then check it."
CONTEXT = 400_000
"""Tokens; the tiny tokenizer makes several of every word."""

Line = str | ScriptedReply
_HOP = {"host", "content-length", "transfer-encoding", "connection", "keep-alive"}


def tool_names(body: dict[str, Any]) -> list[str]:
    """Names of a request's tools, in any dialect; tools of a namespace (Responses) under its name and theirs."""
    names: list[str] = []
    for tool in body.get("tools", ()):
        if "functionDeclarations" in tool:
            names += [one["name"] for one in tool["functionDeclarations"]]
        elif "function" in tool:
            names.append(tool["function"]["name"])
        elif tool.get("type") == "namespace":
            names += [f"{tool['name']}/{one['name']}" for one in tool["tools"]]
        elif "name" in tool:
            names.append(tool["name"])
    return names


def tool_call(name: str, **arguments: Any) -> str:
    """Text in which the policy calls one tool."""
    body = msgspec.json.encode({"name": name, "arguments": arguments}).decode()
    return f"I will run this.\n<tool_call>\n{body}\n</tool_call>"


@dataclass
class Seen:
    """A request as the agent sent it, and the status it got (0: the reply was lost)."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float = 0.0
    status: int = 0


@dataclass
class Relay:
    """Passes requests on; the replies to requests whose number (from 1) is in ``lose`` are read and thrown away."""

    upstream: Path
    socket: Path
    lose: frozenset[int] = frozenset()
    seen: list[Seen] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        seen = Seen(request.path, dict(request.headers), json.loads(raw) if raw else {}, time.monotonic())
        self.seen.append(seen)
        lost = len(self.seen) in self.lose
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        connector = aiohttp.UnixConnector(str(self.upstream))
        async with (
            aiohttp.ClientSession(connector=connector) as client,
            client.request(request.method, f"http://gw{request.path_qs}", headers=headers, data=raw) as reply,
        ):
            body = await reply.read()
        if lost:
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)
        seen.status = reply.status
        kept = {name: value for name, value in reply.headers.items() if name.lower() not in _HOP}
        return web.Response(status=reply.status, headers=kept, body=body)

    def tools(self) -> set[str]:
        """Names of the tools of the first request."""
        body = self.seen[0].body
        return set(tool_names(body))


@dataclass
class Done:
    """A finished run and what was recorded of it."""

    agent: CLIHarness
    outcome: HarnessOutcome
    started: float
    session: Session
    engine: Any
    relay: Relay
    files: dict[str, bytes]

    @property
    def rows(self) -> list[HarnessTrace]:
        """Training rows, under the preset's own label rules."""
        return self._selection.rows(self.session.graph, self.agent.name, reward=1.0, session_id=self.session.id)

    @property
    def labels(self) -> list[str]:
        """Label of every turn, in order."""
        found = self._selection.labels(self.session.graph, self.agent.name)
        return [found[turn.id].label for turn in self.session.graph]

    @property
    def findings(self) -> list[Any]:
        """What an audit of the rows says; empty when all is well."""
        return list(self._selection.check(self.session.graph, self.agent.name, self.rows))

    @property
    def forks(self) -> list[str]:
        """Why turns forked."""
        return [str(turn.fork_reason) for turn in self.session.graph if turn.fork_reason]

    @property
    def _selection(self) -> Selection:
        return Selection.of(("agent", "subagent"), {self.agent.name: self.agent.preset.labels})

    def assert_one_exact_chain(self, turns: int) -> None:
        """Every prompt starts with the previous prompt and its sampled ids; one row trains each sampled id once."""
        graph = self.session.graph
        assert len(graph) == turns, self.summary()
        assert self.labels == ["agent"] * turns
        assert self.forks == []
        recorded = list(graph)
        for earlier, later in itertools.pairwise(recorded):
            stored = graph.ids_through(earlier)
            assert later.parent == earlier.id, self.summary()
            assert np.array_equal(graph.ids_through(later)[: len(stored)], stored)
        sampled = {request.request_id: request for request in self.engine.calls if request.outcome != "error"}
        assert len(sampled) == turns, self.summary()
        assert len(self.rows) == 1
        assert sum(self.rows[0].loss_mask) == sum(len(turn.sampled_ids) for turn in recorded)
        assert self.findings == []
        assert self.outcome.stop != "completed" or self.outcome.work.complete
        assert self.differences == []

    @property
    def differences(self) -> list[Any]:
        """Between the agent's own log and what was recorded."""
        labels = self._selection.labels(self.session.graph, self.agent.name)
        return cross_check(self.session.graph, labels, self.outcome.work, served_besides=(STOPPING,))

    def summary(self) -> str:
        """For a failing test: how it ended and what was asked."""
        turns = [
            (turn.id, turn.parent, turn.link, turn.fork_reason, turn.fork_detail, turn.soft_mismatches)
            for turn in self.session.graph
        ]
        asked = [(seen.path, seen.status, round(seen.at - self.started, 1)) for seen in self.relay.seen]
        log = self.outcome.stdout_tail[-1500:].decode(errors="replace") + self.outcome.stderr_tail[-1500:].decode()
        return f"{self.outcome.stop} {self.outcome.word} {self.outcome.detail}\n{turns}\n{asked}\n{log}"


@dataclass
class Bench:
    """Makes runs. ``start`` is called with the session and its key before the agent starts."""

    tiny: ModelDir
    codec: TokenCodec
    boxes: Boxes
    folder: Path
    agent: CLIHarness

    async def run(
        self,
        lines: Sequence[Line] | Callable[[list[int], str, int], Line],
        *,
        task: str = TASK,
        lose: frozenset[int] = frozenset(),
        key: str = "",
        sealed: bool = False,
        max_output_tokens: int = 2000,
        max_turns: int = 100,
        deadline_s: float = 200.0,
        tool_host: ToolHost | None = None,
    ) -> Done:
        """One run in a fresh sandbox. ``key``: what the agent gets instead of the session's own."""
        engine = self._engine(lines)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(engine.aclose)
            await engine.start()
            gateway = Gateway(engine, self.codec, self.folder / "journal.sqlite", model=MODEL)
            server = GatewayServer(gateway)
            stack.push_async_callback(server.aclose)
            await server.listen_unix(self.folder / "up.sock")
            relay = await stack.enter_async_context(_relay(self.folder, lose))
            session, own = await gateway.open_session(
                SessionPolicy(
                    model=MODEL,
                    max_turns=max_turns,
                    max_tokens_per_turn=max_output_tokens,
                    patience=patience_of(self.agent.preset),
                )
            )
            session.tool_host = tool_host
            if sealed:
                await gateway.seal_session(session.id)
            box = await stack.enter_async_context(self.boxes(self.agent, relay.socket))
            started = time.monotonic()
            outcome = await self._agent(box, task, key or own, deadline_s, max_output_tokens, tool_host is not None)
            files = {"answer.txt": await box.read(f"{box.workdir}/answer.txt")}
            await gateway.seal_session(session.id)
        for text in (outcome.stdout_tail, outcome.stderr_tail, outcome.detail.encode(), *outcome.files.values()):
            assert own.encode() not in text
        return Done(self.agent, outcome, started, session, engine, relay, files)

    def _engine(self, lines: Sequence[Line] | Callable[[list[int], str, int], Line]) -> Engine:
        if callable(lines):
            return ScriptedEngine(self.tiny, lines, context_length=CONTEXT)
        return ScriptedEngine.from_lines(lines, self.tiny, then="All done.", context_length=CONTEXT)

    async def _agent(
        self, box: SandboxHandle, task: str, key: str, deadline_s: float, max_output_tokens: int, tools: bool
    ) -> HarnessOutcome:
        await box.write(f"{box.workdir}/answer.txt", b"wrong\n")
        return await self.agent.run(
            box,
            task=task,
            base_url=box.gateway_url(),
            api_key=key,
            model=MODEL,
            context_length=CONTEXT,
            cwd=box.workdir,
            deadline_s=deadline_s,
            max_output_tokens=max_output_tokens,
            tools=ToolsEndpoint(f"{box.gateway_url()}{MCP}", key) if tools else None,
        )


@asynccontextmanager
async def _relay(folder: Path, lose: frozenset[int]) -> AsyncIterator[Relay]:
    (folder / "relay").mkdir(exist_ok=True)  # a folder of its own: the sandbox sees it
    relay = Relay(folder / "up.sock", folder / "relay" / "gw.sock", lose)
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{tail:.*}", relay.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(relay.socket)).start()
    try:
        yield relay
    finally:
        await runner.cleanup()
