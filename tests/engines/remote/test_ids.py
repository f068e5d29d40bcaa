"""Ids leave as JSON, whatever they come in."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from drivetrain.engines.remote.ids import PromptIds, json_ids

IDS = [0, 7, 2**31 - 1]


@pytest.mark.parametrize(
    "given",
    [IDS, tuple(IDS), np.array(IDS, dtype=np.int32), np.array(IDS), np.array([1, *IDS, 1], dtype=np.int32)[1:-1]],
    ids=["list", "tuple", "int32", "int64", "view"],
)
def test_a_list_of_numbers(given: PromptIds) -> None:
    assert json.loads(msgspec.json.encode({"ids": json_ids(given)})) == {"ids": IDS}


def test_a_strided_view_and_none_at_all() -> None:
    strided = np.array(IDS, dtype=np.int32).repeat(2)[::2]
    assert bytes(json_ids(strided)) == b"[0,7,2147483647]"
    assert bytes(json_ids([])) == b"[]"


def test_what_is_no_id_is_refused() -> None:
    with pytest.raises((OverflowError, ValueError)):
        json_ids([2**31])
