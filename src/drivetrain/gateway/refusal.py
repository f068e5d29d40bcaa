"""Why a call was not served. Dialects turn a refusal into their own error body."""

from __future__ import annotations

from typing import Literal

from drivetrain.errors import DrivetrainError
from drivetrain.gateway.redact import redact

RefusalCode = Literal[
    "invalid_api_key",
    "api_key_expired",
    "forbidden",
    "session_sealed",
    "not_found",
    "invalid_request",
    "request_timeout",
    "request_too_large",
    "session_too_large",
    "idempotency_key_reused",
    "rate_limited",
    "too_many_calls",
    "too_many_sessions",
    "overloaded",
    "shutting_down",
    "budget_exhausted",
    "unsupported",
    "context_length_exceeded",
    "tools_dropped",
    "engine_unavailable",
    "engine_failed",
    "engine_malformed",
    "engine_timeout",
    "engine_refused",
    "journal_unavailable",
    "internal_error",
    "cancelled",
]

_STATUS: dict[RefusalCode, int] = {
    "invalid_api_key": 401,
    "api_key_expired": 401,
    "forbidden": 403,
    "session_sealed": 409,
    "not_found": 404,
    "invalid_request": 400,
    "request_timeout": 408,
    "request_too_large": 413,
    "session_too_large": 413,
    "idempotency_key_reused": 422,
    "rate_limited": 429,
    "too_many_calls": 429,
    "too_many_sessions": 429,
    "overloaded": 503,
    "shutting_down": 503,
    "budget_exhausted": 400,  # 429 and 5xx are asked again, by some harnesses for ever (harnesses.md section 6)
    "unsupported": 400,
    "context_length_exceeded": 400,
    "tools_dropped": 400,
    "engine_unavailable": 503,
    "engine_failed": 500,
    "engine_malformed": 503,  # of the statuses for a bad upstream the one that every harness was seen to retry
    "engine_timeout": 504,
    "engine_refused": 400,
    "journal_unavailable": 503,
    "internal_error": 500,
    "cancelled": 503,
}


class Refusal(DrivetrainError):
    """A call that gets an error reply.

    ``param`` names the field at fault. 5xx codes are worth a retry, deterministic failures are never 5xx (design
    section 5, "Errors"). ``retry_after_s`` is sent as Retry-After, in whole seconds. ``tokens`` are the prompt's tokens
    and the limit, of a context overflow: each API has its own words for it.
    """

    def __init__(
        self,
        code: RefusalCode,
        what: str,
        *,
        fix: str = "",
        param: str | None = None,
        retry_after_s: float | None = None,
        tokens: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(redact(what), fix=fix)  # it may quote the request
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.tokens = tokens

    @property
    def status(self) -> int:
        """HTTP status."""
        return _STATUS[self.code]

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return self.status in (408, 429) or self.status >= 500
