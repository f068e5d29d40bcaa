"""The dashboard in a browser: a real run while it goes on, and a thousand rollouts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from playwright.async_api import Browser, Page, expect

from drivetrain.cli.runs import run_tokenizer
from drivetrain.dashboard.board import Board
from drivetrain.dashboard.events import EventStream
from drivetrain.dashboard.part import Dashboard
from drivetrain.dashboard.serve import run_dashboard
from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.rollout.config import RolloutConfig, episodes_of
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.runner import run_rollouts
from drivetrain.rollout.stack import open_stack
from swe_rl_env.building.build import build_task
from swe_rl_env.tasks.catalog import get_task
from tests.dashboard.browser import browsing, opened, picture
from tests.dashboard.conftest import KEY, Serve
from tests.dashboard.simulated import RUN, Simulated
from tests.rollout.conftest import TASK, tool_call
from tests.viewer.browser import PATIENCE_MS, serious_findings

pytestmark = pytest.mark.timeout(480)
expect.set_options(timeout=PATIENCE_MS)
LONG_MS = 3 * PATIENCE_MS
"""Of what waits for a sandbox, an agent or its tests."""


def script() -> list[str]:
    """The reference fix, and the end."""
    gold = build_task(get_task(TASK)).gold_patch.decode()
    write = f"cat > ../fix.patch <<'END_OF_PATCH'\n{gold}END_OF_PATCH\ngit apply ../fix.patch"
    return [tool_call("bash", command=each) for each in (write, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")]


@pytest.mark.real
async def test_a_real_run_while_it_goes_on(tiny_model: ModelDir, tmp_path: Path) -> None:
    """An unmodified agent on a real task; the weight-sync gate holds its first call until the page has shown that."""
    engine = ScriptedEngine.from_lines(script(), tiny_model, then="done", context_length=100_000)
    config = RolloutConfig(tasks=(TASK,), agents=("mini-swe-agent", "noop"), max_tokens=2000, deadline_s=400)
    run, specs = RunDir.create(tmp_path / "run"), episodes_of(config)
    stack = open_stack(config, run, lambda _: None, engine=engine, model=tiny_model)
    async with stack as runner, browsing() as browser:
        assert runner.gateway is not None
        async with run_dashboard(run, specs, runner, run_tokenizer(run)) as served:
            await runner.gateway.fence.pause(owner="trainer")
            async with opened(browser, served.url) as (page, _):
                await expect(page.locator(".connection")).to_have_text("live")
                assert page.url == served.url.partition("#")[0]  # the key is out of sight
                await expect(page.locator("#rollouts [role=row]").nth(1)).to_contain_text("queued")
                going = asyncio.create_task(run_rollouts(runner, specs, concurrency=2, on_done=served.finished))
                await _held(page)
                await runner.gateway.fence.resume(0, owner="trainer")
                await _done(page, f"{TASK}.mini-swe-agent.0")
                await going
    (solved, nothing) = run.results()[::-1] if run.results()[0].agent == "noop" else run.results()
    assert (solved.reward, nothing.reward) == (1.0, 0.0)


async def _held(page: Page) -> None:
    engine = page.locator(".card", has_text="Engine")
    await expect(engine).to_contain_text("1 waiting", timeout=LONG_MS)
    await expect(engine.locator(".badge")).to_have_text("closed")
    await expect(page.locator(".headline .badge")).to_have_text("gate closed by trainer")
    await expect(page.locator("#rollouts [role=row]", has_text="mini-swe-agent")).to_contain_text("agent")
    assert await serious_findings(page) == []


async def _done(page: Page, rollout: str) -> None:
    await expect(page.locator(".card", has_text="Rollouts").first).to_contain_text("2 of 2 done", timeout=LONG_MS)
    await expect(page.locator(".connection")).to_have_text("finished")
    line = page.locator("#rollouts [role=row]", has_text="mini-swe-agent")
    await expect(line).to_contain_text("solved")
    await expect(page.locator(".card", has_text="Reward").first).to_contain_text("0.50 mean of 2")
    await expect(page.locator(".card", has_text="pass@k")).to_contain_text("50%")
    async with page.context.expect_page() as waiting:
        await line.get_by_role("link").click()
    trace = await waiting.value
    await trace.wait_for_selector("html[data-ready]", state="attached")
    await expect(trace.locator("h1")).to_have_text(rollout)
    await expect(trace.locator(".headline")).to_contain_text("reward 1")
    await trace.keyboard.press("j")
    await expect(trace.locator("#turn-title")).to_contain_text("Turn 1")
    assert "#turn=1" in trace.url and "/dashboard/trace/" in trace.url
    await trace.reload()
    await expect(trace.locator("#turn-title")).to_contain_text("Turn 1")  # it stands in its address
    await trace.close()


async def test_a_thousand_rollouts(serve: Serve) -> None:
    source = Simulated(1000)
    for _ in range(160):
        source.step()
    dashboard = Dashboard(Board(msgspec.structs.replace(RUN, planned=1000)), source, _NoTraces(), tick_s=3600)
    dashboard.stream = Cut(dashboard.board)
    url = await serve([dashboard.part()])
    for _ in range(100):
        await dashboard.update()
    async with browsing() as browser:
        await _keys_of_a_page(browser, url)
        async with opened(browser, f"{url}/dashboard#key={KEY}", color_scheme="light") as (page, _):
            await expect(page.locator(".card", has_text="Rollouts").first).to_contain_text("of 1000 done")
            await _list(page, source)
            await _updates(page, dashboard, source)
            await _looks(page)
        await _lost_and_found(browser, url, dashboard.stream, dashboard)


class Cut(EventStream):
    """A stream whose connections can be cut."""

    def __init__(self, board: Board) -> None:
        super().__init__(board)
        self._transports: list[asyncio.Transport] = []

    async def serve(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        self._transports.append(request.transport)
        return await super().serve(request)

    def cut(self) -> None:
        for transport in self._transports:
            transport.abort()


class _NoTraces:
    def page(self, rollout_id: str) -> bytes:
        raise NotImplementedError


async def _keys_of_a_page(browser: Browser, url: str) -> None:
    """A wrong key is told; the right one opens, and a reload does not ask again."""
    page = await browser.new_page()
    await page.goto(f"{url}/dashboard")
    await expect(page.get_by_label("Key of the admin surface")).to_be_visible()
    assert await serious_findings(page) == []
    await page.get_by_label("Key of the admin surface").fill("wrong" * 8)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text("not known here")
    await page.get_by_label("Key of the admin surface").fill(KEY)
    await page.get_by_role("button", name="Open").click()
    await expect(page.locator(".connection")).to_have_text("live")
    await page.reload()
    await expect(page.locator(".connection")).to_have_text("live")
    await page.close()


async def _list(page: Page, source: Simulated) -> None:
    lines = page.locator("#rollouts .rows [role=row]")
    await expect(page.locator("#rollouts")).to_have_attribute("aria-rowcount", "1001")
    assert await lines.count() < 60  # only what is in sight
    await page.focus("#rollouts")
    await page.keyboard.press("End")
    await expect(page.locator("#rollouts [aria-selected=true]")).to_have_attribute("aria-rowindex", "1001")
    await page.keyboard.press("Home")
    await page.keyboard.press("ArrowDown")
    await expect(page.locator("#rollouts [aria-selected=true]")).to_have_attribute("aria-rowindex", "3")
    solved = sum(view.reward == 1 for view in source.views.values())
    await page.get_by_role("button", name=f"solved {solved}", exact=True).click()
    await expect(page.locator("#rollouts")).to_have_attribute("aria-rowcount", str(solved + 1))
    await page.get_by_role("button", name="all 1000").click()
    await page.get_by_role("button", name="Sampled").click()
    most = max(source.views.values(), key=lambda view: (view.sampled, view.id))
    await expect(lines.first).to_contain_text(most.id)
    await page.keyboard.press("/")
    await page.keyboard.type("bwrap")
    failed = sum("bwrap" in view.error for view in source.views.values())
    await expect(page.locator("#rollouts")).to_have_attribute("aria-rowcount", str(failed + 1))
    await page.fill("#filter", "nothing is called so")
    await expect(page.locator("#rollouts")).to_contain_text("No rollout is like that.")
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="State").click()


async def _updates(page: Page, dashboard: Dashboard, source: Simulated) -> None:
    ended = page.locator(".card", has_text="Rollouts").first.locator(".big")
    for _ in range(3):
        for _ in range(10):
            await dashboard.update()
        done = sum(view.phase == "done" for view in source.views.values())
        await expect(ended).to_have_text(f"{done} of 1000 done")


async def _looks(page: Page) -> None:
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        await page.get_by_role("button", name="groups").click()
        await expect(page.locator(".groups tbody tr").first).to_be_visible()
        assert await serious_findings(page) == [], scheme
        if scheme == "light":
            await picture(page, "dashboard-groups-light")
        await page.get_by_role("button", name="list", exact=True).click()
        assert await serious_findings(page) == [], scheme
        await picture(page, f"dashboard-{scheme}")
    await page.keyboard.press("?")
    await expect(page.locator("#help")).to_be_visible()
    await page.keyboard.press("Escape")


async def _lost_and_found(browser: Browser, url: str, stream: Cut, dashboard: Dashboard) -> None:
    """What fails to load is logged as an error, so that this page is not watched."""
    page = await browser.new_page(viewport={"width": 1440, "height": 900})
    came_back: list[str] = []
    page.on("request", lambda request: came_back.append(request.headers.get("last-event-id", "")))
    await page.goto(f"{url}/dashboard#key={KEY}")
    connection = page.locator(".connection")
    await expect(connection).to_have_text("live")
    await page.route("**/admin/events", lambda route: route.abort())
    stream.cut()
    await expect(connection).to_contain_text("no connection since")
    await expect(page.locator(".notice")).to_contain_text("What you see is from")
    await expect(page.locator("#rollouts .rows [role=row]").first).to_be_visible()  # the last state stays
    await page.unroute("**/admin/events")
    await expect(connection).to_have_text("live")
    assert came_back[-1].startswith(dashboard.board.epoch)
    dashboard.board.close()
    await expect(connection).to_have_text("ended")
    await expect(page.locator(".notice")).to_contain_text(f"drivetrain dashboard {RUN.path}")
    await page.close()
