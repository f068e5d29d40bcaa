"""One session, one server; a server that failed is left alone for a while."""

from __future__ import annotations

from collections import Counter

import pytest

from drivetrain.engines.remote import Replicas

URLS = [f"http://h{n}:1" for n in range(4)]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_session_keeps_its_order_and_sessions_spread() -> None:
    replicas = Replicas(URLS)
    first = Counter(replicas.order(f"session{n}")[0].url for n in range(2000))
    assert all(380 < count < 620 for count in first.values()), first
    assert [r.url for r in replicas.order("a")] == [r.url for r in Replicas(URLS[::-1]).order("a")]


def test_a_server_that_goes_moves_only_its_own_sessions() -> None:
    whole, less = Replicas(URLS), Replicas(URLS[:-1])
    for n in range(300):
        before, after = whole.order(f"s{n}")[0].url, less.order(f"s{n}")[0].url
        assert after == before or before == URLS[-1]


def test_calls_without_a_session_go_where_least_is_going_on() -> None:
    replicas = Replicas(URLS)
    for number, replica in enumerate(replicas.all):
        replica.in_flight = 10 - number
    assert replicas.order()[0].url == URLS[-1]


def test_back_off_doubles_and_ends_with_an_answer() -> None:
    clock = Clock()
    replicas = Replicas(URLS[:1], first_backoff_s=1, last_backoff_s=5, clock=clock)
    (replica,) = replicas.all
    waits = []
    for _ in range(5):
        replicas.failed(replica, "refused")
        waits.append(replica.down_until - clock.now)
        assert replicas.left_alone(replica)
        clock.now = replica.down_until
        assert not replicas.left_alone(replica) and replica.is_down
    assert waits == [1, 2, 4, 5, 5]
    replicas.answered(replica)
    assert not replica.is_down
    replicas.failed(replica, "refused")
    assert replica.down_until - clock.now == 1


def test_calls_under_way_when_it_fell_count_once() -> None:
    clock = Clock()
    replicas = Replicas(URLS[:1], first_backoff_s=1, clock=clock)
    for _ in range(50):
        replicas.failed(replicas.all[0], "reset")
    assert replicas.all[0].failures == 1


def test_the_error_when_none_is_left_says_when_to_come_again() -> None:
    clock = Clock()
    replicas = Replicas(URLS[:2], first_backoff_s=2, clock=clock)
    for replica in replicas.all:
        replicas.failed(replica, "refused")
    clock.now += 0.5
    error = replicas.none_left("Connection refused.")
    assert error.retry_after_s == pytest.approx(1.5)
    assert (error.status, error.retryable) == (503, True)
    assert "all 2 engine servers are down: Connection refused." in error.what
