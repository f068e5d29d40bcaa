"""Finished sequences: which are kept, which go, and that bytes decide."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from drivetrain.engines.kv_cache import KVShape, PrefixCache, SequenceKV, Tokens, as_tokens  # noqa: E402

SHAPE = KVShape(layers=2, kv_heads=2, head_dim=4, dtype=torch.float32, device=torch.device("cpu"))
PER_TOKEN = 2 * 2 * 2 * 4 * 4  # layers, keys and values, heads, dim, bytes


def sequence(first: int, length: int) -> tuple[Tokens, SequenceKV]:
    """``first, 0, 1, 2 ...`` with keys and values that fill their buffer."""
    kv = SequenceKV(SHAPE, length)
    kv.length = length
    return as_tokens([first, *range(length - 1)]), kv


def cache_of(kib: int, *lengths: int) -> PrefixCache:
    """Sequences that begin with 1000, 1001, ... in this order."""
    cache = PrefixCache(kib * 1024)
    for index, length in enumerate(lengths):
        cache.put(*sequence(1000 + index, length))
    return cache


def kept(cache: PrefixCache, upto: int) -> list[int]:
    """Which first tokens are still there, found without looking any up (a look-up counts as use)."""
    return [first - 1000 for first in range(1000, 1000 + upto) if any(e.tokens[0] == first for e in cache._entries)]


def test_bytes_decide_not_entries() -> None:
    assert 64 * PER_TOKEN == 8 * 1024
    cache = cache_of(32, 64, 64, 64, 64)
    assert (len(cache), cache.nbytes) == (4, 32 * 1024)
    cache.put(*sequence(1004, 128))  # as large as two
    assert (kept(cache, 5), cache.nbytes) == ([2, 3, 4], 32 * 1024)


def test_the_least_recently_used_goes_first() -> None:
    cache = cache_of(24, 64, 64, 64)
    found, shared = cache.find(as_tokens([1000, 0, 1, 99]))
    assert (found is not None, shared) == (True, 3)
    cache.put(*sequence(1003, 64))
    assert kept(cache, 4) == [0, 2, 3]


def test_one_that_can_never_fit_drives_nothing_out() -> None:
    cache = cache_of(24, 64, 64)
    cache.put(*sequence(1002, 256))
    assert (kept(cache, 3), cache.nbytes) == ([0, 1], 16 * 1024)


def test_unused_capacity_is_given_back_before_it_counts() -> None:
    cache = PrefixCache(1 << 20)
    tokens, _ = sequence(1000, 64)
    roomy = SequenceKV(SHAPE, 64 + 256)
    roomy.length = 64
    cache.put(tokens, roomy)
    assert cache.nbytes == 64 * PER_TOKEN


def test_clear_forgets_all() -> None:
    cache = cache_of(24, 64, 64)
    cache.clear()
    assert (len(cache), cache.nbytes, cache.find(as_tokens([1000, 0]))) == (0, 0, (None, 0))
