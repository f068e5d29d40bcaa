"""A digest that goes on from the parent's is that of the whole prompt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.trace.hashes import PromptHashes, prompt_digest
from drivetrain.trace.turn import Ids, Turn, pack_ids

ids = st.lists(st.integers(0, 2**31 - 1), max_size=6)


@given(st.lists(st.tuples(st.none() | st.integers(0, 30), ids, ids), min_size=1, max_size=30))
def test_it_equals_the_digest_of_the_whole_prompt(turns: list[tuple[int | None, list[int], list[int]]]) -> None:
    """Roots, chains and branches of any age: states that were let go of are made again."""
    hashes = PromptHashes()
    prompts: list[Ids] = []
    stored: list[Any] = []
    for number, (above, delta, sampled) in enumerate(turns):
        parent = stored[above % number] if above is not None and number else None
        new = pack_ids(delta)
        whole = new
        if parent is not None:
            whole = np.concatenate([prompts[parent.id], parent.sampled_ids, new])
        assert hashes.digest(number, cast("Turn | None", parent), whole, new) == prompt_digest(whole)
        prompts.append(whole)
        stored.append(SimpleNamespace(id=number, sampled_ids=pack_ids(sampled)))
    assert len(hashes._states) <= 8
