"""Reads a request's body, parses it and answers: what a server in Python cannot do without.

    python serve_nothing.py               prints {"url": ..., "keys": []}

The floor under the growth of a call's cost with its body. The answer is that of the first turn, always.
"""

from __future__ import annotations

import asyncio
import json
import os

import msgspec
from aiohttp import web

REPLY = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}]}


async def _answer(request: web.Request) -> web.Response:
    msgspec.json.decode(await request.read())
    return web.json_response(REPLY)


async def main() -> None:
    """Serve until the parent goes."""
    app = web.Application(client_max_size=256 << 20)
    app.router.add_post("/v1/chat/completions", _answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(json.dumps({"url": f"http://127.0.0.1:{runner.addresses[0][1]}", "keys": []}), flush=True)
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.5)


if __name__ == "__main__":
    asyncio.run(main())
