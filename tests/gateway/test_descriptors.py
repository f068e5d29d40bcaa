"""``drivetrain serve`` takes the file descriptors it may have, and says when they are too few."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.gateway.descriptors import connections_within, too_few_for

_RAISED = """
import resource
from drivetrain.gateway.descriptors import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(raise_descriptor_limit({useful}), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "useful", "then"),
    [(64, 512, 1 << 20, 512), (64, 512, 256, 256), (300, 512, 256, 300), (512, 512, 1 << 20, 512)],
)
def test_the_soft_limit_becomes_the_hard_one(soft: int, hard: int, useful: int, then: int) -> None:
    """Up to what is useful, and never down; in a process of its own, since a hard limit cannot be taken back."""
    script = _RAISED.format(soft=soft, hard=hard, useful=useful)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [str(then), str(then), str(hard)]


def test_too_few_are_told() -> None:
    assert connections_within(1024) == 768
    assert not too_few_for(768, 1024) and not too_few_for(None, 1024)
    assert "only 768 connections can be open (1024 file descriptors), fewer than the 769" in too_few_for(769, 1024)


def test_serve_takes_them_and_says_so(tiny_model: ModelDir, tmp_path: Path) -> None:
    script = tmp_path / "replies.json"
    script.write_bytes(msgspec.json.encode(["fine"]))
    main = [sys.executable, "-c", "from drivetrain.cli.main import main; main()", "serve"]
    options = ["--model", str(tiny_model.path), "--journal", str(tmp_path / "j.sqlite"), "--script", str(script)]
    limited = ["bash", "-c", 'ulimit -Sn 256 && ulimit -Hn 512 && exec "$@"', "limited"]
    with subprocess.Popen(
        [*limited, *main, *options, "--port", "0", "--admin-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "400"},
    ) as server:
        assert server.stdout is not None
        said = ""
        try:
            for line in server.stdout:
                said += line
                if line.startswith("ready"):
                    break
            limits = Path(f"/proc/{server.pid}/limits").read_text()
        finally:
            server.terminate()
    (row,) = (line for line in limits.splitlines() if line.startswith("Max open files"))
    assert row.split()[3:5] == ["512", "512"], said
    assert "only 384 connections can be open (512 file descriptors), fewer than the 4096 requests" in said
