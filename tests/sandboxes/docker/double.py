"""An Engine API that answers what a test tells it to, on a Unix socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

Answer = list[dict[str, Any]] | tuple[int, str] | float


class EngineDouble:
    """Has no image until a pull succeeds. ``pulls``: what each pull does: progress messages, a refusal, or a nap."""

    def __init__(self, *pulls: Answer, components: str = "Engine") -> None:
        self.pulls = list(pulls)
        self.pulled = 0
        self.has = False
        self.auth: list[str | None] = []
        self.requests: list[str] = []
        self.components = components
        self.hang = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.requests.append(f"{request.method} {path}")
        if self.hang:
            await asyncio.sleep(3600)
        if path.endswith("/version"):
            return web.json_response({"ApiVersion": "1.41", "Components": [{"Name": self.components}]})
        if path.endswith("/info"):
            return web.json_response({"SecurityOptions": ["name=seccomp,profile=default"]})
        if path.endswith("/images/create"):
            return await self._pull(request)
        if "/images/" in path and path.endswith("/json") and self.has:
            return web.json_response(
                {"Id": "sha256:1d", "RepoDigests": ["repo@sha256:d16e57"], "Config": {"Env": ["A=b=c", "PATH=/p"]}}
            )
        if request.method == "GET" and path.endswith("/images/json"):
            return web.json_response([])
        if request.method == "GET" and path.endswith("/containers/json"):
            return web.json_response([])
        return web.json_response({"message": f"No such thing: {path}"}, status=404)

    async def _pull(self, request: web.Request) -> web.StreamResponse:
        self.auth.append(request.headers.get("X-Registry-Auth"))
        answer = self.pulls[min(self.pulled, len(self.pulls) - 1)]
        self.pulled += 1
        if isinstance(answer, tuple):
            return web.json_response({"message": answer[1]}, status=answer[0])
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if isinstance(answer, float):
            await asyncio.sleep(answer)
            answer = [{"status": "Pull complete", "id": "layer"}]
        for message in answer:
            await response.write(json.dumps(message).encode() + b"\r\n")
        self.has = not any("error" in message for message in answer)
        return response


@asynccontextmanager
async def serving(double: EngineDouble, folder: Path) -> AsyncIterator[Path]:
    """Serve a double; the socket's path."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", double.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    socket = folder / "engine.sock"
    await web.UnixSite(runner, str(socket)).start()
    try:
        yield socket
    finally:
        await runner.cleanup()
