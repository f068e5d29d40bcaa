"""Digests of prompts that go on from their parent's: the work per turn does not grow with the conversation."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from drivetrain.trace.turn import Ids, Turn

if TYPE_CHECKING:
    from hashlib import _Hash

_MOST = 8
"""States that are kept: a conversation needs its last turn's, sub-agents side by side need one each."""


def prompt_digest(ids: Ids) -> bytes:
    """Digest of prompt ids as they were sent: sha256 over little-endian int32."""
    return hashlib.sha256(_bytes(ids)).digest()


class PromptHashes:
    """SHA-256 over the ids of a session's newest prompts, each ready to be continued.

    What it returns equals :func:`prompt_digest` of the whole prompt.
    """

    def __init__(self) -> None:
        self._states: dict[int, _Hash] = {}

    def digest(self, turn_id: int, parent: Turn | None, ids: Ids, delta: Ids) -> bytes:
        """Digest of the prompt of turn ``turn_id``: ``ids``, which are the parent's prompt, what was sampled behind it,
        and ``delta``; without a parent just ``ids``."""
        before = self._states.get(parent.id) if parent is not None else None
        if parent is None or before is None:
            state = hashlib.sha256(_bytes(ids))
        else:
            state = before.copy()
            state.update(_bytes(parent.sampled_ids))
            state.update(_bytes(delta))
        self._states[turn_id] = state
        if len(self._states) > _MOST:
            del self._states[next(iter(self._states))]
        return state.digest()


def _bytes(ids: Ids) -> bytes:
    return np.ascontiguousarray(ids, dtype="<i4").tobytes()
