"""Fixtures every room shares: a tiny random model with a real BPE tokenizer, and its token codec."""

from __future__ import annotations

from pathlib import Path

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
