"""Chromium through Playwright: one page at a time, watched for errors and for anything it asks of the network."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, async_playwright

from drivetrain.cache import build_once, cache_root
from drivetrain.errors import DrivetrainError
from swe_rl_agent.bundle_fetch import Locked, fetch

SCREENSHOTS = Path(__file__).parents[2] / "docs" / "viewer" if os.environ.get("DRIVETRAIN_SCREENSHOTS") == "1" else None
"""Where pictures for the docs go; None: none are made."""
PATIENCE_MS = 60_000
"""Of every wait; a busy machine is slow."""
_AXE = Locked(
    version="4.14.1",
    integrity="sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
)


def chromium() -> str:
    """The browser's program; skips the test where there is none."""
    names = os.environ.get("DRIVETRAIN_CHROMIUM", "chromium chromium-browser google-chrome").split()
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("there is no Chromium on this machine: run scripts/browser install")
    return found


@asynccontextmanager
async def opened(html: bytes, folder: Path, **options: Any) -> AsyncIterator[Page]:
    """A page from a file; when the block ends it must have logged no error and asked for nothing but itself."""
    file = folder / "page.html"
    file.write_bytes(html)
    errors: list[str] = []
    asked: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            context = await browser.new_context(viewport={"width": 1360, "height": 900}, **options)
            context.set_default_timeout(PATIENCE_MS)
            await context.grant_permissions(["clipboard-read", "clipboard-write"])
            page = await context.new_page()
            page.on("console", lambda message: errors.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("request", lambda request: asked.append(request.url))
            await page.goto(file.as_uri())
            await page.wait_for_selector("html[data-ready]", state="attached")
            yield page
            assert errors == []
            assert asked == [file.as_uri()]
        finally:
            await browser.close()


async def serious_findings(page: Page) -> list[str]:
    """What axe-core calls serious or critical on the page as it is."""
    await page.evaluate(axe_source())
    found = await page.evaluate("async () => (await axe.run()).violations")
    return [_told(each) for each in found if each["impact"] in ("serious", "critical")]


def _told(finding: dict[str, Any]) -> str:
    first = finding["nodes"][0]
    where = f"{len(finding['nodes'])} places, first {first['html'][:200]}"
    return f"{finding['impact']} {finding['id']} in {where}: {first['failureSummary']}"


def axe_source() -> str:
    """axe-core, fetched once from npm by its hash and kept in the cache; skips the test where that cannot be."""

    def build(folder: Path) -> None:
        shutil.copy(fetch("axe-core", _AXE, folder / "npm") / "axe.min.js", folder / "axe.min.js")
        shutil.rmtree(folder / "npm")

    try:
        kept = build_once(cache_root() / "test-tools" / f"axe-core-{_AXE.version}", build)
    except DrivetrainError as error:
        pytest.skip(f"axe-core could not be fetched: {error}")
    return (kept / "axe.min.js").read_text(encoding="utf-8")


async def copied(page: Page) -> str:
    """What is on the clipboard."""
    return str(await page.evaluate("navigator.clipboard.readText()"))
