"""``drivetrain dashboard`` as a process, and the page beside a run."""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import aiohttp
import pytest

from drivetrain.cli.dashboard import beside_run
from drivetrain.rollout.config import EpisodeSpec
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from tests.dashboard.conftest import Reader

pytestmark = pytest.mark.timeout(480)


async def test_it_serves_until_it_is_stopped(run: RunDir, http: aiohttp.ClientSession) -> None:
    main = "from drivetrain.cli.main import main; main()"
    command = (sys.executable, "-c", main, "dashboard", str(run.path), "--json")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        text = (await asyncio.wait_for(process.stdout.readuntil(b"}\n"), 300)).decode()
        said = json.loads(text)
        assert said["run"] == str(run.path)
        page, _, key = said["url"].partition("#key=")
        url = page.removesuffix("/dashboard") + "/admin/events"
        async with http.get(url, headers={"x-api-key": key}) as response:
            reader, seen = Reader(response), set()
            while "fix.a.0" not in seen:
                heard = await reader.next()
                seen |= {view.id for view in heard.event.rollouts}
            process.send_signal(signal.SIGINT)
            while (await reader.next()).name != "end":
                pass
        assert await asyncio.wait_for(process.wait(), 120) == 130
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Runner:
    """As much of an EpisodeRunner as the dashboard looks at."""

    gateway = None

    def __init__(self) -> None:
        self.running: dict[str, str] = {"fix.a.7": "agent"}


async def test_beside_a_run(run: RunDir, http: aiohttp.ClientSession, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that goes on: what was there before is shown too."""
    specs = [EpisodeSpec(rollout_id="fix.a.7", task_id="fix", agent="a", group=7)]
    async with beside_run(run, specs, Runner(), 0) as finished:  # type: ignore[arg-type]
        (url,) = [line for line in capsys.readouterr().err.splitlines() if "#key=" in line]
        page, _, key = url.removeprefix("dashboard: ").partition("#key=")
        events = page.removesuffix("/dashboard") + "/admin/events"
        async with http.get(events, headers={"x-api-key": key}) as response:
            reader, phases = Reader(response), dict[str, str]()
            while phases.get("fix.a.7") != "agent":
                heard = await reader.next()
                phases |= {view.id: view.phase for view in heard.event.rollouts}
            assert phases["fix.a.0"] == phases["fix.oracle.0"] == "done"
            finished(
                RolloutResult(
                    rollout_id="fix.a.7", session_id="", task_id="fix", agent="a", group=7, status="ok", reward=1.0
                )
            )
            ended = False
            while not ended:
                event = (await reader.next()).event
                phases |= {view.id: view.phase for view in event.rollouts}
                ended = event.summary is not None and event.summary.finished
            assert set(phases.values()) == {"done"}
    assert f"drivetrain dashboard {run.path}" in capsys.readouterr().err.replace("\n", "")


async def test_without_it_nothing_is_served(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    async with beside_run(run, [], Runner(), None) as finished:  # type: ignore[arg-type]
        finished(RolloutResult(rollout_id="x", session_id="", task_id="x", agent="a", group=0, status="ok", reward=1.0))
    assert capsys.readouterr().err == ""
