"""A real rollout's page: an unmodified agent on a real task, in a sandbox, graded; then looked at in a browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from drivetrain.cli.runs import run_tokenizer
from drivetrain.engines.models import ModelDir
from drivetrain.gateway.sessions import session_tag
from drivetrain.journal.reader import JournalReader
from drivetrain.trace.graph import TraceGraph
from drivetrain.viewer.load import load_document
from drivetrain.viewer.page import render_page
from swe_rl_env.building.build import build_task
from swe_rl_env.tasks.catalog import get_task
from tests.rollout import conftest as kit
from tests.viewer.browser import PATIENCE_MS, SCREENSHOTS, copied, opened, serious_findings

pytestmark = [pytest.mark.real, pytest.mark.timeout(480)]
expect.set_options(timeout=PATIENCE_MS)
run_with = kit.run_with


def script() -> list[str]:
    """A reply without a call, which mini-swe-agent drops (a fork); a look; the reference fix; the end."""
    gold = build_task(get_task(kit.TASK)).gold_patch.decode()
    write = f"cat > ../fix.patch <<'END_OF_PATCH'\n{gold}END_OF_PATCH\necho written é 🙂"
    commands = ["ls && git log --oneline", write, "git apply ../fix.patch && git diff --stat",
                "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]  # fmt: skip
    return ["Let me think about it first.", *(kit.tool_call("bash", command=command) for command in commands)]


async def test_the_page_of_a_real_rollout(run_with: kit.RunWith, tiny_model: ModelDir, tmp_path: Path) -> None:
    done = await run_with("mini-swe-agent", script(), max_tokens=2000)
    (result,) = done.results
    assert (result.status, result.reward, result.fork_reasons) == ("ok", 1.0, {"assistant_removed": 1})
    graph = JournalReader(done.run.journal).graph(result.session_id, session_tag(result.session_id))
    document = load_document(done.run, result.rollout_id, run_tokenizer(done.run))
    assert document.trained_tokens == sum(sum(row.loss_mask) for row in result.rows)
    async with opened(render_page(document), tmp_path, color_scheme="light") as page:
        await expect(page.locator(".headline")).to_contain_text("reward 1")
        await _fork(page)
        await _ids(page, graph)
        await _search(page)
        await _panels(page)
        await _colours(page)


async def _fork(page: Page) -> None:
    await page.keyboard.press("f")
    await expect(page.locator("#turn-title")).to_contain_text("Turn 1")
    fork = page.locator("#fork")
    await expect(fork).to_contain_text("assistant removed")
    await expect(fork.locator(".diff .removed").first).to_contain_text("-")
    await expect(fork.locator(".token-run .token.removed").first).to_be_visible()
    await expect(fork.locator(".token-run .token.added").first).to_be_attached()
    await _picture(page, "fork")
    await fork.get_by_role("button", name="turn 0").click()
    await expect(page.locator("#turn-title")).to_contain_text("Turn 0")
    await expect(page.locator("#fork")).to_have_count(0)


async def _ids(page: Page, graph: TraceGraph) -> None:
    last = list(graph)[-1]
    await page.keyboard.press("G")
    await expect(page.locator("#turn-title")).to_contain_text(f"Turn {last.id}")
    await page.keyboard.press("w")
    await page.click("#copy-ids")
    await expect(page.locator("#status")).to_contain_text("copied")
    assert json.loads(await copied(page)) == graph.ids_through(last).tolist()
    await page.keyboard.press("w")


async def _search(page: Page) -> None:
    await page.fill("#search", "GIT APPLY ../fix")
    await expect(page.locator("#search-said")).to_contain_text("1 of 2, turn 3, messages")
    await expect(page.locator("#messages mark")).to_have_text("git apply ../fix")
    await page.keyboard.press("Escape")
    await page.keyboard.press("n")
    await expect(page.locator("#search-said")).to_contain_text("2 of 2, turn 3, tokens")
    await expect(page.locator("#tokens .token.hit").first).to_be_visible()
    await page.keyboard.press("h")
    await _picture(page, "search-heat")
    await page.keyboard.press("h")


async def _panels(page: Page) -> None:
    panel = page.locator(".panel:not([hidden])")
    for key, name, words in (
        ("2", "timeline", "5 calls in"),
        ("3", "tests", "FAIL_TO_PASS: 2 of 2"),
        ("4", "patch", "1 file"),
        ("5", "rows", "2 rows"),
        ("6", "findings", "Findings"),
        ("7", "provenance", "mini-swe-agent"),
    ):
        await page.keyboard.press(key)
        await expect(panel).to_have_id(f"panel-{name}")
        await expect(panel).to_contain_text(words)
        assert await serious_findings(page) == [], name
        if name in ("timeline", "patch"):
            await _picture(page, name)
    await page.keyboard.press("4")
    await expect(panel.locator(".text-line.added").first).to_be_visible()
    await page.keyboard.press("1")


async def _colours(page: Page) -> None:
    async def background() -> str:
        return str(await page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = await background()
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        assert (await background() == light) == (scheme == "light")
        for turn in ("g", "j"):  # without and with a fork
            await page.keyboard.press(turn)
        await page.locator("#fork").evaluate("node => { node.open = true }")
        await page.keyboard.press("h")
        assert await serious_findings(page) == [], scheme
        await page.keyboard.press("h")
        await page.keyboard.press("k")
        await page.keyboard.press("s")
        await _picture(page, f"turn-{scheme}")
    dark = await background()
    await page.click("#theme")  # light, whatever the system prefers
    await expect(page.locator("#theme")).to_have_text("Theme: light")
    assert await background() == light != dark


async def _picture(page: Page, name: str) -> None:
    """For the docs, on request."""
    if SCREENSHOTS is not None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        await page.screenshot(path=SCREENSHOTS / f"{name}.png")
