"""A gateway on loopback with a scripted engine, and the official SDK as its client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI

from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import Engine
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.patience import Patience
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.server import GatewayServer
from drivetrain.gateway.sessions import Session
from drivetrain.tokens.codec import TokenCodec

BASH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "run a command",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


def bash_call(command: str) -> str:
    """Text in which the policy calls the tool."""
    arguments = msgspec.json.encode({"command": command}).decode()
    return f'Let me look.\n<tool_call>\n{{"name": "bash", "arguments": {arguments}}}\n</tool_call>'


class Rig(msgspec.Struct):
    """A running gateway and what a test needs of it."""

    gateway: Gateway
    server: GatewayServer
    port: int
    journal: Path
    clients: list[AsyncOpenAI] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def session(self, **policy: Any) -> tuple[Session, AsyncOpenAI]:
        """An open session and an SDK client that holds its key; the client never retries."""
        session, key = await self.gateway.open_session(SessionPolicy(model="policy", **policy))
        client = AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=20)
        self.clients.append(client)
        return session, client


StartRig = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def start_rig(tmp_path: Path, tiny_model: ModelDir, codec: TokenCodec) -> AsyncIterator[StartRig]:
    """Start gateways; give reply lines for a scripted engine, or an engine."""
    running: list[Rig] = []

    async def start(
        lines: Any = (), *, engine: Engine | None = None, patience: Patience | None = None, journal: Path | None = None
    ) -> Rig:
        path = journal or tmp_path / (f"journal{len(running)}.sqlite" if running else "journal.sqlite")
        used = engine or ScriptedEngine.from_lines(lines, tiny_model, then="done")
        server = GatewayServer(Gateway(used, codec, path, model="policy"), patience=patience)
        rig = Rig(server.gateway, server, -1, path)
        running.append(rig)
        rig.port = await server.listen_tcp(0)
        return rig

    yield start
    for rig in running:
        await rig.server.aclose()
        for client in rig.clients:  # one that is forgotten closes itself in the loop of a later test
            await client.close()
