"""Fixtures every room shares: a tiny random model with a real BPE tokenizer, and its token codec."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import psutil
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.tiny import build_tiny_model
from drivetrain.gateway.model import load_codec
from drivetrain.tokens.codec import TokenCodec

pytest_plugins = ["tests.agent_claims"]

_BEFORE = pytest.StashKey[set[str]]()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> ModelDir:
    return build_tiny_model(Path(tmp_path_factory.mktemp("model")) / "tiny", context=8192)


@pytest.fixture(scope="session")
def codec(tiny_model: ModelDir) -> TokenCodec:
    return load_codec(tiny_model)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember what is there before the first test (in the process that starts the workers, if there are any)."""
    if not hasattr(session.config, "workerinput"):
        session.config.stash[_BEFORE] = _traces()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """After the last test: no process, mount or temporary folder of ours that was not there before the first."""
    before = session.config.stash.get(_BEFORE, None)
    if before is None:
        return
    deadline = time.monotonic() + 10
    while (left := _traces() - before) and time.monotonic() < deadline:
        time.sleep(0.2)
    if left:
        print("\nleft behind:", *sorted(left), sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


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
