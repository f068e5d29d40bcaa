"""One tiny model and one converted model for the whole folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drivetrain.engines.models import ModelDir, resolve_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelDir:
    pytest.importorskip("torch")
    from drivetrain.engines.tiny import build_tiny_model

    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny", context=512)


@pytest.fixture(scope="session")
def smollm2() -> ModelDir:
    return resolve_model()


@pytest.fixture(scope="session")
def tokenizer(tiny: ModelDir) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(tiny.tokenizer_path))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"
