"""Every rollout ends exactly once, whatever order nodes finish and die in."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.rollout.config import EpisodeSpec
from drivetrain.rollout.on_ray.book import Attempt, Book, Ended


def specs(count: int) -> list[EpisodeSpec]:
    return [EpisodeSpec(rollout_id=f"t.a.{n}", task_id="t", agent="a", group=n) for n in range(count)]


@given(
    count=st.integers(1, 8),
    most=st.integers(1, 3),
    steps=st.lists(st.tuples(st.sampled_from(["take", "finish", "lose"]), st.integers(0, 7)), max_size=80),
)
def test_every_rollout_ends_once(count: int, most: int, steps: list[tuple[str, int]]) -> None:
    lines: list[bytes] = []
    book = Book(specs(count), max_attempts=most, write=lines.append)
    running: list[Attempt] = []
    ended: list[int] = []
    # Whatever has happened, taking and finishing what is left ends it.
    for step, which in [*steps, *[("take", 0)] * count, *[("finish", 0)] * count]:
        if step == "take":
            attempt = book.take("n")
            assert (attempt is None) == (len(running) + len(ended) == count)
            if attempt is not None:
                assert attempt.place not in ended and attempt.place not in [other.place for other in running]
                assert attempt.number <= most
                running.append(attempt)
        elif running:
            attempt = running.pop(which % len(running))
            if step == "finish":
                book.finish(attempt, f"s{attempt.place}-{attempt.number}")
                ended.append(attempt.place)
            elif book.lose(attempt, "it died"):
                assert attempt.number == most
                ended.append(attempt.place)
            with pytest.raises(ValueError, match="does not run"):
                book.finish(attempt, "again")
        assert book.done == (len(ended) == count)
        assert book.waiting == count - len(ended) - len(running)
        assert book.running_on("n") == [] if not running else len(book.running_on("n")) == len(running)
    assert sorted(ended) == list(range(count))
    told = [msgspec.json.decode(line, type=Ended) for line in lines]
    assert sum(book.outcomes.values()) == len(told)
    counted = [line.rollout_id for line in told if line.outcome == "counted"]
    assert len(set(counted)) == len(counted)
    for spec in specs(count):
        tries = [line for line in told if line.rollout_id == spec.rollout_id]
        assert [line.attempt for line in tries] == list(range(1, len(tries) + 1))
        assert all(line.outcome == "lost" and line.why for line in tries[:-1])


def test_a_lost_rollout_comes_before_those_that_never_ran() -> None:
    book = Book(specs(3), max_attempts=2)
    first = book.take("one")
    assert first is not None
    assert not book.lose(first, "dead")
    again = book.take("two")
    assert again is not None and (again.spec, again.number) == (first.spec, 2)
    assert book.lose(again, "dead, too")
    assert (book.outcomes, book.waiting, book.done) == ({"lost": 2}, 2, False)
