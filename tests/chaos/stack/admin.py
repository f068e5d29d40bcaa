"""The admin surface as a runner and a trainer use it: every request is sent until it is answered."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp

_AGAIN_S = 0.3
_PATIENCE_S = 400.0


class Admin:
    """A client of the admin surface of a gateway that comes and goes."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {key}"}, timeout=aiohttp.ClientTimeout(total=20)
        )

    async def aclose(self) -> None:
        await self._session.close()

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of the first answer that is no 5xx.

        Raises:
            RuntimeError: there was none for ``_PATIENCE_S`` seconds.
        """
        until = time.monotonic() + _PATIENCE_S
        status = 0
        while time.monotonic() < until:
            try:
                async with self._session.request(method, f"{self._url}{path}", json=body) as reply:
                    status = reply.status
                    if status < 500:
                        return status, await reply.json()
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(_AGAIN_S)
        raise RuntimeError(f"{method} {path} has had no answer but {status or 'silence'} for {_PATIENCE_S:g} s")

    async def try_once(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON; status 0 when there was no answer."""
        try:
            async with self._session.request(method, f"{self._url}{path}", json=body) as reply:
                return reply.status, await reply.json()
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return 0, None

    async def open(self, max_turns: int) -> tuple[str, str]:
        """Id and key of a new session; keep-alives come early, so that streams meet them."""
        policy = {"max_turns": max_turns, "patience": {"grace_s": 1.0, "every_s": 1.0}}
        status, opened = await self.ask("POST", "/sessions", {"policy": policy})
        if status != 201:
            raise RuntimeError(f"a session was refused: {status} {opened}")
        return opened["session_id"], opened["api_key"]

    async def seal(self, session: str) -> None:
        """End a session; idempotent."""
        status, answer = await self.ask("DELETE", f"/sessions/{session}")
        if status != 200:
            raise RuntimeError(f"session {session} was not sealed: {status} {answer}")
