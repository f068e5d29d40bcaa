"""The admin surface described: what its routes answer. Bodies of requests are the structs that decode them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from drivetrain.gateway.admin import OpenRequest
from drivetrain.gateway.admin_fence import PauseRequest, ResumeRequest
from drivetrain.gateway.budgets import BudgetName
from drivetrain.gateway.dialects.shapes import shown
from drivetrain.gateway.fence_types import FenceState, FenceStatus
from drivetrain.gateway.openapi.document import Chapter
from drivetrain.gateway.openapi.operation import Operation, Parameter, operation
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.refusal import RefusalCode
from drivetrain.trace.provenance import SessionProvenance
from drivetrain.trace.sample import HarnessTrace
from drivetrain.trace.turn import Label


class ErrorDetail(msgspec.Struct, forbid_unknown_fields=True):
    """Why: in words, as a class of errors, the field at fault, a code."""

    message: str
    type: Literal["server_error", "invalid_request_error"]
    param: str | None
    code: RefusalCode


class Error(msgspec.Struct, forbid_unknown_fields=True):
    """What is answered instead."""

    error: ErrorDetail


class FenceErrorDetail(msgspec.Struct, forbid_unknown_fields=True):
    """Why the gate did not move; ``in_flight`` calls were still running (``fence_timeout``)."""

    type: Literal["config_error", "fence_busy", "engine_failed", "fence_timeout"]
    message: str
    in_flight: int | msgspec.UnsetType = msgspec.UNSET


class FenceError(msgspec.Struct, forbid_unknown_fields=True):
    """A pause or a resume that did not come about, and the gate as it is."""

    error: FenceErrorDetail
    fence: FenceStatus


class SessionSummary(msgspec.Struct, forbid_unknown_fields=True):
    """A session. ``retained_bytes`` of its turns in memory; ``events`` by kind, of this process's life; ``created_at``
    in seconds since the epoch; ``stop_condition``: the budget that was used up when a call came, the latest."""

    session_id: str
    state: Literal["open", "sealed"]
    labels: dict[str, str]
    policy: SessionPolicy
    turns: int
    prompt_tokens: int
    completion_tokens: int
    stop_condition: BudgetName | None
    in_flight: int
    retained_bytes: int
    events: dict[str, int]
    created_at: float


class SessionWithKey(SessionSummary, forbid_unknown_fields=True):
    """A session and its secret key, which is told once."""

    api_key: str


class DamagedSession(msgspec.Struct, forbid_unknown_fields=True):
    """A sealed session whose records in the journal are not what was written."""

    session_id: str
    state: Literal["sealed"]
    error: str


class SessionList(msgspec.Struct, forbid_unknown_fields=True):
    """Every session, open ones first."""

    sessions: list[dict[str, Any]]


class Rows(msgspec.Struct, forbid_unknown_fields=True):
    """Training rows of a session."""

    rows: list[HarnessTrace]


class Health(msgspec.Struct, forbid_unknown_fields=True):
    """The gateway now. ``journal`` is ``ok`` or why nothing can be committed."""

    status: Literal["ok", "stopping"]
    model: str
    engine: str
    policy_version: int
    fence: FenceState
    journal: str
    context_length: int
    recovered_sessions: int


PolicyFields = shown(SessionPolicy, strict=True, model=(str | msgspec.UnsetType, msgspec.UNSET))
"""A policy as it is asked for (:func:`drivetrain.gateway.policy.read_policy`): every field may be left out, others are
refused."""
_LABELS = Parameter(
    name="label",
    place="query",
    schema=msgspec.json.schema(list[Label]),
    description="Which turns are trained; without any, those that are trained by default.",
)
_LOST = (404, 503)
"""No such session; the journal takes nothing."""

OPERATIONS: tuple[Operation, ...] = (
    operation(
        "POST /admin/sessions",
        "Open a session; its key is told once.",
        SessionWithKey,
        status=201,
        body=OpenRequest,
        may_omit_body=True,
        errors=(400, 413, 429, 503),
    ),
    operation("GET /admin/sessions", "Every session.", SessionList, errors=(503,)),
    operation("GET /admin/sessions/{id}", "One session.", SessionSummary, errors=_LOST),
    operation(
        "GET /admin/sessions/{id}/rows",
        "Training rows of a session as it is now.",
        Rows,
        parameters=(_LABELS,),
        errors=(400, *_LOST),
    ),
    operation("GET /admin/sessions/{id}/provenance", "Where its turns come from.", SessionProvenance, errors=_LOST),
    operation(
        "POST /admin/sessions/{id}/provenance/config",
        "Record SHA-256 digests (hex) of its harness's configuration files, by name.",
        SessionProvenance,
        body=dict[str, str],
        errors=(400, 413, *_LOST),
    ),
    operation("DELETE /admin/sessions/{id}", "Seal a session: its key answers 409.", SessionSummary, errors=_LOST),
    operation(
        "DELETE /admin/sessions/{id}/key",
        "Revoke a session's key. Admin scope.",
        SessionSummary,
        errors=(403, *_LOST),
    ),
    operation(
        "POST /admin/sessions/{id}/key",
        "Replace a session's key; the new one is told once. Admin scope.",
        SessionWithKey,
        errors=(403, 409, *_LOST),
    ),
    operation("GET /admin/health", "The gateway now.", Health),
    operation(
        "POST /admin/pause",
        "Close the weight-sync gate.",
        FenceStatus,
        body=PauseRequest,
        may_omit_body=True,
        errors=(400, 409, 413, 503, 504),
        error=(Error, FenceError),
    ),
    operation(
        "POST /admin/resume",
        "Open the gate again, with new weights.",
        FenceStatus,
        body=ResumeRequest,
        errors=(400, 409, 413, 503),
        error=(Error, FenceError),
    ),
    operation("GET /admin/fence", "The gate now.", FenceStatus),
    operation("GET /admin/openapi.json", "This document.", {"type": "object"}),
)

ADMIN = Chapter(
    name="admin",
    description="Sessions and the weight-sync gate, for a trainer: the trainer key, or the admin key.",
    operations=OPERATIONS,
    error=Error,
    surface="admin",
    raw={
        (OpenRequest, "policy"): PolicyFields,
        (SessionList, "sessions"): [(SessionSummary, DamagedSession)],
    },
)


def part_chapter(name: str, operations: tuple[Operation, ...]) -> Chapter:
    """What shares the admin surface (:class:`drivetrain.gateway.admin.AdminPart`)."""
    return Chapter(
        name=name, description="Shares the admin surface.", operations=operations, error=Error, surface="admin"
    )
