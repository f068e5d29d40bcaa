"""The one way out of a sandbox that may reach its model and nothing else: a Unix socket that leads to one base URL.

Requests and replies pass unchanged, streamed as they come. Only the key is put in here, on the host: the sandbox holds
a stand-in that is worth nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web
from yarl import URL

_HOP = frozenset(
    ["connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-authorization", "host"]
)
_MAX_BODY = 256 << 20


@asynccontextmanager
async def forwarding(socket: Path, base_url: str, stand_in: str, api_key: str) -> AsyncIterator[None]:
    """Serve ``socket`` for the length of a block.

    Args:
        base_url: where requests go; their path is appended.
        stand_in: the key that the agents send, replaced by ``api_key`` in headers and query.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
    # auto_decompress off: a compressed reply passes as it is, with its own headers.
    async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as client:

        async def handle(request: web.Request) -> web.StreamResponse:
            headers = {
                name: value.replace(stand_in, api_key)
                for name, value in request.headers.items()
                if name.lower() not in _HOP
            }
            target = URL(base_url.rstrip("/") + request.raw_path.replace(stand_in, api_key), encoded=True)
            body = await request.read()
            try:
                async with client.request(
                    request.method, target, headers=headers, data=body or None, allow_redirects=False
                ) as reply:
                    return await _pass_on(request, reply)
            except aiohttp.ClientError as e:
                return web.json_response(
                    {"error": {"message": f"The model endpoint failed: {type(e).__name__}", "type": "api_error"}},
                    status=502,
                )

        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_route("*", "/{tail:.*}", handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.UnixSite(runner, str(socket)).start()
            yield
        finally:
            await runner.cleanup()


async def _pass_on(request: web.Request, reply: aiohttp.ClientResponse) -> web.StreamResponse:
    headers = {name: value for name, value in reply.headers.items() if name.lower() not in _HOP}
    response = web.StreamResponse(status=reply.status, reason=reply.reason, headers=headers)
    await response.prepare(request)
    async for chunk in reply.content.iter_any():
        await response.write(chunk)
    await response.write_eof()
    return response
