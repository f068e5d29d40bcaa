"""Weights to a vLLM server through a file: for one machine, CPU included, where NCCL is no choice.

The server runs :class:`drivetrain_weights.FileWeights` inside its worker (:func:`server_flags`). A file of the whole
model is written per update, so this is for models of a few GB and for tests; on GPUs use TRL's own transfer. A server
that got half an update answers as if nothing had happened, so every update ends with a fingerprint
(docs/engines.md, "Are the new weights there?").
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from drivetrain.engines.protocol import EngineError
from drivetrain.errors import ConfigError
from drivetrain.training.http import post_json

_LOAD_S = 1800.0
_CONTROL_S = 300.0

FIX = (
    "Start vLLM with VLLM_SERVER_DEV_MODE=1 and PYTHONPATH=<folder> in its environment and "
    "--worker-extension-cls drivetrain_weights.FileWeights; `drivetrain train --help` prints the folder."
)


def worker_folder() -> Path:
    """What vLLM's ``PYTHONPATH`` needs; nothing else of drivetrain is imported there."""
    return Path(__file__).parent / "vllm_worker"


def server_flags() -> tuple[str, ...]:
    """What ``vllm serve`` needs besides ``VLLM_SERVER_DEV_MODE=1`` and ``PYTHONPATH`` = :func:`worker_folder`."""
    return ("--worker-extension-cls", "drivetrain_weights.FileWeights")


class FileTransfer:
    """TRL's ``weight_transfer``, and what :class:`~drivetrain.training.episodes.LiveRollouts` publishes with.

    Args:
        urls: base URLs of the servers; all of them see ``folder`` under the same path.
        folder: where weights are written, one file at a time.
        api_key: of the servers.

    Raises (from every method that talks to a server):
        EngineError: a server does not answer, or refuses.
        ConfigError: it has no such worker.
    """

    def __init__(self, urls: Sequence[str], folder: Path, *, api_key: str | None = None) -> None:
        if not urls:
            raise ConfigError("no server is named.", fix="Give the address of a vLLM server.")
        self._urls = [url.rstrip("/") for url in urls]
        self._folder = folder
        self._key = api_key

    def init_weight_transfer(self) -> None:
        """Make the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def pause(self) -> None:
        """Freeze what runs in every server."""
        self._each("/pause?mode=keep", None, _CONTROL_S)

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Write the tensors to a file and have every server load it; the file is gone afterwards."""
        from safetensors.torch import save_file

        self._folder.mkdir(parents=True, exist_ok=True)
        path = (self._folder / f"weights-{secrets.token_hex(4)}.safetensors").resolve()
        try:
            # No two names may share memory in a safetensors file, and tied weights do.
            save_file({name: tensor.detach().cpu().clone().contiguous() for name, tensor in iterator}, path)
            self._each("/collective_rpc", {"method": "load_file", "args": [str(path)]}, _LOAD_S)
        finally:
            path.unlink(missing_ok=True)

    def resume(self) -> None:
        """Let every server go on."""
        self._each("/resume", None, _CONTROL_S)

    def destroy(self) -> None:
        """Nothing is kept."""

    def _each(self, path: str, body: Any, timeout_s: float) -> None:
        for url in self._urls:
            status, text = post_json(f"{url}{path}", body, key=self._key, timeout_s=timeout_s)
            if status == 200:
                continue
            if status in (404, 405) or b"load_file" in text:
                raise ConfigError(f"{url} has no {path.partition('?')[0]} that takes weights ({status}).", fix=FIX)
            raise EngineError(f"{url}{path} answered {status}: {_short(text)}", status=status)


class EmbeddedTransfer:
    """TRL's ``weight_transfer`` to an :class:`~drivetrain.engines.embedded.EmbeddedEngine` of this process that holds a
    copy of its own of the model (AsyncGRPO samples while it trains).

    Args:
        engine: started before the first update.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def init_weight_transfer(self) -> None:
        """Nothing to set up."""

    def pause(self) -> None:
        """The gate has drained or held every call."""

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Copy the tensors between two steps of the engine; its version stays until the gate opens.

        Raises:
            EngineError: they do not fit the model; nothing was changed.
        """
        state = {name: tensor.detach().clone() for name, tensor in iterator}
        self._engine.update_weights(state, self._engine.policy_version)

    def resume(self) -> None:
        """See :meth:`pause`."""

    def destroy(self) -> None:
        """Nothing is kept."""


def named_weights(model: Any) -> Iterator[tuple[str, Any]]:
    """Every parameter of a module under its checkpoint's name, tied ones once."""
    for name, parameter in model.named_parameters():
        yield name.removeprefix("module.").replace("_checkpoint_wrapped_module.", ""), parameter


def _short(text: bytes) -> str:
    try:
        return str(msgspec.json.decode(text))[:300]
    except msgspec.MsgspecError:
        return text[:300].decode(errors="replace")
