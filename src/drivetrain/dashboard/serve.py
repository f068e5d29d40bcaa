"""The dashboard beside a gateway, of a run while it goes on, and of a run folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from drivetrain.dashboard.board import Board
from drivetrain.dashboard.folder import FolderSource, describe_run
from drivetrain.dashboard.live import GatewaySource, RunSource
from drivetrain.dashboard.model import RunView
from drivetrain.dashboard.part import Dashboard
from drivetrain.dashboard.rollouts import RolloutCollector
from drivetrain.dashboard.traces import JournalTraces, RunTraces
from drivetrain.gateway.admin import AdminPart, admin_app, guarded_app
from drivetrain.gateway.bind import bind
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.keys import AdminKeys, mint_key
from drivetrain.gateway.sessions import Session
from drivetrain.metrics.lag import LoopLag
from drivetrain.metrics.part import metrics_part
from drivetrain.metrics.watch import GatewayWatch
from drivetrain.rollout.config import EpisodeSpec
from drivetrain.rollout.episode import EpisodeRunner
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.selection import Selection
from drivetrain.tokens.tokenizer import Tokenizer

HOST = "127.0.0.1"


def gateway_parts(gateway: Gateway) -> list[AdminPart]:
    """What ``drivetrain serve`` adds to its admin surface: ``/metrics`` and the dashboard of its sessions."""
    watch, lag = GatewayWatch(gateway), LoopLag()
    board = Board(RunView(name="gateway", model=gateway.model, engine=gateway.engine.name))
    traces = JournalTraces(gateway.journal.path, gateway.codec.tokenizer)
    dashboard = Dashboard(board, GatewaySource(watch, lag), traces)
    return [dashboard.part(), metrics_part(watch, lag)]


class Served(msgspec.Struct, frozen=True):
    """A dashboard that is being served: its address, with the key in the fragment, which browsers send to nobody.

    ``finished`` takes the results of a run of this process.
    """

    url: str
    finished: Callable[[RolloutResult], None] = lambda _: None


@asynccontextmanager
async def run_dashboard(
    run: RunDir, specs: Sequence[EpisodeSpec], runner: EpisodeRunner, tokenizer: Tokenizer | None, *, port: int = 0
) -> AsyncIterator[Served]:
    """Serve a run of this process on loopback until the context ends, its metrics and its admin surface too.

    Args:
        run: where it is written; ``run.json`` is there.
        specs: every rollout that is to be run; those that the folder holds already are shown too.
        runner: what runs them; hand each result to ``finished``.
        tokenizer: of the model, spells tokens in the trace pages.
        port: 0 = any free one.

    Raises:
        ConfigError: the port is taken.
    """
    about = describe_run(run)
    about.kind, about.live = "rollout", True
    board, lag, gateway = Board(about), LoopLag(), runner.gateway
    selection = Selection.read(run)

    def fates(session: Session) -> dict[str, int]:
        return selection.sampled(session.graph, session.labels.get("agent", ""))

    watch = GatewayWatch(gateway, fates=fates) if gateway is not None else None
    source = RunSource(specs, runner.running, GatewaySource(watch, lag) if watch is not None else None)
    for result in run.results():
        source.finished(result)
    parts = [Dashboard(board, source, RunTraces(run, tokenizer)).part()]
    if watch is not None:
        parts.append(metrics_part(watch, lag, [RolloutCollector(board)]))
    key = mint_key("admin")
    keys = AdminKeys(key)
    app = guarded_app(keys, parts) if gateway is None else admin_app(gateway, keys, parts)
    async with _listening(app, port) as bound:
        yield Served(f"http://{HOST}:{bound}/dashboard#key={key}", source.finished)


@asynccontextmanager
async def folder_dashboard(run: RunDir, tokenizer: Tokenizer | None, *, port: int = 0) -> AsyncIterator[Served]:
    """Serve a run folder on loopback until the context ends; nothing is written to it.

    Raises:
        ConfigError: the port is taken, or ``run.json`` cannot be read.
    """
    board = Board(describe_run(run))
    key = mint_key("admin")
    app = guarded_app(AdminKeys(key), [Dashboard(board, FolderSource(run), RunTraces(run, tokenizer)).part()])
    async with _listening(app, port) as bound:
        yield Served(f"http://{HOST}:{bound}/dashboard#key={key}")


@asynccontextmanager
async def _listening(app: web.Application, port: int) -> AsyncIterator[int]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        yield await bind(runner, HOST, port, None)
    finally:
        await runner.cleanup()
