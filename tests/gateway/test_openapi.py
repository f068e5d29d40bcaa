"""The OpenAPI document: valid, complete, as committed, served behind the admin surface's key, printed by the CLI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import aiohttp
import msgspec
import pytest
from aiohttp import web
from openapi_spec_validator import OpenAPIV31SpecValidator
from typer.testing import CliRunner

from drivetrain.cli.openapi import SERVED, render
from drivetrain.dashboard.serve import gateway_parts
from drivetrain.errors import ConfigError
from drivetrain.gateway.admin import AdminPart, admin_app
from drivetrain.gateway.app import harness_app
from drivetrain.gateway.keys import AdminKeys
from drivetrain.gateway.openapi.document import Chapter, canonical, document
from drivetrain.gateway.openapi.operation import Events, Tagged, operation
from drivetrain.gateway.openapi.part import gateway_document, openapi_part
from tests.gateway.conftest import StartRig

DOCS = Path(__file__).parents[2] / "docs" / "openapi.json"
KEY = "a" * 40


def described(made: dict[str, Any]) -> set[tuple[str, str]]:
    return {(method.upper(), path) for path, item in made["paths"].items() for method in item if method != "servers"}


def registered(app: web.Application) -> set[tuple[str, str]]:
    """Every route; HEAD goes without saying where there is a GET (RFC 9110 section 9.3.2)."""
    found = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource is not None}
    assert all(("GET", path) in found for method, path in found if method == "HEAD")
    return {(method, path) for method, path in found if method != "HEAD"}


async def test_every_route_is_described_and_nothing_else(start_rig: StartRig) -> None:
    gateway = (await start_rig()).gateway
    parts = tuple(gateway_parts(gateway))
    surfaces = harness_app(gateway), admin_app(gateway, AdminKeys(KEY), (*parts, openapi_part(parts)))
    for part in parts:
        said = {(one.method, canonical(one.path)) for one in part.operations}
        routes = {(route.method, canonical(route.path)) for route in part.routes}
        assert said == routes, "AdminPart.operations describes AdminPart.routes"
    made = gateway_document(SERVED)
    assert described(made) == registered(surfaces[0]) | registered(surfaces[1])


def test_it_is_valid() -> None:
    assert [error.message for error in OpenAPIV31SpecValidator(gateway_document(SERVED)).iter_errors()] == []


def test_the_copy_in_the_documentation_is_this_one() -> None:
    assert DOCS.read_text() == render(), "run: drivetrain openapi --out docs/openapi.json"


def test_the_command_prints_it() -> None:
    from drivetrain.cli.main import app

    done = CliRunner().invoke(app, ["openapi"])
    assert (done.exit_code, json.loads(done.output)["openapi"]) == (0, "3.1.0")


async def test_a_gateway_serves_it_to_those_with_a_key(start_rig: StartRig) -> None:
    rig = await start_rig()
    url = f"http://127.0.0.1:{await rig.server.listen_admin(0, KEY, trainer_key='t' * 40)}/admin/openapi.json"
    async with aiohttp.ClientSession() as http:
        async with http.get(url) as answer:
            assert answer.status == 401
        for key in (KEY, "t" * 40):
            async with http.get(url, headers={"x-api-key": key}) as answer:
                assert (answer.status, answer.content_type) == (200, "application/json")
                assert described(await answer.json()) == described(gateway_document())


def test_a_part_describes_its_own_routes() -> None:
    one = operation("GET /numbers/{name}", "A number.", list[int], media="text/plain", errors=(404,))
    made = gateway_document([one])
    assert described(made) - described(gateway_document()) == {("GET", "/numbers/{name}")}
    said = made["paths"]["/numbers/{name}"]["get"]
    assert set(said["responses"]) == {"200", "401", "404", "500"} and said["tags"] == ["dashboard and metrics"]
    assert "application/json" not in said["responses"]["200"]["content"]
    public = gateway_document([operation("GET /page", "A page.", public=True)])["paths"]["/page"]["get"]
    assert public["security"] == [] and "401" not in public["responses"]
    assert AdminPart(routes=(web.get("/page", cast(Any, None)),)).operations == ()


def test_no_two_structs_and_no_two_operations_share_a_name() -> None:
    one, other = (msgspec.defstruct("Thing", [(name, int)]) for name in ("a", "b"))
    get = operation("GET /a", "", one)
    with pytest.raises(ConfigError, match="two structs are called Thing"):
        document([chapter(get), chapter(operation("GET /b", "", other))])
    document([chapter(get), chapter(operation("GET /b", "", other), prefix="Other")])
    with pytest.raises(ConfigError, match="GET /a is described twice"):
        document([chapter(get), chapter(get)])
    with pytest.raises(ConfigError, match="'/a' is no route"):
        operation("/a", "")


def chapter(*operations: Any, prefix: str = "", raw: Any = None) -> Chapter:
    return Chapter(name="x", description="", operations=operations, error={}, prefix=prefix, raw=raw or {})


def test_shapes() -> None:
    """What a type does not say is taken from what is said beside it: raw fields, tags, events, alternatives."""
    inner = msgspec.defstruct("_Inner", [("n", int)])
    outer = msgspec.defstruct("_Outer", [("items", list[msgspec.Raw]), ("text", str | None, None)])
    body = operation("POST /a", "", Events(inner, "Each.", "[END]"), body=outer)
    made = document([chapter(body, prefix="My", raw={(outer, "items"): [(Tagged("x", inner), int)]})])
    ref = {"$ref": "#/components/schemas/MyInner"}
    items = made["components"]["schemas"]["MyOuter"]["properties"]["items"]["items"]["anyOf"]
    assert items[0]["allOf"][1] == ref and items[0]["allOf"][0]["required"] == ["type"]
    assert items[1] == {"type": "integer"}
    event = made["paths"]["/a"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    closing, data = event["properties"]["data"]["anyOf"]
    assert closing == {"const": "[END]"} and data["contentSchema"] == ref
