"""Servers of the live tier (``make test-vllm``): one per dtype, both booting while the first tests wait."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from drivetrain.engines.models import ModelDir, resolve_model
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.model import load_codec
from drivetrain.gateway.server import GatewayServer
from drivetrain.tokens.codec import TokenCodec
from tests.real.vllm.support import Watched, started
from tests.real.vllm_server import LiveServer, live_server, vllm_python

ROOM = Path(__file__).parent
SMALL_BLOCKS = ("--block-size", "32")  # of the CPU build's own 128 tokens no short prompt fills one, and caches nothing
FLAGS = (
    *SMALL_BLOCKS,
    "--enable-scale-out",
    "--enable-tokenizer-info-endpoint",
    "--enable-auto-tool-choice",
    *("--tool-call-parser", "hermes"),
    *("--worker-extension-cls", "drivetrain_file_weights.FileWeights"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this room needs a live vLLM."""
    off = os.environ.get("DRIVETRAIN_VLLM") != "1"
    for item in items:
        if item.path.is_relative_to(ROOM):
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(900))
            item.add_marker(pytest.mark.skipif(off, reason="needs a live vLLM: make test-vllm"))


@pytest.fixture(scope="session")
def model() -> ModelDir:
    return resolve_model()


@pytest.fixture(scope="session")
def codec(model: ModelDir) -> TokenCodec:
    return load_codec(model)


@pytest.fixture(scope="session")
def python() -> Path:
    found = vllm_python()
    assert found is not None, "no vLLM: run scripts/vllm-venv, or set DRIVETRAIN_VLLM_PYTHON"
    return found


@pytest.fixture(scope="session")
def server(python: Path, model: ModelDir, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """float32, processed log-probs, everything switched on that the engine can use."""
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with live_server(python, model, log, mode="processed_logprobs", flags=FLAGS) as running:
        yield running
        print(f"\nvLLM: {running.memory_gb():.1f} GB resident")


@pytest.fixture(scope="session")
def weights(model: ModelDir) -> Any:
    """What is served at first, in transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(str(model.path), dtype=torch.float32).eval()


@pytest.fixture
async def engine(server: LiveServer) -> AsyncIterator[Watched]:
    made = await started(server)
    yield made
    await made.aclose()


@pytest.fixture
async def gateway(engine: Watched, codec: TokenCodec, tmp_path: Path) -> AsyncIterator[tuple[Gateway, str]]:
    """In front of the engine; and the base URL of its OpenAI routes."""
    front = GatewayServer(Gateway(engine, codec, tmp_path / "journal.sqlite", model="policy"))
    port = await front.listen_tcp(0)
    yield front.gateway, f"http://127.0.0.1:{port}/v1"
    await front.aclose()
