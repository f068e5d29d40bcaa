"""Token ids as JSON, without a Python integer for each."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

PromptIds = Sequence[int] | npt.NDArray[np.int32]
"""The ids of a prompt, in one dimension."""


def packed(ids: PromptIds) -> npt.NDArray[np.int32]:
    """The ids as an array; the same one where they are one already."""
    return np.ascontiguousarray(ids, dtype=np.int32)


def json_ids(ids: PromptIds) -> msgspec.Raw:
    """A JSON list of the ids, to be put into a body that msgspec encodes."""
    return msgspec.Raw(orjson.dumps(packed(ids), option=orjson.OPT_SERIALIZE_NUMPY))
