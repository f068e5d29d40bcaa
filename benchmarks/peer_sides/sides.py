"""The servers under test: how each is started, and what the operating system says about its process."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
from benchmarks.peer_sides.conversation import MODEL

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
START_S = 300.0
VENVS = {"openenv": REPOSITORY / ".venv-peers/openenv", "verifiers": REPOSITORY / ".venv-peers/verifiers"}
SIDES = ("drivetrain", "openenv", "verifiers")
_ADMIN_KEY = "benchmark-admin-key-of-no-worth"


class Server:
    """A running server: where it is, the keys of its sessions, its process."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], url: str, keys: list[str]) -> None:
        self.name = name
        self.url = url
        self.keys = keys
        self._process = process
        self._clock = (~process.pid << 3) | 2  # clock_getcpuclockid(3): processor time of another process

    def cpu_s(self) -> float:
        """Processor time so far, all threads, in nanosecond steps."""
        return time.clock_gettime(self._clock)

    def rss_bytes(self) -> int:
        """Resident memory now."""
        return int(psutil.Process(self._process.pid).memory_info().rss)


def missing(side: str) -> str | None:
    """Why a side cannot run; None when it can."""
    venv = VENVS.get(side)
    if venv is None or (venv / ".ready").exists():
        return None
    return f"{venv.relative_to(REPOSITORY)} is missing: scripts/peers-venv makes it"


@contextmanager
def serving(side: str, engine: str, model: Path, sessions: int, scratch: Path) -> Iterator[Server]:
    """Start one side before the engine, with sessions opened; end it afterwards."""
    if side == "drivetrain":
        with _process(_drivetrain_argv(engine, model, scratch), _ENV, scratch) as process:
            addresses = _addresses(process)
            keys = [_open_session(addresses["admin"]) for _ in range(sessions)]
            yield Server(side, process, addresses["harness"].removesuffix("/v1"), keys)
        return
    arguments = {
        "openenv": [str(HERE / "serve_openenv.py"), engine, MODEL, str(sessions)],
        "verifiers": [str(HERE / "serve_verifiers.py"), engine, str(model), MODEL, str(sessions)],
        "nothing": [str(HERE / "serve_nothing.py")],
    }[side]
    python = str(VENVS[side] / "bin/python") if side in VENVS else sys.executable
    with _process([python, *arguments], {}, scratch) as process:
        told = json.loads(_line(process))
        yield Server(side, process, told["url"], told["keys"])


@contextmanager
def scripted_engine(scripts: Path, scratch: Path) -> Iterator[str]:
    """The engine's URL."""
    with _process([sys.executable, str(HERE / "engine.py"), str(scripts)], {}, scratch) as process:
        yield f"http://127.0.0.1:{json.loads(_line(process))['port']}"


_ENV = {"DRIVETRAIN_ADMIN_KEY": _ADMIN_KEY}


def _drivetrain_argv(engine: str, model: Path, scratch: Path) -> list[str]:
    journal = scratch / f"journal-{time.monotonic_ns()}" / "journal.sqlite"
    return [
        *(sys.executable, "-c", "from drivetrain.cli.main import main; main()", "serve", "--model", str(model)),
        *("--journal", str(journal), "--port", "0", "--admin-port", "0"),
        *("--engine", "vllm", "--engine-url", engine, "--no-probe"),
    ]


def _addresses(process: subprocess.Popen[bytes]) -> dict[str, str]:
    found: dict[str, str] = {}
    while True:
        line = _line(process)
        if line.startswith("ready:"):
            return found
        name, _, url = line.strip().partition(" ")
        found[name] = url


def _open_session(admin: str) -> str:
    policy = {"model": MODEL, "max_turns": 1_000_000}
    request = urllib.request.Request(
        f"{admin}/sessions",
        data=msgspec.json.encode({"policy": policy}),
        headers={"Authorization": f"Bearer {_ADMIN_KEY}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        return str(json.load(reply)["api_key"])


@contextmanager
def _process(argv: Sequence[str], env: dict[str, str], scratch: Path) -> Iterator[subprocess.Popen[bytes]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DRIVETRAIN_"))}
    clean |= {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        **env,
    }
    log = (scratch / f"log-{time.monotonic_ns()}").open("w+")
    process = subprocess.Popen(argv, env=clean, cwd=scratch, stdout=subprocess.PIPE, stderr=log, bufsize=0)
    try:
        yield process
    except EOFError:
        log.seek(0)
        raise SystemExit(f"error: {' '.join(argv[:4])} ended: {log.read()[-3000:]}") from None
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


def _line(process: subprocess.Popen[bytes]) -> str:
    """A line of an unbuffered pipe, so that what select says is all there is."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], START_S)[0]:
        raise SystemExit(f"error: a server said nothing for {START_S:g} s")
    line = process.stdout.readline()
    if not line:
        raise EOFError
    return line.decode()
