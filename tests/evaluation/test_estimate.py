"""pass@k and its intervals."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.evaluation.estimate import bootstrap, estimate, pass_at_k, wilson


@pytest.mark.parametrize(("n", "c"), [(1, 0), (1, 1), (4, 0), (4, 1), (4, 2), (5, 5), (6, 3)])
def test_it_is_the_share_of_draws_that_hold_a_success(n: int, c: int) -> None:
    outcomes = [True] * c + [False] * (n - c)
    for k in range(1, n + 1):
        draws = list(itertools.combinations(outcomes, k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@given(st.integers(1, 400), st.data())
def test_large_numbers_agree_with_the_binomials(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    value = pass_at_k(n, c, k)
    assert value == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k), abs=1e-9)
    assert 0.0 <= value <= 1.0


@pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 4), (3, 1, 0), (3, 4, 1), (0, 0, 1)])
def test_what_makes_no_sense_is_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(n, c, k)


def test_wilson_against_known_values() -> None:
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)


def test_the_method_follows_the_scores() -> None:
    assert estimate([]) is None
    certain = estimate([0.0, 0.0, 0.0])
    assert certain is not None
    assert (certain.method, certain.value, certain.low) == ("wilson", 0.0, 0.0)
    assert certain.high > 0.5, "three failures prove little"
    mixed = estimate([0.25, 0.5, 1.0, 0.0] * 10)
    assert mixed is not None
    assert (mixed.method, mixed.tasks) == ("bootstrap", 40)
    assert mixed.value == pytest.approx(0.4375)
    assert mixed.low < mixed.value < mixed.high
    assert mixed == estimate([0.25, 0.5, 1.0, 0.0] * 10), "the same numbers each time"


def test_the_bootstrap_has_the_width_of_the_standard_error() -> None:
    scores = [0.25, 0.75] * 50
    low, high = bootstrap(scores)
    assert high - low == pytest.approx(2 * 1.96 * 0.25 / 10, rel=0.1)
