"""Every time limit of a cloud sandbox, in one place because their order is what matters. Seconds.

From the inside out, each ends before the next so that the inner one can still be reported:

* a command's deadline (the agent's, then the grader's) is kept by the supervisor inside, and by the owner
  ``KILL_SLACK_S`` later;
* the sandbox's ``ttl_s`` is kept by the supervisor, and by the owner's clock;
* the provider's lifetime is a lease of ``LEASE_S`` that the owner extends every ``RENEW_S`` while it lives, never
  beyond ``ttl_s + TTL_GRACE_S``: a box whose owner died is gone within the lease;
* one question waits ``LONG_POLL_S`` at most inside, and the client gives up on it after ``CALL_S``.
"""

from __future__ import annotations

import math

LONG_POLL_S = 20.0
CALL_S = 50.0
KILL_SLACK_S = 15.0
TRANSFER_CALL_S = 120.0
CANCEL_S = 60.0
RENEW_S = 60.0
LEASE_S = 300.0
TTL_GRACE_S = 60.0


def lease(left_s: float) -> int:
    """The provider's lifetime to ask for when ``left_s`` seconds of the time to live are left; whole seconds."""
    return max(1, math.ceil(min(LEASE_S, left_s + TTL_GRACE_S)))
