"""Why a call was not served. Dialects turn a refusal into their own error body."""

from __future__ import annotations

from typing import Literal

from drivetrain.errors import DrivetrainError

RefusalCode = Literal[
    "invalid_api_key",
    "session_sealed",
    "not_found",
    "invalid_request",
    "request_too_large",
    "unsupported",
    "context_length_exceeded",
    "tools_dropped",
    "engine_unavailable",
    "engine_refused",
    "journal_unavailable",
    "cancelled",
]

_STATUS: dict[RefusalCode, int] = {
    "invalid_api_key": 401,
    "session_sealed": 409,
    "not_found": 404,
    "invalid_request": 400,
    "request_too_large": 413,
    "unsupported": 400,
    "context_length_exceeded": 400,
    "tools_dropped": 400,
    "engine_unavailable": 503,
    "engine_refused": 400,
    "journal_unavailable": 503,
    "cancelled": 503,
}


class Refusal(DrivetrainError):
    """A call that gets an error reply.

    ``param`` names the field at fault. 5xx codes are worth a retry, deterministic failures are never 5xx (design
    section 5, "Errors").
    """

    def __init__(self, code: RefusalCode, what: str, *, fix: str = "", param: str | None = None) -> None:
        super().__init__(what, fix=fix)
        self.code = code
        self.param = param

    @property
    def status(self) -> int:
        """HTTP status."""
        return _STATUS[self.code]

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return self.status >= 500
