"""The page's files, what a browser may do with them, and who gets what."""

from __future__ import annotations

import hashlib
import json
import re
import typing
from pathlib import Path

import aiohttp
import pytest

from drivetrain.dashboard import model
from drivetrain.dashboard.board import Board
from drivetrain.dashboard.folder import describe_run
from drivetrain.dashboard.page import FILES, asset, security_headers
from drivetrain.dashboard.part import Dashboard
from drivetrain.dashboard.serve import folder_dashboard, gateway_parts
from drivetrain.dashboard.traces import JournalTraces, RunTraces
from drivetrain.errors import ConfigError
from drivetrain.messages import Call, Message
from drivetrain.rollout.run_dir import RunDir
from drivetrain.viewer.page import page_program
from tests.dashboard.conftest import BEARER, KEY, Reader, Serve
from tests.dashboard.simulated import RUN, Simulated
from tests.gateway.conftest import StartRig

ROOT = Path(__file__).parents[2]
FRONTEND = ROOT / "frontend" / "dashboard"
ASSETS = ROOT / "src" / "drivetrain" / "dashboard" / "assets"


def digest(folder: Path, names: list[str]) -> str:
    """As frontend/dashboard/record-sources.mjs makes it."""
    found = hashlib.sha256()
    for name in sorted(names):
        found.update(name.encode() + b"\0" + (folder / name).read_bytes() + b"\0")
    return found.hexdigest()


def test_the_built_files_are_of_these_sources() -> None:
    """After a change: ``npm ci && npm run build`` in frontend/dashboard."""
    recorded = json.loads((ASSETS / "build.json").read_text())
    sources = [f"{folder}/{path.name}" for folder in ("src", "public") for path in (FRONTEND / folder).iterdir()]
    settings = ["index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts"]
    shared = ["../../src/drivetrain/viewer/assets/1-base.css"]
    assert recorded["sources"] == digest(FRONTEND, [*sources, *settings, *shared])
    built = [path.name for path in ASSETS.iterdir() if path.name != "build.json"]
    assert recorded["assets"] == digest(ASSETS, built)
    assert set(built) == {"index.html", *FILES}


def test_the_program_is_small_and_asks_only_its_server() -> None:
    program = (ASSETS / "dashboard.js").read_text()
    assert len(program) < 60_000
    for forbidden in ("eval(", "new Function", "XMLHttpRequest", "WebSocket", "document.cookie"):
        assert forbidden not in program, forbidden
    sources = "".join(path.read_text() for path in (FRONTEND / "src").iterdir())
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent", sources, re.IGNORECASE)
    assert sources.count("document.write(") == 1  # the viewer's page, from our own server
    hosts = set(re.findall(r"https?://[^\"'`]*", program))
    assert hosts <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML", "http://www.w3.org/1999/xhtml"}
    assert "url(" not in (ASSETS / "dashboard.css").read_text()


def test_the_page_names_the_fields_that_are_sent() -> None:
    text = (FRONTEND / "src" / "model.ts").read_text()
    pairs = {"Rollout": model.RolloutView, "Run": model.RunView, "Trouble": model.Trouble, "Summary": model.Summary,
             "Message": model.Event}  # fmt: skip
    for name, struct in pairs.items():
        (body,) = re.findall(rf"export interface {name} {{\n(.*?)\n}}", text, re.DOTALL)
        named = set(re.findall(r"^  (\w+)\??:", body, re.MULTILINE))
        unused = {"Run": {"started"}}.get(name, set())
        assert named == set(struct.__struct_fields__) - unused, name
    (phases,) = re.findall(r"export type Phase = (.*);", text)
    assert set(re.findall(r'"(\w+)"', phases)) == set(typing.get_args(model.Phase))
    assert f"export const VERSION = {model.VERSION};" in text


def test_the_policy_allows_nothing_else() -> None:
    plain = dict(part.split(" ", 1) for part in security_headers()["Content-Security-Policy"].split("; "))
    assert plain["default-src"] == "'none'" and plain["connect-src"] == plain["script-src"] == "'self'"
    assert "unsafe" not in str(plain) and plain["frame-ancestors"] == "'none'"
    trace = security_headers(trace=True)["Content-Security-Policy"]
    assert "sha256-" in trace and "unsafe" not in trace and len(page_program()) > 0


async def test_the_page_needs_no_key_and_holds_no_data(serve: Serve, http: aiohttp.ClientSession) -> None:
    traces = JournalTraces(Path("nowhere"), None)
    url = await serve([Dashboard(Board(RUN), Simulated(8), traces, tick_s=3600).part()])
    for path in ("/dashboard", "/dashboard/trace/anything", *(f"/dashboard/{name}" for name in FILES)):
        async with http.get(url + path) as response:
            assert response.status == 200, path
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert "default-src 'none'" in response.headers["Content-Security-Policy"]
            assert RUN.name.encode() not in await response.read()
            tag = response.headers["ETag"]
        async with http.get(url + path, headers={"If-None-Match": tag}) as response:
            assert response.status == 304
    for path in ("/dashboard/build.json", "/dashboard/index.html", "/dashboard/../part.py", "/dashboard/x/y", "/"):
        async with http.get(url + path, headers=BEARER) as response:
            assert response.status == 404, path
        async with http.get(url + path) as response:
            assert response.status in (401, 404), path


@pytest.mark.parametrize("path", ["/admin/events", "/admin/traces/fix.a.0"])
async def test_what_was_recorded_needs_a_key(serve: Serve, http: aiohttp.ClientSession, run: RunDir, path: str) -> None:
    url = await serve([Dashboard(Board(describe_run(run)), Simulated(1), RunTraces(run, None), tick_s=3600).part()])
    for headers in ({}, {"x-api-key": "x" * 40}, {"Authorization": "Bearer "}):
        async with http.get(url + path, headers=headers) as response:
            assert response.status == 401 and b"fix" not in await response.read()
    for headers in (BEARER, {"x-api-key": KEY}):
        async with http.get(url + path, headers=headers) as response:
            assert response.status == 200


async def test_traces_on_demand(serve: Serve, http: aiohttp.ClientSession, run: RunDir) -> None:
    url = await serve([Dashboard(Board(describe_run(run)), Simulated(1), RunTraces(run, None), tick_s=3600).part()])
    for name in ("fix.a.0", "fix.a.2", "fix.oracle.0"):  # ended, going on, without a model call
        async with http.get(f"{url}/admin/traces/{name}", headers=BEARER) as response:
            assert response.status == 200 and response.headers["Cache-Control"] == "no-store"
            assert f"<title>{name} - drivetrain trace</title>" in await response.text()
    for name in ("nobody", "..%2F..%2Fresults.jsonl", "fix.a"):
        async with http.get(f"{url}/admin/traces/{name}", headers=BEARER) as response:
            assert response.status == 404 and "no rollout" in (await response.json())["error"]["message"]


async def test_a_gateway_shows_its_sessions(start_rig: StartRig, http: aiohttp.ClientSession) -> None:
    rig = await start_rig(["one"])
    port = await rig.server.listen_admin(0, KEY, parts=gateway_parts(rig.gateway))
    url = f"http://127.0.0.1:{port}"
    session, agent = await rig.gateway.open_session()
    await rig.gateway.serve(session, Call("test", "policy", (Message("user", "hi"),), ()), b"body")
    for path in ("/admin/events", f"/admin/traces/{session.id}", "/metrics"):
        async with http.get(url + path, headers={"x-api-key": agent}) as response:
            assert response.status == 401
    async with http.get(f"{url}/admin/traces/{session.id}", headers=BEARER) as response:
        assert response.status == 200 and session.id in await response.text()
    async with http.get(f"{url}/admin/traces/nobody", headers=BEARER) as response:
        assert response.status == 404
    async with http.get(f"{url}/admin/events", headers=BEARER) as response:
        reader = Reader(response)
        views: dict[str, model.RolloutView] = {}
        while not views.get(session.id, model.RolloutView(id="")).turns:
            views |= {view.id: view for view in (await reader.next()).event.rollouts}
    assert views[session.id].phase == "open"
    async with http.get(f"{url}/admin/sessions", headers=BEARER) as response:
        assert response.status == 200  # the surface's own routes are there as before


def contents(run: RunDir) -> dict[str, bytes]:
    """Every file, but for those that SQLite keeps beside a database while it reads it."""
    files = [
        path for path in run.path.rglob("*") if path.is_file() and path.suffix not in (".sqlite-shm", ".sqlite-wal")
    ]
    return {str(path): path.read_bytes() for path in files}


async def test_a_folder_is_served_under_a_key_of_its_own(run: RunDir, http: aiohttp.ClientSession) -> None:
    before = contents(run)
    async with folder_dashboard(run, None) as served:
        page, _, key = served.url.partition("#key=")
        assert page.startswith("http://127.0.0.1:") and key.startswith("dt-admin-")
        url = page.removesuffix("/dashboard")
        async with http.get(f"{url}/admin/events") as response:
            assert response.status == 401
        async with http.get(f"{url}/admin/events", headers={"x-api-key": key}) as response:
            assert (await Reader(response).next()).event.run == describe_run(run)
        async with http.get(f"{url}/admin/sessions", headers={"x-api-key": key}) as response:
            assert response.status == 404  # there is no gateway
        with pytest.raises(ConfigError, match="is in use"):
            async with folder_dashboard(run, None, port=int(url.rpartition(":")[2])):
                pass
    assert contents(run) == before


def test_assets_are_known_by_their_content() -> None:
    data, media, tag = asset("dashboard.js")
    assert media == "text/javascript" and tag == f'"{hashlib.sha256(data).hexdigest()[:32]}"'
