"""What an engine or the journal did wrong, as a refusal; what it returned, checked before it is believed."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import numpy as np

from drivetrain.engines.protocol import (
    Completion,
    ContextOverflow,
    EngineError,
    EngineFinish,
    EngineMalformed,
)
from drivetrain.gateway.refusal import Refusal, RefusalCode
from drivetrain.journal.errors import JournalBlocked, JournalError
from drivetrain.trace.turn import Ids, pack_ids, pack_logprobs

_BY_STATUS: dict[int, RefusalCode] = {
    408: "engine_timeout",
    429: "rate_limited",
    500: "engine_failed",
    504: "engine_timeout",
}


def refusal_of(error: EngineError) -> Refusal:
    """An engine's failure, keeping its status where a harness may see it and its Retry-After (design section 5).

    Any other 4xx says that this call can never succeed: 400, never retried.
    """
    if isinstance(error, ContextOverflow):
        return overflow(error.prompt_tokens, error.context_length)
    status = error.status or 0
    code: RefusalCode
    if isinstance(error, EngineMalformed):
        code = "engine_malformed"
    elif status in _BY_STATUS:
        code = _BY_STATUS[status]
    else:
        code = "engine_unavailable" if error.retryable and not 400 <= status < 500 else "engine_refused"
    said = " ".join(str(part) for part in (error.status, error.kind) if part)
    what = f"the engine failed ({said}): {error.what}" if said else f"the engine failed: {error.what}"
    return Refusal(code, what, fix=error.fix, retry_after_s=error.retry_after_s)


def journal_refusal(error: JournalError) -> Refusal:
    """A journal that does not commit: the call may succeed later, and nothing of it was kept or sent."""
    wait = error.retry_after_s if isinstance(error, JournalBlocked) else None
    return Refusal("journal_unavailable", error.what, fix=error.fix, retry_after_s=wait)


def overflow(prompt_tokens: int, context_length: int) -> Refusal:
    """The prompt leaves no room; each API has its own words for it."""
    return Refusal(
        "context_length_exceeded",
        f"This model's maximum context length is {context_length} tokens. However, your messages resulted in "
        f"{prompt_tokens} tokens.",
        fix="Please reduce the length of the messages.",
        param="messages",
        tokens=(prompt_tokens, context_length),
    )


def sound(completion: Completion) -> Completion:
    """A completion whose ids can be served.

    Its log-probs may still be unusable: such a turn is served, never trained, and names the reason (design invariant
    4, :func:`drivetrain.trace.validate.check_turn`). Log-probs that are no list of numbers count as none, and so do
    those of a completion of which the engine counted more or fewer tokens (case row B1).

    Raises:
        Refusal: the ids are no list of token ids, there are none, or the generation was aborted.
    """
    if completion.finish_reason == "abort":
        raise Refusal("engine_unavailable", "the engine aborted the generation.")
    if completion.finish_reason not in get_args(EngineFinish):
        raise _malformed(f"finish reason {str(completion.finish_reason)[:40]!r}")
    ids = _array(completion.token_ids)
    if ids is None or ids.ndim != 1:
        raise _malformed("no list of token ids")
    if ids.size == 0:
        raise _malformed("no token")
    if ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() > np.iinfo(np.int32).max:
        raise _malformed("token ids that are no positive 32-bit integers")
    logprobs = _array(completion.logprobs, np.float32)
    lost = completion.reported_tokens not in (None, ids.size)  # some ids did not arrive: which, nobody knows
    if logprobs is None or logprobs.ndim != 1 or lost:
        logprobs = np.zeros(0, dtype=np.float32)
    return msgspec.structs.replace(completion, token_ids=pack_ids(ids).tolist(), logprobs=pack_logprobs(logprobs))


def prompt_difference(sent: Ids, completion: Completion) -> dict[str, int]:
    """Where the prompt that an engine sampled behind leaves the one it was sent: lengths, and the first position that
    differs. Empty when it does not, or when the engine was given ids to sample behind."""
    if completion.prompt_ids is None:
        return {}
    seen = _array(completion.prompt_ids)
    if seen is None or seen.ndim != 1:
        seen = np.zeros(0)
    if np.array_equal(seen, sent):
        return {}
    differs = np.flatnonzero(seen[: len(sent)] != sent[: len(seen)])
    at = int(differs[0]) if differs.size else min(len(seen), len(sent))
    return {"sent_tokens": len(sent), "seen_tokens": len(seen), "differs_at": at}


def _array(values: Any, dtype: Any = None) -> np.ndarray[Any, Any] | None:
    try:
        return np.asarray(values, dtype=dtype)
    except (TypeError, ValueError, OverflowError):
        return None


def _malformed(what: str) -> Refusal:
    return Refusal("engine_malformed", f"the engine failed: its answer holds {what}.")
