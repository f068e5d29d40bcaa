"""The engine says which template and tokenizer it serves: a difference stops the gateway before its first call."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.engines.identity import IdentityCheck, ServesTemplate, check_identity
from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.errors import ConfigError
from drivetrain.gateway.core import Gateway
from drivetrain.tokens.codec import TokenCodec

OTHER = "f" * 64


class Told(ScriptedEngine):
    """A scripted engine that says what it serves."""

    template_sha256: str | None = None
    tokenizer_sha256: str | None = None


def told(model: ModelDir, template: str | None, tokenizer: str | None) -> Told:
    engine = Told(model, lambda *_: "x")
    engine.template_sha256, engine.tokenizer_sha256 = template, tokenizer
    assert isinstance(engine, ServesTemplate)
    return engine


async def test_equal_digests_open_the_gateway(tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path) -> None:
    assert codec.tokenizer.sha256 is not None
    engine = told(tiny_model, codec.template.sha256, codec.tokenizer.sha256)
    gateway = Gateway(engine, codec, tmp_path / "journal.sqlite", model="policy")
    assert gateway.identity == IdentityCheck("same", "same")
    await gateway.aclose()


@pytest.mark.case("B9")
@pytest.mark.parametrize("what", ["chat template", "tokenizer"])
def test_another_digest_stops_the_gateway(tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path, what: str) -> None:
    ours = codec.template.sha256 if what == "chat template" else codec.tokenizer.sha256
    engine = told(tiny_model, *((OTHER, None) if what == "chat template" else (None, OTHER)))
    with pytest.raises(ConfigError, match=f"the {what} of engine scripted") as error:
        Gateway(engine, codec, tmp_path / "journal.sqlite", model="policy")
    assert OTHER in str(error.value) and str(ours) in str(error.value) and "same model directory" in error.value.fix
    assert list(tmp_path.iterdir()) == [], "nothing was opened"


async def test_silence_is_noted_and_no_error(tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path) -> None:
    for number, engine in enumerate([ScriptedEngine(tiny_model, lambda *_: "x"), told(tiny_model, None, None)]):
        gateway = Gateway(engine, codec, tmp_path / f"{number}.sqlite", model="policy")
        assert gateway.identity == IdentityCheck("unknown", "unknown")
        await gateway.aclose()
    assert check_identity(told(tiny_model, "a", OTHER), name="e", template_sha256="a").tokenizer == "unknown"
