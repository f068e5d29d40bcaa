"""E2B on loopback: the control plane, envd's process service (Connect, streaming JSON) and files, the port proxy.

What the official SDK sends was read off its source. Faults are asked for with :attr:`E2BServer.faults`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
import struct
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from tests.sandboxes.doubles.box import Box, furnish
from tests.sandboxes.doubles.front import Front, Streams, Thread

ENVD_PORT = 49983
ENVD_VERSION = "0.6.7"
TEMPLATES = ("base", "no-python")
API_KEY = "e2b_" + "0" * 40


class Faults:
    """What goes wrong next. Each number is how often; counted down."""

    def __init__(self) -> None:
        self.left: Counter[str] = Counter()
        self.retry_after: str | None = "0"
        self.delay_s = 0.0

    def take(self, kind: str) -> bool:
        if self.left[kind] <= 0:
            return False
        self.left[kind] -= 1
        return True


class Made:
    """A sandbox of the double."""

    def __init__(self, box: Box, body: dict[str, Any]) -> None:
        self.box = box
        self.metadata: dict[str, str] = body.get("metadata") or {}
        self.template: str = body["templateID"]
        self.started = time.time()
        self.end = self.started + body.get("timeout", 300)
        self.envd_token = secrets.token_hex(8)
        network = body.get("network") or {}
        self.traffic_token = None if network.get("allowPublicTraffic", True) else secrets.token_hex(8)

    def listed(self) -> dict[str, Any]:
        def when(seconds: float) -> str:
            return datetime.fromtimestamp(seconds, UTC).isoformat()

        return {
            "sandboxID": self.box.id,
            "templateID": self.template,
            "clientID": "double",
            "envdVersion": ENVD_VERSION,
            "startedAt": when(self.started),
            "endAt": when(self.end),
            "state": "running",
            "cpuCount": 2,
            "memoryMB": 512,
            "diskSizeMB": 1024,
            "metadata": self.metadata,
        }

    def created(self) -> dict[str, Any]:
        return {
            "sandboxID": self.box.id,
            "templateID": self.template,
            "clientID": "double",
            "envdVersion": ENVD_VERSION,
            "envdAccessToken": self.envd_token,
            "trafficAccessToken": self.traffic_token,
            "domain": None,
        }


class E2BServer:
    """All of it, in a thread of its own. ``root`` is a folder for the boxes' disks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.faults = Faults()
        self.calls: Counter[str] = Counter()
        self.made: dict[str, Made] = {}
        self.snapshots: dict[str, Path] = {}
        self._owners: dict[str, dict[str, str]] = {}
        self._keys: dict[str, str] = {}
        self._thread = Thread()
        self._front = Front(self._route)
        self._runner: web.AppRunner | None = None
        self._port = 0
        self._reaper: asyncio.Task[None] | None = None
        self._work: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._front.port}"

    def start(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        for name in TEMPLATES:
            furnish(self.root / name)
        profile = self.root / "no-python" / "etc" / "profile"
        profile.write_text("export PATH=/nowhere\n")
        self._thread.do(self._start())

    def stop(self) -> None:
        self._thread.do(self._stop())
        self._thread.stop()

    def cut(self) -> int:
        """Sever every connection to the double."""

        async def cut() -> int:
            return self._front.cut()

        return self._thread.do(cut())

    def vanish(self, box_id: str) -> None:
        """The box dies, and the provider knows."""
        self._thread.do(self._end(box_id))

    async def _start(self) -> None:
        app = web.Application(client_max_size=256 << 20, middlewares=[self._trouble])
        app.router.add_post("/v2/sandboxes", self._create)
        app.router.add_get("/v2/sandboxes", self._list)
        app.router.add_delete("/sandboxes/{id}", self._delete)
        app.router.add_post("/sandboxes/{id}/timeout", self._timeout)
        app.router.add_post("/v2/sandboxes/{id}/connect", self._connect)
        app.router.add_post("/sandboxes/{id}/snapshots", self._snapshot)
        app.router.add_delete("/templates/{id}", self._drop)
        app.router.add_post("/process.Process/Start", self._run)
        app.router.add_get("/health", self._health)
        app.router.add_get("/double", self._all)
        app.router.add_get("/files", self._read)
        app.router.add_post("/files", self._write)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port = self._runner.addresses[0][1]
        await self._front.start()
        self._reaper = asyncio.create_task(self._expire())

    async def _stop(self) -> None:
        assert self._runner is not None
        assert self._reaper is not None
        self._reaper.cancel()
        await self._front.stop()
        for box_id in list(self.made):
            await self._end(box_id)
        for task in list(self._work):
            task.cancel()
        await self._runner.cleanup()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            for box_id, made in list(self.made.items()):
                if time.time() > made.end:
                    await self._end(box_id)

    async def _end(self, box_id: str) -> bool:
        made = self.made.pop(box_id, None)
        if made is not None:
            await made.box.kill()
        return made is not None

    async def _route(self, first: str, headers: dict[str, str]) -> Streams | None:
        port = headers.get("e2b-sandbox-port", str(ENVD_PORT))
        if port == str(ENVD_PORT):
            return await asyncio.open_connection("127.0.0.1", self._port)
        made = self.made.get(headers.get("e2b-sandbox-id", ""))
        if made is None or headers.get("e2b-traffic-access-token") != made.traffic_token:
            return None
        return await made.box.connect(int(port))

    # -- faults -------------------------------------------------------------------------------------------------

    @web.middleware
    async def _trouble(self, request: web.Request, handler: Any) -> web.StreamResponse:
        what = self._what(request)
        self.calls[what] += 1
        if self.faults.delay_s:
            await asyncio.sleep(self.faults.delay_s)
        if self.faults.take(f"429 {what}"):
            after = {"Retry-After": self.faults.retry_after} if self.faults.retry_after is not None else {}
            return web.json_response({"code": 429, "message": "too many"}, status=429, headers=after)
        if self.faults.take(f"502 {what}"):
            return web.Response(status=502, text="bad gateway")
        if self.faults.take(f"lose {what}"):  # the request is carried out, the reply never arrives
            with contextlib.suppress(Exception):
                await handler(request)
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        reply: web.StreamResponse = await handler(request)
        return reply

    @staticmethod
    def _what(request: web.Request) -> str:
        if request.path == "/process.Process/Start":
            return "run"
        if request.path == "/files":
            return "read" if request.method == "GET" else "write"
        if request.path == "/v2/sandboxes":
            return "create" if request.method == "POST" else "list"
        return "delete" if request.method == "DELETE" else request.path.rpartition("/")[2]

    # -- control plane ------------------------------------------------------------------------------------------

    def _known(self, request: web.Request) -> Made:
        if request.headers.get("X-API-KEY") != API_KEY:
            raise web.HTTPUnauthorized(text=json.dumps({"code": 401, "message": "bad key"}))
        made = self.made.get(request.match_info["id"])
        if made is None:
            raise web.HTTPNotFound(text=json.dumps({"code": 404, "message": "no such sandbox"}))
        return made

    async def _create(self, request: web.Request) -> web.Response:
        if request.headers.get("X-API-KEY") != API_KEY:
            return web.json_response({"code": 401, "message": "bad key"}, status=401)
        key = request.headers.get("Idempotency-Key")
        if key in self._keys and self._keys[key] in self.made:
            return web.json_response(self.made[self._keys[key]].created(), status=201)
        body = await request.json()
        template = body["templateID"]
        if template not in TEMPLATES and template not in self.snapshots:
            return web.json_response({"code": 404, "message": f"template {template} not found"}, status=404)
        box_id = "i" + secrets.token_hex(10)
        open_network = body.get("allow_internet_access", True)
        box = Box(box_id, self.root / box_id, network="open" if open_network else "none")
        made = self.made[box_id] = Made(box, body)
        if key is not None:
            self._keys[key] = box_id
        await asyncio.shield(box.start(self.snapshots.get(template, self.root / template)))
        return web.json_response(made.created(), status=201)

    async def _list(self, request: web.Request) -> web.Response:
        wanted = {unquote(name): unquote(value) for name, value in parse_qsl(request.query.get("metadata", ""))}
        found = [made.listed() for made in self.made.values() if wanted.items() <= made.metadata.items()]
        begin = int(request.query.get("nextToken", "0"))
        size = 2  # small pages, so that they are turned
        more = {"x-next-token": str(begin + size)} if begin + size < len(found) else {}
        return web.json_response(found[begin : begin + size], headers=more)

    async def _delete(self, request: web.Request) -> web.Response:
        self._known(request)
        await self._end(request.match_info["id"])
        return web.Response(status=204)

    async def _timeout(self, request: web.Request) -> web.Response:
        made = self._known(request)
        made.end = time.time() + (await request.json())["timeout"]
        return web.Response(status=204)

    async def _connect(self, request: web.Request) -> web.Response:
        return web.json_response(self._known(request).created())

    async def _snapshot(self, request: web.Request) -> web.Response:
        made = self._known(request)
        if (await request.json()).get("memory", True):
            return web.json_response({"code": 400, "message": "the double keeps disks only"}, status=400)
        name = "snap" + secrets.token_hex(6)
        await made.box.save(self.root / name)
        self.snapshots[name] = self.root / name
        self._owners[name] = made.metadata
        return web.json_response({"snapshotID": name, "names": []}, status=201)

    async def _drop(self, request: web.Request) -> web.Response:
        folder = self.snapshots.pop(request.match_info["id"], None)
        self._owners.pop(request.match_info["id"], None)
        if folder is None:
            return web.json_response({"code": 404, "message": "no such template"}, status=404)
        process = await asyncio.create_subprocess_exec("rm", "-rf", str(folder))
        await process.wait()
        return web.Response(status=204)

    async def _all(self, _: web.Request) -> web.Response:
        return web.json_response({made.box.id: made.metadata for made in self.made.values()} | self._owners)

    # -- envd ---------------------------------------------------------------------------------------------------

    def _box(self, request: web.Request) -> Box:
        made = self.made.get(request.headers.get("E2b-Sandbox-Id", ""))
        if made is None or not made.box.alive:
            message = "The sandbox was not found"
            raise web.HTTPBadGateway(
                text=json.dumps({"code": 502, "message": message}), content_type="application/json"
            )
        if request.headers.get("X-Access-Token") != made.envd_token:
            raise web.HTTPUnauthorized(text=json.dumps({"code": "unauthenticated", "message": "bad token"}))
        return made.box

    async def _health(self, request: web.Request) -> web.Response:
        self._box(request)
        return web.Response(status=204)

    async def _read(self, request: web.Request) -> web.StreamResponse:
        path = self._box(request).path(request.query["path"])
        if not path.is_file():
            return web.json_response({"code": 404, "message": f"{path.name} not found"}, status=404)
        return web.FileResponse(path)

    async def _write(self, request: web.Request) -> web.Response:
        box = self._box(request)
        written = []
        async for part in await request.multipart():
            inside = request.query.get("path") or part.filename
            box.write(inside, bytes(await part.read()), request.query.get("username", "user"))
            written.append({"name": Path(inside).name, "type": "file", "path": inside})
        return web.json_response(written)

    async def _run(self, request: web.Request) -> web.StreamResponse:
        box = self._box(request)
        body = await request.read()
        config = json.loads(body[5:])["process"]
        user = base64.b64decode(request.headers["Authorization"].split(" ")[1]).decode().rstrip(":")
        process = await box.run(
            [config["cmd"], *config.get("args", [])],
            user=user,
            cwd=config.get("cwd", "/"),
            env=config.get("envs", {}),
        )
        response = web.StreamResponse(headers={"Content-Type": "application/connect+json"})
        await response.prepare(request)
        events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        work = asyncio.create_task(self._watch(process, events))
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        await self._send(response, {"event": {"start": {"pid": process.pid}}})
        while (event := await events.get()) is not None:
            if self.faults.take("sever run"):  # in the middle: the start was told, the end is not
                assert request.transport is not None
                request.transport.abort()
                return response
            await self._send(response, {"event": event})
        await response.write(struct.pack(">BI", 2, 2) + b"{}")
        await response.write_eof()
        return response

    @staticmethod
    async def _send(response: web.StreamResponse, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        await response.write(struct.pack(">BI", 0, len(data)) + data)

    @staticmethod
    async def _watch(process: asyncio.subprocess.Process, events: asyncio.Queue[dict[str, Any] | None]) -> None:
        """To the end of the process, whether anybody listens or not."""

        async def pump(name: str, stream: asyncio.StreamReader | None) -> None:
            assert stream is not None
            while data := await stream.read(1 << 16):
                await events.put({"data": {name: base64.b64encode(data).decode()}})

        await asyncio.gather(pump("stdout", process.stdout), pump("stderr", process.stderr))
        code = await process.wait()
        await events.put({"end": {"exitCode": code, "exited": True, "status": f"exit status {code}"}})
        await events.put(None)
