"""The parties of the namespace test, each a process in a network of its own: ``python -m ... ROLE``.

They get one line of JSON on stdin first, then commands, one a line; they answer with lines of JSON on stdout.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import socket
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply
from drivetrain.engines.tiny import build_tiny_model
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.model import load_codec
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.server import GatewayServer
from drivetrain.sandboxes import Reach, SandboxSpec, get_backend
from drivetrain.sandboxes.relay.dialin import DialIn, DialInOptions, inside_argv, inside_script
from swe_rl_agent import get_agent

from .kit import Proxy

MODEL = "policy"
CONTEXT = 400_000
SCRIPT, SECRET = "/work/.relay/dialin.pyz", "/work/.relay/secret"


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def commands() -> asyncio.StreamReader:
    """Stdin, line by line."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def trainer(given: dict[str, Any], stdin: asyncio.StreamReader) -> None:
    """Gateway, scripted engine, DialIn. Says ``key``, then ``call`` at each call; ``seal`` asks for the report."""
    folder = Path(given["folder"])
    tiny = build_tiny_model(folder / "tiny", context=CONTEXT)

    def script(_ids: list[int], _text: str, index: int) -> ScriptedReply:
        say(call=index)
        return ScriptedReply(text=given["lines"][index], delay_s=given["delay_s"])

    engine = ScriptedEngine(tiny, script, context_length=CONTEXT)
    gateway = Gateway(engine, load_codec(tiny), folder / "journal.sqlite", model=MODEL)
    server = GatewayServer(gateway)
    await server.listen_unix(folder / "gw.sock")
    session, key = await gateway.open_session(SessionPolicy(model=MODEL))
    options = DialInOptions(ping_s=0.3, dead_s=1.5, backoff_s=0.05, backoff_max_s=0.5)
    try:
        async with DialIn(Reach(given["url"]), given["secret"], folder / "gw.sock", options=options) as dial:
            open_port = await asyncio.start_server(lambda _r, writer: writer.close(), "0.0.0.0", given["open_port"])
            say(key=key)
            await stdin.readline()
            await gateway.seal_session(session.id)
            graph, stats = session.graph, dial.stats()
            open_port.close()
        turns = list(graph)
        exact = [
            later.parent == earlier.id
            and bool(np.array_equal(graph.ids_through(later)[: len(stored)], stored))
            and len(stored) > 0
            for earlier, later in itertools.pairwise(turns)
            for stored in [graph.ids_through(earlier)]
        ]
        say(
            turns=len(turns),
            exact=exact,
            forks=[str(turn.fork_reason) for turn in turns if turn.fork_reason],
            delivered=[turn.delivered for turn in turns],
            calls=len(engine.calls),
            links=stats.links,
            resumed=stats.resumed,
            aborted=stats.aborted,
        )
    finally:
        await server.aclose()


async def edge(given: dict[str, Any], stdin: asyncio.StreamReader) -> None:
    """The provider's proxy, in front of the box; ``cut`` resets what is open."""
    async with Proxy((given["box"], given["dial_port"])).serving("0.0.0.0", given["dial_port"]) as proxy:
        say(ready=True)
        while await stdin.readline():
            proxy.cut()
            say(cut=True)


async def box(given: dict[str, Any], stdin: asyncio.StreamReader) -> None:
    """A sandbox with this namespace's network; the relay's inside and the agent run in it."""
    agent = get_agent("pi")
    agent.prepare()
    backend = get_backend("local")
    sandbox = await backend.create(SandboxSpec(mounts=agent.mounts(), network="open"))
    try:
        await sandbox.write(SCRIPT, inside_script(), mode=0o755)
        await sandbox.write(SECRET, given["secret"].encode(), mode=0o600)
        ports = {"relay_port": given["relay_port"], "dial_port": given["dial_port"]}
        argv = inside_argv(SCRIPT, secret_file=SECRET, **ports)
        job = await sandbox.start([*argv, "--ping-s", "0.3", "--dead-s", "1.5"])
        while b"relay_port" not in job.tail():
            assert job.poll() is None, job.tail()
            await asyncio.sleep(0.02)
        await sandbox.write(f"{sandbox.workdir}/answer.txt", b"wrong\n")
        say(ready=True)
        key = (await stdin.readline()).decode().strip()
        outcome = await agent.run(
            sandbox,
            task="Replace wrong by right in answer.txt, then check it.",
            base_url=f"http://127.0.0.1:{given['relay_port']}",
            api_key=key,
            model=MODEL,
            context_length=CONTEXT,
            cwd=sandbox.workdir,
            deadline_s=90,
            max_output_tokens=2000,
        )
        answer = await sandbox.read(f"{sandbox.workdir}/answer.txt")
        said = (outcome.stdout_tail + outcome.stderr_tail)[-1500:].decode(errors="replace")
        say(stop=outcome.stop, detail=outcome.detail, answer=answer.decode(), said=said, relay=job.tail().decode())
    finally:
        await sandbox.close()
        await backend.aclose()


async def probe(given: dict[str, Any], _stdin: asyncio.StreamReader) -> None:
    """How connects to each port of an address end: name of the error -> how often."""
    found: Counter[str] = Counter()
    for port in range(given["first"], given["last"] + 1):
        with socket.socket() as opened:
            opened.settimeout(1.0)
            try:
                opened.connect((given["host"], port))
                found["connected"] += 1
            except OSError as error:
                found[errno.errorcode.get(error.errno or 0, type(error).__name__)] += 1
    say(**found)


ROLES: dict[str, Callable[..., Any]] = {"trainer": trainer, "edge": edge, "box": box, "probe": probe}


async def main() -> None:
    stdin = await commands()
    await ROLES[sys.argv[1]](json.loads(await stdin.readline()), stdin)


if __name__ == "__main__":
    asyncio.run(main())
