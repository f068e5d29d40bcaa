"""The order of time limits."""

from __future__ import annotations

import pytest

from drivetrain.sandboxes.remote import times
from drivetrain.sandboxes.remote.labels import DEADLINE_GRACE_S


def test_each_limit_ends_before_the_next() -> None:
    assert times.LONG_POLL_S < times.CALL_S < times.RENEW_S < times.LEASE_S
    assert times.KILL_SLACK_S < times.TTL_GRACE_S < DEADLINE_GRACE_S
    assert times.RENEW_S * 4 < times.LEASE_S, "a few failed renewals must not end a sandbox"


@pytest.mark.parametrize(("left_s", "lifetime"), [(3600, 300), (100, 160), (0.7, 61), (-100, 1)])
def test_the_lease_ends_soon_after_the_time_to_live(left_s: float, lifetime: int) -> None:
    assert times.lease(left_s) == lifetime
