"""Chromium on the dashboard: pages that must log no error and ask nobody but their own server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, Page, Request, async_playwright

from tests.viewer.browser import PATIENCE_MS, chromium

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SCREENSHOTS = os.environ.get("DRIVETRAIN_SCREENSHOTS") == "1"
"""Whether pictures for the docs are made."""


class Watched:
    """What the pages of a browser logged, and whom they asked."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.asked: list[str] = []

    def watch(self, page: Page) -> None:
        page.on("console", lambda message: self.errors.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._asks)

    def _asks(self, request: Request) -> None:
        self.asked.append(request.url)


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def opened(browser: Browser, url: str, **options: Any) -> AsyncIterator[tuple[Page, Watched]]:
    """A page, and those it opens; at the end of the block none must have logged an error or asked another server."""
    watched = Watched()
    context = await browser.new_context(viewport={"width": 1440, "height": 900}, **options)
    context.set_default_timeout(PATIENCE_MS)
    context.on("page", watched.watch)
    page = await context.new_page()
    try:
        await page.goto(url)
        yield page, watched
        assert watched.errors == []
        assert {urlsplit(asked).netloc for asked in watched.asked} == {urlsplit(url).netloc}
        assert not any("dt-admin" in asked or "key=" in asked for asked in map(_sent, watched.asked))
    finally:
        await context.close()


def _sent(url: str) -> str:
    """What of an address goes over the wire."""
    return url.partition("#")[0]


async def picture(page: Page, name: str) -> None:
    """For the docs, on request."""
    if SCREENSHOTS:
        IMAGES.mkdir(parents=True, exist_ok=True)
        await page.screenshot(path=IMAGES / f"{name}.png")
