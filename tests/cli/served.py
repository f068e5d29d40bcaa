"""An engine server double in a thread of its own, for commands that run in the test's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def hosted(server: Any, stop: str = "aclose") -> Iterator[str]:
    """Start a double (``start() -> url``) on a loop in a thread; its base URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(server.start(), loop).result(20)
        asyncio.run_coroutine_threadsafe(getattr(server, stop)(), loop).result(20)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()
