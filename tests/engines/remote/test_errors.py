"""What a refusal means: status, kind, Retry-After, context overflow."""

from __future__ import annotations

import json

import pytest

from drivetrain.engines.protocol import ContextOverflow, EngineError
from drivetrain.engines.remote import as_overflow, error_of_reply, says_overflow


@pytest.mark.parametrize(
    ("status", "body", "kind", "said", "retryable"),
    [
        (
            404,
            {"error": {"message": "The model `x` does not exist.", "type": "NotFoundError"}},
            "NotFoundError",
            "`x`",
            0,
        ),
        (
            400,
            {"object": "error", "message": "bad", "type": "BadRequestError", "code": 400},
            "BadRequestError",
            "bad",
            0,
        ),
        (401, {"error": "Unauthorized"}, "", "Unauthorized", 0),
        (404, {"detail": "Not Found"}, "", "Not Found", 0),
        (422, {"detail": [{"loc": ["body"], "msg": "Field required"}]}, "", "Field required", 0),
        (
            500,
            {"error": {"message": "EngineDeadError", "type": "InternalServerError"}},
            "InternalServerError",
            "Dead",
            1,
        ),
        (429, {"error": {"message": "slow down", "code": "rate_limit"}}, "rate_limit", "slow down", 1),
        (501, {}, "", "", 0),
        (503, [], "", "", 1),
        (529, "overloaded", "", "overloaded", 1),
    ],
)
def test_json_errors(status: int, body: object, kind: str, said: str, retryable: int) -> None:
    error = error_of_reply(status, json.dumps(body).encode(), {"Content-Type": "application/json"})
    assert (error.status, error.kind, error.retryable) == (status, kind, bool(retryable))
    assert said in error.what and str(status) in error.what


def test_a_page_is_named_and_not_quoted() -> None:
    page = b"<html><head><title>502 Bad\n Gateway</title></head><body>" + b"x" * 9999
    error = error_of_reply(502, page, {"Content-Type": "text/html"})
    assert error.what == "the engine server answered 502: a page (502 Bad Gateway)"
    assert error.retryable
    assert len(error_of_reply(500, b"y" * 9999).what) < 400


def test_a_redirect_is_never_followed() -> None:
    error = error_of_reply(307, b"", {"Location": "http://elsewhere/"})
    assert not error.retryable and "redirect" in error.what and "elsewhere" not in error.what


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("0.5", 0.5), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("-3", None), ("nan", None)],
)
def test_retry_after(header: str, seconds: float | None) -> None:
    assert error_of_reply(429, b"{}", {"Retry-After": header}).retry_after_s == seconds


OVERFLOWS = [
    # vLLM 0.31: completions, generate
    "This model's maximum context length is 4096 tokens. However, you requested 1 output tokens and your prompt "
    "contains at least 4096 input tokens, for a total of at least 4097 tokens.",
    "The decoder prompt (length 4096) plus the number of requested output tokens (at least 1) is longer than the "
    "maximum model length of 4096.",
    # SGLang
    "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    # OpenAI's code
    "context_length_exceeded",
]


@pytest.mark.parametrize("text", OVERFLOWS)
def test_a_context_overflow_is_recognised(text: str) -> None:
    assert says_overflow(text)
    error = error_of_reply(400, json.dumps({"error": {"message": text}}).encode())
    found = as_overflow(error, prompt_tokens=9000, context_length=8192)
    assert isinstance(found, ContextOverflow)
    assert (found.prompt_tokens, found.context_length, found.status) == (9000, 8192, 400)


@pytest.mark.parametrize("text", ["Token id 99 is out of vocabulary", "temperature must be in [0, 2], got 1000.0."])
def test_another_refusal_is_none(text: str) -> None:
    error = error_of_reply(400, json.dumps({"error": {"message": text}}).encode())
    assert as_overflow(error, prompt_tokens=10, context_length=8192) is error


def test_a_full_prompt_that_is_refused_is_an_overflow_whatever_the_words() -> None:
    error = EngineError("the engine server answered 400: nein", status=400, retryable=False)
    assert isinstance(as_overflow(error, prompt_tokens=8192, context_length=8192), ContextOverflow)
    busy = EngineError("the engine server answered 503: busy", status=503)
    assert as_overflow(busy, prompt_tokens=8192, context_length=8192) is busy
