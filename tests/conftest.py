"""Fixtures every room shares: a tiny random model with a real BPE tokenizer, and its token codec."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.tiny import build_tiny_model
from drivetrain.gateway.model import load_codec
from drivetrain.tokens.codec import TokenCodec


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> ModelDir:
    return build_tiny_model(Path(tmp_path_factory.mktemp("model")) / "tiny", context=8192)


@pytest.fixture(scope="session")
def codec(tiny_model: ModelDir) -> TokenCodec:
    return load_codec(tiny_model)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """After the last test: no process, mount or temporary folder of ours that was not there before the first."""
    before = _traces()
    yield
    deadline = time.monotonic() + 10
    while (left := _traces() - before) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left, sorted(left)


def _traces() -> set[str]:
    temp = Path(tempfile.gettempdir())
    found = {f"folder {path}" for path in temp.glob("drivetrain*")}
    found |= {f"folder {path}" for path in temp.glob("drivetrain-*/sandboxes/*")}
    found |= {f"mount {line.split()[4]}" for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if line.startswith("bwrap") or "/bwrap " in line or "drivetrain.cli.main" in line:
            found.add(f"process {process.pid} {line[:200]}")
    found |= {f"child {child.pid} {child.name()}" for child in psutil.Process().children(recursive=True)}
    return found
