"""Operations put together to one OpenAPI 3.1 document (https://spec.openapis.org/oas/v3.1.0)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Literal

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.gateway.openapi.operation import JSON, Answer, Operation, Shape
from drivetrain.gateway.openapi.vocabulary import Raw, Vocabulary

VERSION = "1"
"""Of what is described; it goes up when a client that relied on it has to change."""
_PARAMETER = re.compile(r"\{(\w+)(?::(?:[^{}]|\{[^{}]*\})+)?\}")
_KEYS = ("bearer", "xApiKey", "xGoogApiKey", "queryKey")
_RETRY = {"Retry-After": {"description": "Seconds after which to come back.", "schema": {"type": "integer"}}}
_FINAL = {
    "x-should-retry": {"description": "The same request fails again.", "schema": {"type": "string", "enum": ["false"]}}
}

_SERVERS = {
    "harness": {"url": "http://127.0.0.1:8300", "description": "Surface for harnesses: drivetrain serve --port."},
    "admin": {"url": "http://127.0.0.1:8301", "description": "Admin surface: drivetrain serve --admin-port."},
}


class Chapter(msgspec.Struct, frozen=True, kw_only=True):
    """Operations that share a tag, a surface, the shape of their errors and their names: structs are called ``prefix``
    and their own name."""

    name: str
    description: str
    operations: tuple[Operation, ...]
    error: Shape
    prefix: str = ""
    surface: Literal["harness", "admin"] = "harness"
    raw: Raw = {}


def canonical(path: str) -> str:
    """A route's path without the patterns of its parts: ``/v1/models/{model:.+}`` is ``/v1/models/{model}``."""
    return _PARAMETER.sub(r"{\1}", path)


def document(chapters: Iterable[Chapter]) -> dict[str, Any]:
    """The document.

    Raises:
        ConfigError: two operations have the same method and path, or two different structs the same name.
    """
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {}
    tags = []
    for chapter in chapters:
        vocabulary = Vocabulary(chapter.prefix, _shapes(chapter), chapter.raw)
        for name, schema in vocabulary.components.items():
            if schemas.setdefault(name, schema) != schema:
                raise ConfigError(f"two structs are called {name}.", fix="Give one of their chapters another prefix.")
        for one in chapter.operations:
            path = canonical(one.path)
            item = paths.setdefault(path, {"servers": [_SERVERS[chapter.surface]]})
            made = _operation(one, chapter, vocabulary)
            known = item.setdefault(one.method.lower(), made)
            if known is made:
                continue
            if not one.shared:
                raise ConfigError(f"{one.method} {path} is described twice.", fix="Describe it once.")
            _merge(known, made)
        tags.append({"name": chapter.name, "description": chapter.description})
    made = {
        "openapi": "3.1.0",
        "info": {
            "title": "drivetrain gateway",
            "version": VERSION,
            "description": "What a harness is served, in four APIs, and the admin surface, which has keys and an "
            "address of its own. Unknown fields of a request are ignored unless its schema forbids them.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": tags,
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": _security_schemes()},
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(made))  # defaults may be tuples
    return plain


def _merge(known: dict[str, Any], other: Mapping[str, Any]) -> None:
    """The same route in another API: any of the answers."""
    known["tags"] += other["tags"]
    known["parameters"] += [one for one in other["parameters"] if one not in known["parameters"]]
    for status, answer in other["responses"].items():
        before = known["responses"].setdefault(status, answer)
        for media, said in answer.get("content", {}).items():
            schema = before["content"][media]["schema"]
            if schema != said["schema"]:
                either = schema["anyOf"] if set(schema) == {"anyOf"} else [schema]
                before["content"][media]["schema"] = {"anyOf": [*either, said["schema"]]}


def _shapes(chapter: Chapter) -> Iterator[Shape]:
    yield chapter.error
    for one in chapter.operations:
        yield from (one.body, one.error)
        for answer in one.answers.values():
            yield from answer.content.values()


def _operation(one: Operation, chapter: Chapter, vocabulary: Vocabulary) -> dict[str, Any]:
    path = canonical(one.path)
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": dict(one.path_schema.get(name, _SOME_TEXT))}
        for name in _PARAMETER.findall(path)
    ]
    for said in one.parameters:
        of = {"name": said.name, "in": said.place, "required": False, "schema": dict(said.schema)}
        parameters.append({**of, "description": said.description} if said.description else of)
    made: dict[str, Any] = {
        "operationId": re.sub(r"[^a-z0-9]+", "_", f"{one.method} {path}".lower()).strip("_"),
        "tags": [chapter.name],
        "summary": one.summary,
        "security": [] if one.public else [{name: []} for name in _KEYS],
        "parameters": parameters,
        "responses": _responses(one, chapter, vocabulary),
    }
    if one.description:
        made["description"] = one.description
    if one.body is not None:
        content = {JSON: {"schema": vocabulary.schema(one.body)}}
        made["requestBody"] = {"required": not one.may_omit_body, "content": content}
    return made


_SOME_TEXT = {"type": "string", "minLength": 1}


def _responses(one: Operation, chapter: Chapter, vocabulary: Vocabulary) -> dict[str, Any]:
    said = {status: _response(answer, vocabulary) for status, answer in one.answers.items()}
    error = vocabulary.schema(one.error or chapter.error)
    for status in one.errors:
        headers = _RETRY if status in (429, 503) else {} if status >= 500 or status == 408 else _FINAL
        refused = {"description": HTTPStatus(status).phrase, "content": {JSON: {"schema": error}}}
        said[status] = {**refused, "headers": headers} if headers else refused
    return {str(status): said[status] for status in sorted(said)}


def _response(answer: Answer, vocabulary: Vocabulary) -> dict[str, Any]:
    said: dict[str, Any] = {"description": answer.description}
    if answer.content:
        said["content"] = {media: {"schema": vocabulary.schema(shape)} for media, shape in answer.content.items()}
    return said


def _security_schemes() -> dict[str, Any]:
    """A session's key opens the surface for harnesses, the trainer and admin keys open the admin surface."""
    return {
        "bearer": {"type": "http", "scheme": "bearer"},
        "xApiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        "xGoogApiKey": {"type": "apiKey", "in": "header", "name": "x-goog-api-key"},
        "queryKey": {"type": "apiKey", "in": "query", "name": "key"},
    }
