"""How one route is described: next to where it is registered, in one call of :func:`operation`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from drivetrain.errors import ConfigError

Shape = Any
"""What a body looks like: a type that msgspec knows, a JSON schema (a dict), a :class:`Tagged` struct, :class:`Events`,
a tuple of shapes (any of them), or a list of one shape (an array of it)."""


class Tagged(msgspec.Struct, frozen=True):
    """A struct that is told apart by a field ``type``, which was read before; ``usual`` when that is missing."""

    tag: str
    struct: type
    usual: bool = False


class Events(msgspec.Struct, frozen=True):
    """Server-sent events: each is described, as OpenAPI 3.2 does it. ``data`` of one is JSON of a shape, or the text
    ``closing``; comments and bare newlines may come between them."""

    payload: Any
    description: str
    closing: str = ""


JSON = "application/json"
METHODS = ("GET", "POST", "DELETE", "PUT", "PATCH", "HEAD")


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of the query or a header. Those of the path are read off it."""

    name: str
    place: Literal["query", "header"]
    schema: Mapping[str, Any]
    description: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What is answered with one status: a description, and a shape by media type (none = no body)."""

    description: str
    content: Mapping[str, Shape] = {}


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path.

    ``body`` is the JSON request body, ``may_omit_body`` whether it may be left out. ``answers`` are by status, errors
    of the surface aside; ``errors`` are the statuses of these. ``public``: no key is needed. ``shared``: others
    describe the same route, and which of them answers depends on the request. ``path_schema`` narrows the path's
    parameters, text otherwise.
    """

    method: str
    path: str
    summary: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    path_schema: Mapping[str, Mapping[str, Any]] = {}
    body: Shape = None
    may_omit_body: bool = False
    answers: Mapping[int, Answer] = {}
    errors: tuple[int, ...] = ()
    error: Shape = None
    """Its shape where it is not the surface's own."""
    public: bool = False
    shared: bool = False


def operation(
    route: str,
    summary: str,
    answer: Shape = None,
    *,
    status: int = 200,
    media: str = JSON,
    errors: Sequence[int] = (),
    **more: Any,
) -> Operation:
    """Describe a route.

    Args:
        route: method and path as they are registered, e.g. ``"GET /admin/sessions/{id}"``.
        summary: one line.
        answer: shape of what is answered when all goes well; None = no body.
        status: of that answer.
        media: type of that answer.
        errors: further statuses in the surface's error shape; 401 and 500 are every route's.
        more: fields of :class:`Operation`.

    Raises:
        ConfigError: the route is not a method and a path.
    """
    method, _, path = route.partition(" ")
    if method not in METHODS or not path.startswith("/"):
        raise ConfigError(f"{route!r} is no route.", fix="Give a method and a path: 'GET /admin/health'.")
    said = Answer(description=summary, content={} if answer is None else {media: answer})
    keyed = () if more.get("public") else (401,)
    return Operation(
        method=method,
        path=path,
        summary=summary,
        answers={status: said, **more.pop("answers", {})},
        errors=tuple(sorted({*keyed, 500, *errors})),
        **more,
    )
