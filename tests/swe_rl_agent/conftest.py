"""Fixtures: real agents in real local sandboxes, a scripted model behind the sandbox's only way out."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from drivetrain.sandboxes import SandboxHandle, SandboxSpec, get_backend
from swe_rl_agent import CLIHarness, HarnessOutcome, get_agent

from .chat_server import KEY, MODEL, ChatServer


class Agents(Protocol):
    def __call__(self, name: str, variant: str | None = None) -> CLIHarness: ...


class Boxes(Protocol):
    def __call__(self, agent: CLIHarness, socket: Path) -> AbstractAsyncContextManager[SandboxHandle]: ...


@pytest.fixture
def agent_of() -> Agents:
    """An agent with its bundle built or found in the cache."""

    def get(name: str, variant: str | None = None) -> CLIHarness:
        agent = get_agent(name, variant=variant)
        agent.prepare()
        return agent

    return get


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """A short path: Unix socket names end at 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="dt-"))
    yield folder / "gw.sock"
    shutil.rmtree(folder)


@pytest.fixture
async def sandbox_for() -> AsyncIterator[Boxes]:
    """A local sandbox with the agent mounted and no network but the socket."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    backend = get_backend("local")

    @asynccontextmanager
    async def make(agent: CLIHarness, socket: Path) -> AsyncIterator[SandboxHandle]:
        spec = SandboxSpec(mounts=agent.mounts(), network="gateway", gateway_socket=socket)
        sandbox = await backend.create(spec)
        try:
            yield sandbox
        finally:
            await sandbox.close()

    yield make
    await backend.aclose()


async def run(agent: CLIHarness, sandbox: SandboxHandle, *, deadline_s: float = 240.0) -> HarnessOutcome:
    """Run the standard task with SmolLM2's sizes."""
    return await agent.run(
        sandbox,
        task="Replace wrong by right in answer.txt.",
        base_url=sandbox.gateway_url(),
        api_key=KEY,
        model=MODEL,
        context_length=8192,
        cwd=sandbox.workdir,
        deadline_s=deadline_s,
        max_output_tokens=512,
    )


def key_is_nowhere(outcome: HarnessOutcome) -> bool:
    """True when no returned byte holds the key."""
    texts = [outcome.detail.encode(), outcome.stdout_tail, outcome.stderr_tail, *outcome.files.values()]
    return not any(KEY.encode() in text for text in texts)


__all__ = ["KEY", "ChatServer", "key_is_nowhere", "run"]
