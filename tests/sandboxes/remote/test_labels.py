"""Whose a box is."""

from __future__ import annotations

import re
import subprocess
import time

from drivetrain.sandboxes.label import new_label
from drivetrain.sandboxes.remote.labels import DEADLINE_GRACE_S, from_metadata, is_left_over, to_metadata


def test_a_label_survives_the_metadata() -> None:
    label = new_label("dt-1", time.time() + 5, {"rollout": "r1"})
    metadata = to_metadata(label, "s")
    again = from_metadata(metadata, "s")
    assert again is not None
    assert (again.id, again.owner_pid, again.owner_started, again.labels) == (
        "dt-1",
        label.owner_pid,
        label.owner_started,
        {"rollout": "r1"},
    )
    assert (again.boot, again.pid_namespace) == (label.boot, label.pid_namespace)
    assert not is_left_over(again)
    assert all(re.fullmatch(r"[\w.-]{1,63}", value) for value in metadata.values()), "providers limit what a value is"


def test_what_is_not_ours_is_no_label() -> None:
    metadata = to_metadata(new_label("dt-1", 0, {}), "s")
    assert from_metadata(metadata, "other") is None
    assert from_metadata({}, "s") is None
    for name in metadata:
        assert from_metadata({key: value for key, value in metadata.items() if key != name}, "s") is None


def test_left_over_is_what_a_dead_owner_left_or_a_past_deadline() -> None:
    assert is_left_over(new_label("dt-1", time.time() - DEADLINE_GRACE_S - 1, {}))
    label = new_label("dt-1", time.time() + 100, {})
    assert not is_left_over(label)
    process = subprocess.Popen(["true"])
    process.wait()
    label.owner_pid = process.pid
    assert is_left_over(label)
    label.boot = "another machine"
    assert not is_left_over(label), "that cannot be told from here"
