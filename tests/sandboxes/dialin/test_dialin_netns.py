"""A trainer that nobody can reach serves a rollout in a sandbox of another network.

Three network namespaces: the trainer's, the provider's edge, the box's. The edge has a cable to each and forwards
nothing; the trainer's own network ends at the edge, so the only way between the two is what the trainer dials.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from drivetrain.sandboxes.relay.dialin import new_secret
from swe_rl_agent import get_agent

from .kit import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

TRAINER, EDGE_A, EDGE_B, BOX = "10.91.1.2", "10.91.1.1", "10.91.2.1", "10.91.2.2"
DIAL_PORT, RELAY_PORT, OPEN_PORT = 8398, 8399, 5555
ROOT = Path(__file__).parents[3]

LINES = [
    'Let me look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "cat answer.txt"}}\n</tool_call>',
    'Edit.\n<tool_call>\n{"name": "bash", "arguments": {"command": "sed -i s/wrong/right/ answer.txt"}}\n</tool_call>',
    'Check.\n<tool_call>\n{"name": "bash", "arguments": {"command": "cat answer.txt"}}\n</tool_call>',
    "Done.",
]


async def sh(*argv: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, f"{argv}: {out.decode()}"
    return out.decode()


class Namespace:
    """A network namespace, held by a sleeping process and gone with it."""

    def __init__(self, holder: asyncio.subprocess.Process) -> None:
        self.pid = str(holder.pid)
        self.enter = ("nsenter", f"--net=/proc/{holder.pid}/ns/net")

    async def ip(self, words: str) -> str:
        return await sh(*self.enter, "ip", *words.split())


@asynccontextmanager
async def namespace() -> AsyncIterator[Namespace]:
    holder = await asyncio.create_subprocess_exec("unshare", "--net", "sleep", "600")
    try:
        own = Path("/proc/self/ns/net").readlink()
        await until(lambda: Path(f"/proc/{holder.pid}/ns/net").readlink() != own)
        made = Namespace(holder)
        await made.ip("link set lo up")
        yield made
    finally:
        holder.kill()
        await holder.wait()


class Party:
    """A role of :mod:`.roles` running in a namespace."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        await self.process.stdin.drain()

    async def hear(self, timeout_s: float = 120) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), timeout_s)
        assert line, "it ended early"
        said: dict[str, Any] = json.loads(line)
        return said


@asynccontextmanager
async def party(where: Namespace, role: str, **given: Any) -> AsyncIterator[Party]:
    process = await asyncio.create_subprocess_exec(
        *where.enter,
        *(sys.executable, "-m", "tests.sandboxes.dialin.roles", role),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    made = Party(process)
    try:
        await made.tell(json.dumps(given))
        yield made
    finally:
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 15)
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def networks() -> AsyncIterator[tuple[Namespace, Namespace, Namespace]]:
    """Trainer, edge, box; cables from the edge to both, nothing forwarded."""
    async with namespace() as trainer, namespace() as edge, namespace() as box:
        await edge.ip(f"link add toward-a type veth peer name wire netns {trainer.pid}")
        await edge.ip(f"link add toward-b type veth peer name wire netns {box.pid}")
        for where, device, address in (
            (trainer, "wire", TRAINER),
            (edge, "toward-a", EDGE_A),
            (edge, "toward-b", EDGE_B),
            (box, "wire", BOX),
        ):
            await where.ip(f"addr add {address}/30 dev {device}")
            await where.ip(f"link set {device} up")
        await sh(*edge.enter, "sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward")
        await box.ip(f"route add default via {EDGE_B}")  # the box may go anywhere the provider goes
        yield trainer, edge, box


async def ask(where: Namespace, host: str, first: int, last: int) -> dict[str, int]:
    async with party(where, "probe", host=host, first=first, last=last) as probe:
        return await probe.hear()


@pytest.fixture
def private() -> Any:
    """Root with the tools, or a skip that says what is missing."""
    if os.geteuid() != 0:
        pytest.skip("making network namespaces needs root")
    missing = [tool for tool in ("ip", "nsenter", "unshare", "bwrap") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    folder = Path(tempfile.mkdtemp(prefix="dt-"))
    yield folder
    shutil.rmtree(folder)


async def test_a_rollout_for_a_trainer_without_an_inbound_route(private: Path) -> None:
    await asyncio.to_thread(get_agent("pi").prepare)  # in the box's network nothing can be fetched
    secret = new_secret()
    async with AsyncExitStack() as stack:
        trainer_net, edge_net, box_net = await stack.enter_async_context(networks())
        ports = {"dial_port": DIAL_PORT, "relay_port": RELAY_PORT}
        box = await stack.enter_async_context(party(box_net, "box", secret=secret, **ports))
        edge = await stack.enter_async_context(party(edge_net, "edge", box=BOX, dial_port=DIAL_PORT))
        assert await box.hear() == {"ready": True}
        assert await edge.hear() == {"ready": True}
        trainer = await stack.enter_async_context(
            party(
                trainer_net,
                "trainer",
                url=f"http://{EDGE_A}:{DIAL_PORT}",
                secret=secret,
                folder=str(private),
                lines=LINES,
                delay_s=0.5,
                open_port=OPEN_PORT,
            )
        )
        key = (await trainer.hear())["key"]

        # The trainer has an open port, the edge reaches it, the box does not; nor does the trainer reach the box.
        assert await ask(edge_net, TRAINER, OPEN_PORT, OPEN_PORT) == {"connected": 1}
        assert "connected" not in await ask(box_net, TRAINER, OPEN_PORT, OPEN_PORT)
        assert await ask(trainer_net, BOX, DIAL_PORT, DIAL_PORT) == {"ENETUNREACH": 1}
        await box_net.ip("route del default")  # so that no port takes a second to fail
        assert await ask(box_net, TRAINER, 1, 65535) == {"ENETUNREACH": 65535}
        await box_net.ip(f"route add default via {EDGE_B}")

        await box.tell(key)
        for call in range(len(LINES)):
            assert await trainer.hear() == {"call": call}
            if call == 1:  # the proxy is restarted in the middle of the call
                await edge.tell("cut")
                assert await edge.hear() == {"cut": True}
            if call == 2:  # the cable is out for longer than a silent link lives
                await trainer_net.ip("link set wire down")
                await asyncio.sleep(2.5)
                await trainer_net.ip("link set wire up")
        done = await box.hear()
        assert (done["stop"], done["answer"]) == ("completed", "right\n"), done
        await trainer.tell("seal")
        report = await trainer.hear()
        assert report["turns"] == report["calls"] == len(LINES), report
        assert report["exact"] == [True] * (len(LINES) - 1)
        assert (report["forks"], report["delivered"]) == ([], [True] * len(LINES))
        assert (report["links"], report["resumed"], report["aborted"]) == (3, 2, 0), report
