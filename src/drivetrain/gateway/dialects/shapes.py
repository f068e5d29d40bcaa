"""What a dialect's bodies look like, for the OpenAPI document: the decoder's own structs, and those of the replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from drivetrain.gateway.openapi.operation import Events


class DialectShapes(msgspec.Struct, frozen=True, kw_only=True):
    """Shapes (:data:`drivetrain.gateway.openapi.operation.Shape`) of one dialect.

    ``request`` and ``reply`` of a call, ``events`` of a stream of it; ``count_request`` and ``count``
    of a token count, ``models`` and ``model`` of the model list, None where the dialect has no such route. ``raw`` are
    fields that are decoded later (:data:`drivetrain.gateway.openapi.vocabulary.Raw`).
    """

    prefix: str
    request: Any
    reply: Any
    error: Any
    events: Events
    count_request: Any = None
    count: Any = None
    models: Any = None
    model: Any = None
    raw: Mapping[tuple[type, str], Any] = {}


def shown(struct: type[msgspec.Struct], *, strict: bool = False, **instead: tuple[Any, Any]) -> type[msgspec.Struct]:
    """A decoder's struct with other types and defaults in some fields: a default that is raw JSON has no schema.

    ``strict``: what reads it refuses other fields.
    """
    fields: list[Any] = []
    for field in msgspec.structs.fields(struct):
        kind, default = instead.get(field.name, (field.type, field.default))
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = msgspec.field(default_factory=field.default_factory)
        fields.append((field.name, kind) if default is msgspec.NODEFAULT else (field.name, kind, default))
    name = f"{struct.__name__}Fields" if strict else struct.__name__
    return msgspec.defstruct(
        name, fields, namespace={"__doc__": struct.__doc__}, kw_only=True, forbid_unknown_fields=strict
    )
