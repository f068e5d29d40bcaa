"""Both surfaces of a gateway on loopback, in a thread of their own, for clients that are not asyncio's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.mcp import HostedTool, ToolOutcome
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.server import GatewayServer
from drivetrain.messages import Call, Message
from drivetrain.tokens.codec import TokenCodec

ADMIN_KEY = "a" * 40
_LINES = ("done", '<think>hm</think>Look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>')


class _Tools:
    """One tool, for a harness that asks over MCP."""

    def tools(self) -> list[HostedTool]:
        return [HostedTool("say", "Says it again.", {"type": "object"})]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        if name != "say":
            raise KeyError(name)
        return ToolOutcome(str(arguments), is_error=len(arguments) > 1)


class Service:
    """A gateway with a session of one turn, tools and a budget that has no end; ``urls`` of its surfaces."""

    def __init__(self, folder: Path, model: ModelDir, codec: TokenCodec) -> None:
        self._folder, self._model, self._codec = folder, model, codec
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.urls: dict[str, str] = {}
        self.keys = {"admin": ADMIN_KEY}
        self.session_id = ""

    def __enter__(self) -> Service:
        self._thread.start()
        self.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._server.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def run(self, step: Any) -> Any:
        """Run a coroutine on the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(step, self._loop).result(120)

    async def _open(self) -> None:
        engine = ScriptedEngine(self._model, lambda ids, _text, index: _LINES[index % len(_LINES)])
        self.gateway = Gateway(engine, self._codec, self._folder / "journal.sqlite", model="policy")
        self._server = GatewayServer(self.gateway)
        self.urls = {
            "harness": f"http://127.0.0.1:{await self._server.listen_tcp(0)}",
            "admin": f"http://127.0.0.1:{await self._server.listen_admin(0, ADMIN_KEY)}",
        }
        policy = SessionPolicy(model="policy", max_turns=10**6)
        session, self.keys["harness"] = await self.gateway.open_session(policy)
        session.tool_host = _Tools()
        self.session_id = session.id
        await self.gateway.serve(session, Call("openai_chat", "m", (Message("user", "hi"),)), b"{}")
