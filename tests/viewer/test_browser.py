"""The page in a browser: what one sees, clicks and types."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from drivetrain.viewer.document import ViewDocument
from drivetrain.viewer.page import render_page
from tests.viewer.browser import PATIENCE_MS, copied, opened, serious_findings
from tests.viewer.conftest import PATCH
from tests.viewer.documents import NASTY, document_of, eventful, large

pytestmark = pytest.mark.timeout(240)
expect.set_options(timeout=PATIENCE_MS)


async def said(page: Page, words: str) -> None:
    await expect(page.locator("#search-said")).to_contain_text(words)


async def search(page: Page, query: str, words: str) -> None:
    await page.fill("#search", "")  # it searches by itself a moment later; what it said before must be gone
    await expect(page.locator("#search-said")).to_be_empty()
    await page.fill("#search", query)
    await said(page, words)


async def test_hostile_text_stays_text(tmp_path: Path) -> None:
    play = eventful()
    document = document_of(play.graph, error=NASTY, files={"work.patch": NASTY, "tests.log": NASTY})
    async with opened(render_page(document), tmp_path) as page:
        await search(page, "owned", "1 of 4")
        shown = page.locator("#messages")
        await expect(shown).to_contain_text("</script><script>document.title='owned'</script>")
        await expect(shown).to_contain_text("[U+202E]gnp.exe")
        await expect(shown.locator(".hidden-char", has_text="\u241b").first).to_be_visible()
        for number in range(1, 8):
            await page.keyboard.press("Escape")
            await page.keyboard.press(str(number))
        assert await page.title() == "task.agent.0 - drivetrain trace"
        assert await page.locator("img, iframe, object, a").count() == 0
        # A character of two tokens that are no text by themselves is found in both, and shown as escapes.
        await search(page, "\u00e9", "1 of 4")
        await page.click("#search-next")
        await said(page, "2 of 4, turn 6, messages")
        await page.press("#search", "Enter")
        await said(page, "3 of 4, turn 6, tokens")
        assert await page.locator("#tokens .token.hit").all_text_contents() == ["\\xc3", "\\xa9"]


async def test_keys_tokens_and_copying(tmp_path: Path) -> None:
    play = eventful()
    document = document_of(play.graph, files={"work.patch": PATCH.decode(errors="backslashreplace")})
    async with opened(render_page(document), tmp_path) as page:
        heading = page.locator("#turn-title")
        await expect(heading).to_contain_text("Turn 0")
        await expect(page.locator("#tokens .token.masked").first).to_be_attached()
        await expect(page.locator(".turn-facts summary")).to_contain_text("not trained: label:title")
        for key, turn in (("j", 1), ("j", 2), ("k", 1), ("G", 8), ("g", 0)):
            await page.keyboard.press(key)
            await expect(heading).to_contain_text(f"Turn {turn}")
        await page.focus("#turn-list")
        await page.keyboard.press("ArrowDown")
        await expect(page.locator("#turn-list [aria-selected=true]")).to_have_id("turn-1")

        # The page adds up a prompt from what is stored once; the ids are those that were sent.
        await page.keyboard.press("G")
        await page.keyboard.press("w")
        await expect(page.locator("#option-whole")).to_have_attribute("aria-pressed", "true")
        await page.keyboard.press("c")
        await expect(page.locator("#status")).to_contain_text("copied")
        assert json.loads(await copied(page)) == play.graph.ids_through(play.graph[8]).tolist()

        # A span: the first three sampled tokens.
        await page.keyboard.press("s")
        await expect(page.locator(".about-token")).to_contain_text("sampled, trained in row")
        await expect(page.locator(".about-token")).to_contain_text("log-prob -0.5000 (p 0.607)")
        await page.focus("#tokens")
        await page.keyboard.press("Shift+ArrowRight")
        await page.keyboard.press("Shift+ArrowRight")
        await expect(page.locator(".about-token")).to_contain_text("3 tokens selected")
        await page.click("#copy-ids")
        await expect(page.locator("#status")).to_contain_text("3 token ids copied")
        assert json.loads(await copied(page)) == play.graph[8].sampled_ids[:3].tolist()

        await page.keyboard.press("h")
        await expect(page.locator("#tokens .heat-2").first).to_be_visible()
        await page.keyboard.press("4")  # a removed "-- text" and an added "++ text" are no file names
        await expect(page.locator(".text-line.removed")).to_have_text(["--- an sql comment"])
        await expect(page.locator(".text-line.added")).to_have_text(["+++ one more"])
        await page.keyboard.press("1")
        await page.keyboard.press("?")
        await expect(page.locator("#help")).to_be_visible()
        await page.keyboard.press("j")  # no key acts behind the dialog
        await page.keyboard.press("Escape")
        await expect(page.locator("#help")).to_be_hidden()
        await expect(heading).to_contain_text("Turn 8")
        await page.keyboard.press("/")
        await page.keyboard.type("jkw")  # typing is no command
        await expect(page.locator("#search")).to_have_value("jkw")
        await said(page, "no hit")
        assert page.url.endswith("#turn=8")


async def test_a_large_trace_loads_fast_and_keeps_the_page_small(tmp_path: Path) -> None:
    document = large(200, 200_000)
    async with opened(render_page(document), tmp_path) as page:
        ready_ms = int(await page.evaluate("document.documentElement.dataset.ready"))
        print(f"ready after {ready_ms} ms")
        assert ready_ms < 8000  # 2 s is the aim; docs/viewer.md has the figure of an idle machine
        await page.keyboard.press("G")
        await page.keyboard.press("w")
        await expect(page.locator("#tokens-title")).to_contain_text("whole prompt of 199,750, 250 sampled")
        await page.keyboard.press("s")
        await expect(page.locator("#tokens .token.trained").first).to_be_visible()
        await page.evaluate("document.getElementById('tokens').scrollTop -= 2000")
        await expect(page.locator("#tokens .token.earlier").first).to_be_attached()
        assert await page.evaluate("document.querySelectorAll('*').length") < 6000
        await search(page, "the needle in the haystack", "1 of 1, turn 199, messages")
        await expect(page.locator("#messages mark")).to_have_text("the needle in the haystack")


async def test_a_rollout_without_a_model_call(tmp_path: Path) -> None:
    document = ViewDocument(rollout_id="task.oracle.0", status="ok", reward=1.0)
    async with opened(render_page(document), tmp_path) as page:
        await expect(page.locator("#panel-tests")).to_contain_text("was not graded")
        await page.click("#tab-turns")
        await expect(page.locator("#panel-turns")).to_contain_text("made no model call")
        for key in ("j", "f", "c", "s", "w", "h", "n", "2", "5", "6", "7"):
            await page.keyboard.press(key)
        assert await serious_findings(page) == []
