"""Weights to a server through a file: what is sent, what is cleaned up, what is said when the server cannot."""

from __future__ import annotations

import json
import runpy
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import EngineError
from drivetrain.errors import ConfigError
from drivetrain.rollout.config import RolloutConfig
from drivetrain.rollout.run_dir import RunDir
from drivetrain.training.file_transfer import FileTransfer, server_flags, worker_folder

torch = pytest.importorskip("torch")


class Server:
    """Answers ``status``; remembers paths, bodies and what was in the file when it was asked to load it."""

    def __init__(self, status: int = 200, text: bytes = b"{}") -> None:
        seen = self.seen = list[tuple[str, Any, str]]()
        self.loaded: dict[str, Any] = {}
        loaded = self.loaded

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                told = json.loads(body) if body else None
                seen.append((self.path, told, self.headers.get("Authorization", "")))
                if told and told.get("method") == "load_file":
                    from safetensors.torch import load_file

                    loaded.update(load_file(told["args"][0]))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def serve() -> Iterator[Any]:
    running: list[Server] = []

    def start(*args: Any) -> Server:
        running.append(Server(*args))
        return running[-1]

    yield start
    for server in running:
        server.close()


def test_every_server_loads_the_file_and_it_is_gone_afterwards(serve: Any, tmp_path: Path) -> None:
    servers = [serve(), serve()]
    transfer = FileTransfer([f"{server.url}/" for server in servers], tmp_path / "w", api_key="k")
    transfer.init_weight_transfer()
    shared = torch.arange(6.0).reshape(2, 3)
    transfer.pause()
    transfer.send_weights(iter([("a", shared), ("b", shared.T)]))
    transfer.resume()
    transfer.destroy()
    for server in servers:
        assert [path for path, _, _ in server.seen] == ["/pause?mode=keep", "/collective_rpc", "/resume"]
        assert {key for _, _, key in server.seen} == {"Bearer k"}
        assert torch.equal(server.loaded["a"], shared) and torch.equal(server.loaded["b"], shared.T)
    assert list((tmp_path / "w").iterdir()) == []


@pytest.mark.parametrize(
    ("status", "text", "error", "says"),
    [
        (404, b"not found", ConfigError, "worker-extension-cls"),
        (500, b"Worker has no attribute load_file", ConfigError, "worker-extension-cls"),
        (500, b'{"error": "out of memory"}', EngineError, "out of memory"),
    ],
)
def test_a_server_that_cannot_is_named_and_the_file_is_gone(
    serve: Any, tmp_path: Path, status: int, text: bytes, error: type[Exception], says: str
) -> None:
    transfer = FileTransfer([serve(status, text).url], tmp_path / "w")
    with pytest.raises(error, match=says):
        transfer.send_weights(iter([("a", torch.zeros(1))]))
    assert list((tmp_path / "w").iterdir()) == []


def test_no_server_at_all(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="does not answer"):
        FileTransfer(["http://127.0.0.1:9"], tmp_path).pause()
    with pytest.raises(ConfigError, match="no server is named"):
        FileTransfer([], tmp_path)


def test_a_tied_head_is_packed_again(tmp_path: Path) -> None:
    """vLLM's reload on CPU leaves the packed copy of the head as it was."""
    from safetensors.torch import save_file

    assert server_flags()[1] == "drivetrain_weights.FileWeights"
    worker = runpy.run_path(str(worker_folder() / "drivetrain_weights.py"))["FileWeights"]()
    packed: list[Any] = []
    head = SimpleNamespace(
        weight=torch.nn.Parameter(torch.zeros(2, 2)),
        cpu_linear=object(),
        quant_method=SimpleNamespace(process_weights_after_loading=packed.append),
    )
    embedding = SimpleNamespace(weight=torch.nn.Parameter(torch.zeros(2, 2)))
    tied = SimpleNamespace(get_text_config=lambda: SimpleNamespace(tie_word_embeddings=True))
    model = SimpleNamespace(lm_head=head, model=SimpleNamespace(embed_tokens=embedding), config=tied)

    def reload_weights(weights_iterator: Any) -> None:
        embedding.weight.data.copy_(dict(weights_iterator)["model.embed_tokens.weight"])

    worker.model_runner = SimpleNamespace(reload_weights=reload_weights, get_model=lambda: model)
    path = tmp_path / "w.safetensors"
    save_file({"model.embed_tokens.weight": torch.ones(2, 2)}, path)
    assert worker.load_file(str(path)) == 1
    assert packed == [head] and torch.equal(head.weight, torch.ones(2, 2))
    del head.cpu_linear  # a GPU
    worker.load_file(str(path))
    assert packed == [head]


def test_a_server_without_a_transfer_and_a_transfer_without_a_server_are_refused(
    tiny_model: ModelDir, tmp_path: Path
) -> None:
    pytest.importorskip("trl")
    from drivetrain.engines.open import EngineSpec
    from drivetrain.training.episodes import LiveRollouts

    run = RunDir.create(tmp_path / "run")
    remote = RolloutConfig(tasks=("t",), agents=("pi",), engine=EngineSpec(kind="vllm", urls=("http://127.0.0.1:9",)))
    with pytest.raises(ConfigError, match="only through a transfer"):
        LiveRollouts(remote, tiny_model, run, print)
    local = RolloutConfig(tasks=("t",), agents=("pi",))
    with pytest.raises(ConfigError, match="without any transfer"):
        LiveRollouts(local, tiny_model, run, print, transfer=FileTransfer(["http://127.0.0.1:9"], tmp_path))
