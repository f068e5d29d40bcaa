"""``drivetrain serve``: the gateway as a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import typer

from drivetrain.cli.console import out, tell
from drivetrain.engines.embedded import EmbeddedEngine
from drivetrain.engines.models import ModelDir, resolve_model
from drivetrain.engines.protocol import Engine
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.errors import ConfigError
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.keys import mint_key
from drivetrain.gateway.model import load_codec
from drivetrain.gateway.server import GatewayServer

ADMIN_KEY_VARIABLE = "DRIVETRAIN_ADMIN_KEY"


def serve(
    model: str = typer.Option("SmolLM2-135M-Instruct", "--model", "-m", help="Bundled model name or model directory."),
    journal: Path = typer.Option(Path("gateway/journal.sqlite"), help="Journal file; its sessions continue."),
    port: int = typer.Option(8300, help="Port for harnesses on 127.0.0.1; 0 = any free one."),
    admin_port: int = typer.Option(8301, help="Port of the admin surface on 127.0.0.1; 0 = any free one."),
    socket: Path | None = typer.Option(None, help="Also serve harnesses on this Unix socket."),
    threads: int | None = typer.Option(None, help="Torch threads of the embedded engine."),
    script: Path | None = typer.Option(None, help="Say these replies (JSON list of texts) instead of sampling."),
) -> None:
    """Serve the gateway: open sessions over the admin surface, point any harness at it.

    The admin key is read from $DRIVETRAIN_ADMIN_KEY; without it one is made and written beside the journal
    (admin.key, mode 0600). Open a session with POST /admin/sessions; its `api_key` is the harness's API key.
    After a crash, start it again on the same journal: the same keys continue where they were.
    """
    resolved = resolve_model(model, None, tell)
    engine: Engine = _scripted(script, resolved) if script else EmbeddedEngine(resolved, threads=threads)
    asyncio.run(_serve(engine, resolved, journal, port, admin_port, socket))


async def _serve(
    engine: Engine, model: ModelDir, journal: Path, port: int, admin_port: int, socket: Path | None
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    gateway = Gateway(engine, load_codec(model), journal, model=model.name)
    server = GatewayServer(gateway)
    try:
        bound = await server.listen_tcp(port)
        admin = await server.listen_admin(admin_port, _admin_key(journal))
        if socket is not None:
            await server.listen_unix(socket)
        tell(f"loading {engine.name}")
        await engine.start()
        out.print(f"harness http://127.0.0.1:{bound}/v1", markup=False, highlight=False)
        out.print(f"admin http://127.0.0.1:{admin}/admin", markup=False, highlight=False)
        out.print(f"ready: {gateway.recovered} sessions recovered from {journal}", markup=False, soft_wrap=True)
        await stop.wait()
    finally:
        await server.aclose()
        await engine.aclose()


def _admin_key(journal: Path) -> str:
    given = os.environ.get(ADMIN_KEY_VARIABLE)
    if given:
        return given
    path = journal.parent / "admin.key"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(mint_key() + "\n")
    return path.read_text().strip()


def _scripted(path: Path, model: ModelDir) -> Engine:
    import msgspec

    try:
        lines = msgspec.json.decode(path.read_bytes(), type=list[str])
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"cannot read the script {path}: {error}.", fix="Give a JSON list of texts.") from error
    if not lines:
        raise ConfigError(f"the script {path} is empty.", fix="Give at least one text.")
    return ScriptedEngine.from_lines(lines, model, then=lines[-1])
