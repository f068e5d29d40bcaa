"""The gateway's socket folder: private, gone afterwards, and a dead owner's is removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drivetrain.rollout.socket_folder import socket_folder
from drivetrain.sandboxes.label import started


def test_folder_of_a_dead_owner_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivetrain.rollout.socket_folder.default_root", lambda: tmp_path / "d" / "sandboxes")
    me = os.getpid()
    with socket_folder() as first, socket_folder() as second:
        assert first != second
        assert first.stat().st_mode & 0o777 == 0o700
        for name in (f"gateway-{me}-1-0", f"gateway-999999999-{started(me)}-0", "gateway-odd"):
            (tmp_path / "d" / name).mkdir()
        with socket_folder() as third:
            assert {path.name for path in (tmp_path / "d").iterdir()} == {first.name, second.name, third.name}
    assert not (tmp_path / "d").exists()
