"""Keys and values of token sequences: one buffer per sequence, and an LRU of finished ones keyed by token prefix.

A sequence owns its buffer, so nothing is padded to the longest neighbour, attention sees exactly the sequence's own
tokens whoever else is in the batch, and a finished sequence moves into the cache without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
import numpy as np
import torch

Tokens = np.ndarray[Any, np.dtype[np.int32]]

_ROUND = 64


class KVShape(msgspec.Struct, frozen=True):
    """What a model's cache looks like: per token ``2 * layers * kv_heads * head_dim`` numbers of ``dtype``."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: Any
    device: Any


class SequenceKV:
    """Keys and values of one sequence: tensor ``[layers, 2, kv_heads, capacity, head_dim]``, ``length`` in use."""

    def __init__(self, shape: KVShape, capacity: int) -> None:
        self.shape = shape
        self.length = 0
        self._data = self._allocate(capacity)

    @property
    def nbytes(self) -> int:
        """Bytes held, unused capacity included."""
        return int(self._data.nbytes)

    def reserve(self, tokens: int) -> None:
        """Make room for ``tokens`` tokens in all; grows by half so that appending stays linear."""
        capacity = self._data.shape[3]
        if tokens > capacity:
            self._resize(max(tokens, capacity * 3 // 2))

    def layers(self, start: int, stop: int) -> Sequence[Any]:
        """Views ``[2, kv_heads, stop - start, head_dim]`` of every layer's keys and values."""
        return cast(Sequence[Any], self._data[:, :, :, start:stop].unbind(0))

    def fork(self, length: int, capacity: int) -> SequenceKV:
        """A new sequence that starts with a copy of the first ``length`` tokens."""
        copy = SequenceKV(self.shape, max(capacity, length))
        copy._data[:, :, :, :length] = self._data[:, :, :, :length]
        copy.length = length
        return copy

    def trim(self) -> None:
        """Give back unused capacity when it is more than a quarter."""
        if self._data.shape[3] > (self.length + _ROUND) * 5 // 4:
            self._resize(self.length)

    def _resize(self, capacity: int) -> None:
        old, self._data = self._data, self._allocate(capacity)
        self._data[:, :, :, : self.length] = old[:, :, :, : self.length]

    def _allocate(self, capacity: int) -> Any:
        s = self.shape
        rounded = -(-max(capacity, 1) // _ROUND) * _ROUND
        return torch.empty((s.layers, 2, s.kv_heads, rounded, s.head_dim), dtype=s.dtype, device=s.device)


def as_tokens(ids: Sequence[int]) -> Tokens:
    """``ids`` packed as int32."""
    return np.asarray(ids, dtype=np.int32)


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Number of leading tokens that ``a`` and ``b`` share."""
    n = min(len(a), len(b))
    different = a[:n] != b[:n]
    first = int(different.argmax()) if n else 0
    return first if n and different[first] else n


class _Entry:
    __slots__ = ("kv", "tokens")

    def __init__(self, tokens: Tokens, kv: SequenceKV) -> None:
        self.tokens = tokens
        self.kv = kv


class PrefixCache:
    """Finished sequences, least recently used first out, bounded by bytes.

    A look-up costs one comparison per entry, which is microseconds for the hundreds of entries that fit. Whoever
    changes the weights calls :meth:`clear`: keys and values of old weights are wrong, not merely old.
    """

    def __init__(self, max_bytes: int, max_entries: int = 1024) -> None:
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: list[_Entry] = []  # most recently used last

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Bytes held by all entries."""
        return sum(entry.kv.nbytes for entry in self._entries)

    def find(self, prompt: Tokens) -> tuple[SequenceKV | None, int]:
        """The entry that shares the longest prefix with ``prompt``, and that prefix's length in tokens."""
        best, length = None, 0
        for entry in self._entries:
            shared = common_prefix(entry.tokens, prompt)
            if shared > length:
                best, length = entry, shared
        if best is None:
            return None, 0
        self._touch(best)
        return best.kv, length

    def put(self, tokens: Tokens, kv: SequenceKV) -> None:
        """Keep ``kv`` (which now belongs to the cache) as the keys and values of ``tokens``.

        Entries that are a prefix of the new one are dropped: the new one serves whatever they would have. One that is
        larger than the whole cache may be is not kept, and drives nothing out.
        """
        kv.trim()
        if kv.nbytes > self._max_bytes:
            return
        kept = []
        for entry in self._entries:
            shared = common_prefix(entry.tokens, tokens)
            if shared == len(tokens):
                self._touch(entry)
                return
            if shared < len(entry.tokens):
                kept.append(entry)
        self._entries = kept
        self._entries.append(_Entry(tokens, kv))
        while self._entries and (self.nbytes > self._max_bytes or len(self._entries) > self._max_entries):
            del self._entries[0]

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()

    def _touch(self, entry: _Entry) -> None:
        self._entries.remove(entry)
        self._entries.append(entry)
