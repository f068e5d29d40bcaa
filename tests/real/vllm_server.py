"""A live ``vllm serve`` of the CPU build, in its own virtual environment and its own process group."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from drivetrain.engines.models import ModelDir

ROOT = Path(__file__).resolve().parents[2]
EXTENSION = Path(__file__).parent / "vllm_extension"
CONTEXT = 8192
DEFAULT = "0.31.0"
_PR_SET_PDEATHSIG = 1


def vllm_python() -> Path | None:
    """The interpreter that has vLLM: ``DRIVETRAIN_VLLM_PYTHON``, else the one that scripts/vllm-venv made for
    ``DRIVETRAIN_VLLM_VERSION`` (default: the version that needs no argument there)."""
    named = os.environ.get("DRIVETRAIN_VLLM_PYTHON")
    version = os.environ.get("DRIVETRAIN_VLLM_VERSION", DEFAULT)
    venv = ".venv-vllm" if version == DEFAULT else f".venv-vllm-{version}"
    path = Path(named) if named else ROOT / venv / "bin" / "python"
    return path if path.is_file() else None


class LiveServer:
    """What a test needs of a server."""

    def __init__(self, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.url = url
        self.log = log
        self.pid = process.pid
        self._process = process

    def alive(self) -> bool:
        """The server has not ended."""
        return self._process.poll() is None

    def memory_gb(self) -> float:
        """Resident memory of the process group."""
        root = psutil.Process(self._process.pid)
        return sum(p.memory_info().rss for p in [root, *root.children(recursive=True)]) / 1e9


@contextmanager
def live_server(
    python: Path,
    model: ModelDir,
    log: Path,
    *,
    mode: str,
    dtype: str = "float32",
    threads: int = 1,
    eager: bool = True,
    flags: Sequence[str] = (),
    extension: Path = EXTENSION,
) -> Iterator[LiveServer]:
    """Start a server (it still loads when this yields) and kill its whole process group in the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model.path)),
        *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "policy"),
        *("--max-model-len", str(CONTEXT), "--dtype", dtype, "--logprobs-mode", mode, *flags),
        *(["--enforce-eager"] if eager else []),
    ]
    switches = {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(extension),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **switches},
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        try:
            yield LiveServer(f"http://127.0.0.1:{port}", process, log)
        finally:
            _end(process)


def _die_with_parent() -> None:
    """A test run that is killed leaves no server behind."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The engine process and its worker outlive the API server unless the group is ended."""
    for sent, wait_s in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 10.0)):
        try:
            os.killpg(process.pid, sent)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline and _group_lives(process):
            time.sleep(0.1)
    process.wait(10)


def _group_lives(process: subprocess.Popen[bytes]) -> bool:
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True
