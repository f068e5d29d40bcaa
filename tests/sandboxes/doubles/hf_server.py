"""Hugging Face on loopback: the Jobs API that ``huggingface_hub.Sandbox`` uses, and the sandbox server in each Job.

What the official SDK sends was read off its source.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from aiohttp import web

from tests.sandboxes.doubles.box import Box, furnish
from tests.sandboxes.doubles.e2b_server import Faults
from tests.sandboxes.doubles.front import Front, Rewritten, Streams, Thread

TOKEN = "hf_" + "x" * 20
PORT = 49983
_BOX = re.compile(rf"/boxes/--{PORT}\./([^/]+)/v1/proxy/(\d+)(/\S*)")


class Job:
    """A Job of the double, with the sandbox server's token."""

    def __init__(self, box: Box, body: dict[str, Any]) -> None:
        self.box = box
        self.labels: dict[str, str] = body.get("labels") or {}
        self.image: str = body.get("dockerImage", "")
        self.token: str = body["secrets"]["SBX_TOKEN"]
        self.idle_s = float(body["environment"].get("SBX_IDLE_TIMEOUT", 1e9))
        self.used = time.time()
        self.stage = "RUNNING"

    def listed(self, url: str) -> dict[str, Any]:
        return {
            "id": self.box.id,
            "createdAt": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "dockerImage": self.image,
            "labels": self.labels,
            "status": {"stage": self.stage, "exposeUrls": [f"{url}/boxes/--{PORT}./{self.box.id}"]},
            "owner": {"id": "u1", "name": "tester", "type": "user"},
        }


@contextmanager
def shared_server() -> Iterator[HFServer]:
    """The one double of this process, which has one endpoint: started by its first user, stopped by its last."""
    from huggingface_hub import constants

    if not _sharing:
        folder = tempfile.TemporaryDirectory(prefix="double-")
        Path(folder.name).chmod(0o755)
        server = HFServer(Path(folder.name) / "boxes", urlsplit(constants.ENDPOINT).port or 0)
        server.start()
        _sharing.append((server, folder))
    else:
        _sharing.append(_sharing[0])
    try:
        yield _sharing[0][0]
    finally:
        server, folder = _sharing.pop()
        if not _sharing:
            server.stop()
            folder.cleanup()


_sharing: list[tuple[HFServer, tempfile.TemporaryDirectory[str]]] = []


class HFServer:
    """All of it, in a thread of its own, on a given port: the SDK fixes its endpoint when it is imported."""

    def __init__(self, root: Path, port: int = 0) -> None:
        self.root = root
        self.faults = Faults()
        self.jobs: dict[str, Job] = {}
        self._thread = Thread()
        self._front = Front(self._route, port)
        self._runner: web.AppRunner | None = None
        self._port = 0
        self._reaper: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._front.port}"

    def start(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        furnish(self.root / "image")
        self._thread.do(self._start())

    def stop(self) -> None:
        self._thread.do(self._stop())
        self._thread.stop()

    def cut(self) -> int:
        async def cut() -> int:
            return self._front.cut()

        return self._thread.do(cut())

    def vanish(self, box_id: str) -> None:
        self._thread.do(self._end(box_id, "ERROR"))

    async def _start(self) -> None:
        app = web.Application(client_max_size=256 << 20, middlewares=[self._trouble])
        app.router.add_get("/api/whoami-v2", self._whoami)
        app.router.add_post("/api/jobs/{space}", self._create)
        app.router.add_get("/api/jobs/{space}", self._list)
        app.router.add_get("/api/jobs/{space}/{id}", self._inspect)
        app.router.add_post("/api/jobs/{space}/{id}/cancel", self._cancel)
        app.router.add_get("/double", self._all)
        inside = f"/boxes/--{PORT}./{{id}}"
        app.router.add_get(inside + "/health", self._health)
        app.router.add_post(inside + "/v1/exec", self._exec)
        app.router.add_get(inside + "/v1/processes", self._processes)
        app.router.add_get(inside + "/v1/files/stat", self._stat)
        app.router.add_get(inside + "/v1/files/read", self._read)
        app.router.add_put(inside + "/v1/files/write", self._write)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._port = self._runner.addresses[0][1]
        await self._front.start()
        self._reaper = asyncio.create_task(self._expire())

    async def _stop(self) -> None:
        assert self._runner is not None
        assert self._reaper is not None
        self._reaper.cancel()
        await self._front.stop()
        for box_id in list(self.jobs):
            await self._end(box_id, "CANCELED")
        await self._runner.cleanup()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(0.2)
            for box_id, job in list(self.jobs.items()):
                if job.stage == "RUNNING" and time.time() > job.used + job.idle_s:
                    await self._end(box_id, "COMPLETED")

    async def _end(self, box_id: str, stage: str) -> None:
        job = self.jobs[box_id]
        if job.stage == "RUNNING":
            job.stage = stage
            await job.box.kill()

    async def _route(self, first: str, headers: dict[str, str]) -> Streams | Rewritten | None:
        method, target, version = first.split(" ")
        if (found := _BOX.match(target)) is None:
            return await asyncio.open_connection("127.0.0.1", self._port)
        job = self.jobs.get(found[1])
        if job is None or job.stage != "RUNNING" or headers.get("x-sandbox-token") != job.token:
            return None
        reader, writer = await job.box.connect(int(found[2]))
        return reader, writer, f"{method} {found[3]} {version}"

    @web.middleware
    async def _trouble(self, request: web.Request, handler: Any) -> web.StreamResponse:
        what = request.path.rpartition("/")[2] if "/boxes/" in request.path else request.method.lower()
        if request.headers.get("Authorization") != f"Bearer {TOKEN}" and request.path != "/double":
            return web.json_response({"error": "bad token"}, status=401)
        if self.faults.take(f"429 {what}"):
            return web.json_response({"error": "too many"}, status=429, headers={"Retry-After": "0"})
        if self.faults.take(f"502 {what}"):
            return web.Response(status=502, text="bad gateway")
        if self.faults.take(f"lose {what}"):
            await handler(request)
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        reply: web.StreamResponse = await handler(request)
        return reply

    # -- Jobs ---------------------------------------------------------------------------------------------------

    async def _whoami(self, _: web.Request) -> web.Response:
        return web.json_response({"type": "user", "id": "u1", "name": "tester", "orgs": []})

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not body.get("dockerImage", "").startswith("python:"):
            return web.json_response({"error": f"image {body.get('dockerImage')} not found"}, status=400)
        box_id = secrets.token_hex(12)
        job = self.jobs[box_id] = Job(Box(box_id, self.root / box_id, network="none"), body)
        await asyncio.shield(job.box.start(self.root / "image"))
        return web.json_response(job.listed(self.url))

    async def _list(self, request: web.Request) -> web.Response:
        query = parse_qsl(request.query_string)
        wanted = {tuple(value.split("=", 1)) for name, value in query if name == "label"}
        stages = {value for name, value in query if name == "stage"}
        found = [job for job in self.jobs.values() if wanted <= set(job.labels.items()) and job.stage in stages]
        return web.json_response([job.listed(self.url) for job in found])

    def _job(self, request: web.Request) -> Job:
        job = self.jobs.get(request.match_info["id"])
        if job is None:
            raise web.HTTPNotFound(text=json.dumps({"error": "no such job"}), content_type="application/json")
        return job

    async def _inspect(self, request: web.Request) -> web.Response:
        return web.json_response(self._job(request).listed(self.url))

    async def _cancel(self, request: web.Request) -> web.Response:
        self._job(request)
        await self._end(request.match_info["id"], "CANCELED")
        return web.json_response({})

    async def _all(self, _: web.Request) -> web.Response:
        return web.json_response({name: job.labels for name, job in self.jobs.items() if job.stage == "RUNNING"})

    # -- the sandbox server in a Job ----------------------------------------------------------------------------

    def _box(self, request: web.Request) -> Box:
        job = self._job(request)
        if job.stage != "RUNNING":
            raise web.HTTPBadGateway(text="the job has ended")
        if request.headers.get("X-Sandbox-Token") != job.token:
            raise web.HTTPForbidden(text=json.dumps({"error": "bad sandbox token"}), content_type="application/json")
        job.used = time.time()
        return job.box

    async def _health(self, request: web.Request) -> web.Response:
        self._box(request)
        return web.json_response({"status": "ok", "protocol": 3, "version": "0.7.0"})

    async def _processes(self, request: web.Request) -> web.Response:
        self._box(request)
        return web.json_response([])

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        box = self._box(request)
        body = await request.json()
        argv = body["cmd"] if isinstance(body["cmd"], list) else ["/bin/sh", "-c", body["cmd"]]
        process = await box.run(argv, user="root", cwd=body.get("cwd", "/"), env=body.get("env", {}))
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        await response.write(b'{"event": "ping"}\n')
        out, err = await process.communicate()
        if self.faults.take("sever exec"):
            assert request.transport is not None
            request.transport.abort()
            return response
        events = [{"event": "stdout", "data": out.decode()}, {"event": "stderr", "data": err.decode()}]
        events.append({"event": "exit", "exit_code": process.returncode, "duration_ms": 1})
        for event in events:
            await response.write(json.dumps(event).encode() + b"\n")
        await response.write_eof()
        return response

    async def _stat(self, request: web.Request) -> web.Response:
        path = self._box(request).path(request.query["path"])
        if not path.is_file():
            return web.json_response({"error": "not found"}, status=404)
        size = path.stat().st_size
        return web.json_response({"name": path.name, "path": request.query["path"], "type": "file", "size": size})

    async def _read(self, request: web.Request) -> web.Response:
        path = self._box(request).path(request.query["path"])
        if not path.is_file():
            return web.json_response({"error": "not found"}, status=404)
        with path.open("rb") as file:
            file.seek(int(request.query.get("offset", "0")))
            return web.Response(body=file.read(int(request.query.get("length", "-1"))))

    async def _write(self, request: web.Request) -> web.Response:
        box, inside = self._box(request), request.query["path"]
        data = await request.read()
        if "offset" not in request.query:
            box.write(inside, data, "root")
            return web.json_response({})
        if not box.path(inside).exists():
            box.write(inside, b"", "root")
        with box.path(inside).open("r+b") as file:
            file.seek(int(request.query["offset"]))
            file.write(data)
            if "truncate_to" in request.query:
                file.truncate(int(request.query["truncate_to"]))
        return web.json_response({})
