"""The oldest glibc a bundle runs with is read from its programs, and an image that has none is told apart."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from swe_rl_agent.bundle_glibc import glibc_needed, why_not_started


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf to compare with")
def test_it_is_what_readelf_says(tmp_path: Path) -> None:
    program = Path(sys.executable).resolve()
    shutil.copy(program, tmp_path / "python")
    (tmp_path / "text").write_bytes(b"\0GLIBC_2.99\0")
    (tmp_path / "link").symlink_to("nowhere")
    said = subprocess.run(["readelf", "-V", str(program)], capture_output=True, text=True, check=True).stdout
    wanted = {int(minor) for minor in re.findall(r"Name: GLIBC_2\.(\d+)", said)}
    assert glibc_needed(tmp_path) == f"2.{max(wanted)}"


def test_another_processor_and_no_program_need_none(tmp_path: Path) -> None:
    assert glibc_needed(tmp_path) == ""
    data = bytearray(Path(sys.executable).resolve().read_bytes())
    data[18] ^= 0xFF
    (tmp_path / "foreign").write_bytes(data)
    (tmp_path / "short").write_bytes(b"\x7fELF\x02")
    assert glibc_needed(tmp_path) == ""


TARGET = "/opt/drivetrain/agents/pi"


@pytest.mark.parametrize(
    ("exit_code", "stderr", "said"),
    [
        (127, f"sh: 1: exec: {TARGET}/bin/node: not found", "this image has none"),
        (127, f"sh: exec: line 1: {TARGET}/bin/node: not found", "this image has none"),
        (1, "node: /lib64/libc.so.6: version `GLIBC_2.28' not found (required by node)", "this image's is older"),
        (127, "node: error while loading shared libraries: libstdc++.so.6: cannot open", "a library that this image"),
        (127, "sh: 1: exec: ls: not found", ""),
        (1, "TypeError: GLIBC_2.28 is a version", ""),
        (None, "", ""),
    ],
)
def test_why_a_program_did_not_start(exit_code: int | None, stderr: str, said: str) -> None:
    why = why_not_started("pi 1.6.0", TARGET, "2.28", exit_code, stderr.encode())
    assert why.startswith("pi 1.6.0 needs ") if said else why == ""
    assert said in why


def test_a_static_program_is_not_blamed_on_the_image() -> None:
    assert why_not_started("codex 1", TARGET, "", 127, f"exec: {TARGET}/bin/codex: not found".encode()) == ""
