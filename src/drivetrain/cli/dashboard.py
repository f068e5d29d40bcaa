"""``drivetrain dashboard``: a recorded run on one page; and the page beside a run that is going on."""

from __future__ import annotations

import asyncio
import webbrowser
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import typer

from drivetrain.cli.console import err, out, print_json, tell
from drivetrain.cli.runs import run_tokenizer
from drivetrain.dashboard.serve import folder_dashboard, run_dashboard
from drivetrain.errors import ConfigError
from drivetrain.rollout.config import EpisodeSpec
from drivetrain.rollout.episode import EpisodeRunner
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir

DASHBOARD: bool = typer.Option(
    False, "--dashboard", help="Serve a live page of the run on 127.0.0.1; prints its address."
)
DASHBOARD_PORT: int = typer.Option(0, min=0, max=65535, help="Port of --dashboard; 0 = any free one.")


def dashboard(
    run: Path = typer.Argument(metavar="RUN", help="Run folder, finished or still being written."),
    port: int = typer.Option(0, min=0, max=65535, help="Port on 127.0.0.1; 0 = any free one."),
    show: bool = typer.Option(False, "--open", help="Open the page in the browser."),
    json_output: bool = typer.Option(False, "--json", help="Print the address as JSON."),
) -> None:
    """Serve a run folder as a page: rollouts, rewards, pass@k, forks, masked tokens, errors, and every trace.

    Nothing is written to the folder. While another process still writes it the page follows. It ends with Ctrl-C.

    The address that is printed holds the page's key behind the `#`, where browsers send it to nobody; the key is good
    for as long as this command runs.

    Examples:

      drivetrain dashboard runs/20261130-221302 --open

      drivetrain rollout -a pi -t pypi__xmltodict-0.14.2 -n 8 --dashboard
    """
    folder = RunDir.open(run)
    asyncio.run(_serve(folder, port, show=show, as_json=json_output))


async def _serve(run: RunDir, port: int, *, show: bool, as_json: bool) -> None:
    tokenizer = await asyncio.to_thread(run_tokenizer, run)
    async with folder_dashboard(run, tokenizer, port=port) as served:
        if as_json:
            print_json({"run": str(run.path), "url": served.url})
        else:
            out.print(f"dashboard: {served.url}", markup=False, highlight=False, soft_wrap=True)
        out.file.flush()  # whoever started it waits for this, and a pipe is not flushed at the line's end
        if show and not webbrowser.open(served.url):
            raise ConfigError("no browser could be started.", fix="Open the address that is printed yourself.")
        await asyncio.Event().wait()


@asynccontextmanager
async def beside_run(
    run: RunDir, specs: Sequence[EpisodeSpec], runner: EpisodeRunner, port: int | None
) -> AsyncIterator[Callable[[RolloutResult], None]]:
    """The dashboard of a run while it goes on; hand each result to what this yields. Port None: there is none."""
    if port is None:
        yield lambda _: None
        return
    tokenizer = await asyncio.to_thread(run_tokenizer, run)
    async with run_dashboard(run, specs, runner, tokenizer, port=port) as served:
        err.print(f"dashboard: {served.url}", markup=False, highlight=False, soft_wrap=True)
        yield served.finished
    tell(f"the dashboard has ended; to come back to it: drivetrain dashboard {run.path}")
