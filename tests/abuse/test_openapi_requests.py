"""Requests that the OpenAPI document allows, and requests that it does not, get answers that it promises.

A few for each operation; ``make fuzz`` sends 500 (issue 10, item 3). What a client may not see: a 5xx, a status, a
header, a media type, a body or an event that is not in the document, no answer at all; what an operator may not see: an
error in the log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from drivetrain.engines.models import ModelDir
from drivetrain.gateway.openapi.part import gateway_document
from drivetrain.tokens.codec import TokenCodec
from tests.abuse.bodies import ANTHROPIC, CHAT, GOOGLE, RESPONSES
from tests.abuse.service import Service

LONG = int(os.environ.get("DRIVETRAIN_FUZZ", "0")) // 20
HANG_S = 60.0
DOCUMENT = gateway_document()
OPERATIONS = [
    (method.upper(), path)
    for path, item in DOCUMENT["paths"].items()
    for method in item
    if method != "servers" and (LONG or not path.startswith("/v1/models/{model}:"))  # as below /v1beta
]
SERVED: dict[str, tuple[dict[str, Any], ...]] = {
    "/v1/chat/completions": CHAT.served,
    "/v1/responses": RESPONSES.served[:3],
    "/v1/responses/input_tokens": RESPONSES.served[:3],
    "/v1/messages": (ANTHROPIC.served[0], {**ANTHROPIC.served[0], "stream": True}),
    "/v1/messages/count_tokens": ANTHROPIC.served[:1],
    "/admin/sessions/{id}/provenance/config": ({"agent.json": "0" * 64},),
    "/mcp": tuple(
        {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"name": "say", "arguments": {}}}
        for method in ("initialize", "tools/list", "tools/call", "ping")
    ),
}


def count_of(method: str, path: str) -> int:
    """Requests of an operation: as many as there is to vary, fewer where another has the same large body, since the
    first one of a schema takes seconds to make."""
    said = DOCUMENT["paths"][path][method.lower()]
    if "requestBody" not in said:
        return max(8 if said["parameters"] else 3, LONG // 10)
    if path.endswith(("tokens", ":streamGenerateContent", ":countTokens")):
        return max(4, LONG)
    return max(8, LONG)


@pytest.fixture(scope="module")
def schema() -> Any:
    import schemathesis

    return schemathesis.openapi.from_dict(DOCUMENT)


@pytest.fixture
def service(tmp_path: Path, tiny_model: ModelDir, codec: TokenCodec) -> Iterator[Service]:
    with Service(tmp_path, tiny_model, codec) as service:
        yield service


def liken(case: Any, path: str, service: Service, chance: int, *, whole: bool) -> None:
    """Make it a request that reaches further: of a session that is there, or a good body with one field of its own;
    as a ``whole`` a good one."""
    if "id" in (case.path_parameters or {}):
        case.path_parameters["id"] = service.session_id
    bodies = (GOOGLE.served[0],) if "models/" in path else SERVED.get(path, ())
    if bodies and whole:
        case.body, case.query, case.media_type = dict(bodies[0]), {}, "application/json"
    elif bodies and isinstance(case.body, dict):
        body = dict(bodies[chance % len(bodies)])
        for name in sorted(case.body)[chance % 5 :][:1]:
            body[name] = case.body[name]
        case.body = body


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=lambda part: part)
def test_answers_are_those_promised(
    method: str, path: str, schema: Any, service: Service, complaints: list[str]
) -> None:
    from schemathesis import GenerationMode, checks
    from schemathesis.specs.openapi import checks as openapi

    promised = [
        checks.not_a_server_error,
        openapi.status_code_conformance,
        openapi.content_type_conformance,
        openapi.response_headers_conformance,
        openapi.response_schema_conformance,
    ]
    operation = schema[path][method]
    surface = "admin" if path.startswith("/admin") else "harness"
    session = requests.Session()
    statuses: dict[int, int] = {}

    @settings(
        max_examples=count_of(method, path),
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=operation.as_strategy(GenerationMode.POSITIVE) | operation.as_strategy(GenerationMode.NEGATIVE),
        likened=st.booleans(),
        chance=st.integers(0, 99),
    )
    def holds(case: Any, likened: bool, chance: int) -> None:
        if likened or not statuses:
            liken(case, path, service, chance, whole=not statuses)
        complaints.clear()
        headers = {"Authorization": f"Bearer {service.keys[surface]}"}
        response = case.call(base_url=service.urls[surface], session=session, headers=headers, timeout=HANG_S)
        statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
        case.validate_response(response, checks=promised)
        assert not complaints

    with session:
        if path == "/admin/resume":
            service.run(service.gateway.fence.pause("drain", deadline_s=60, owner="admin"))
        holds()
    print(f"{method} {path}: {dict(sorted(statuses.items()))}")
    if sum(statuses.values()) >= 8:
        assert set(statuses) & {200, 201}, "no request got further than a refusal"
