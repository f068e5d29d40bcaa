"""Engine specs: what makes sense, what is made of them, and that a server is measured before it is used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from drivetrain.engines.embedded import EmbeddedEngine
from drivetrain.engines.models import ModelDir
from drivetrain.engines.open import EngineSpec, detect_kind, open_engine, start_engine
from drivetrain.engines.protocol import EngineError
from drivetrain.engines.sglang import SGLangEngine
from drivetrain.engines.vllm import VLLMEngine
from drivetrain.errors import ConfigError
from tests.engines.sglang.double import Quirks, Server
from tests.engines.table_engine import CODEC, Faults

URLS = ("http://127.0.0.1:9",)


class Digest:
    sha256 = "ab" * 32


class Renderer:
    """The table's prompts, with digests."""

    template = Digest()
    stop_ids = CODEC.stop_ids
    first_prompt = staticmethod(CODEC.first_prompt)

    class tokenizer:  # noqa: N801
        vocab_size = CODEC.tokenizer.vocab_size
        sha256 = None


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    one = Server()
    await one.start()
    yield one
    await one.aclose()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": "vlm"}, "there is no engine 'vlm'. Engines: embedded, vllm, sglang"),
        ({"urls": URLS}, "an address is given, but the embedded engine runs in this process"),
        ({"api_key_env": "KEY"}, "a key is given"),
        ({"model": "policy"}, "a served model is given"),
        ({"kind": "vllm"}, "needs the address of its server"),
        ({"kind": "sglang", "urls": ("127.0.0.1:30000",)}, "no address of an engine server"),
        ({"kind": "sglang", "urls": URLS, "boot_timeout_s": -1.0}, "negative"),
    ],
)
def test_combinations_that_make_no_sense(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("?", r"\?")):
        EngineSpec(**options)


@pytest.mark.case("D13")
@pytest.mark.parametrize(
    "options", [{"api_key_env": "sk-secret-123"}, {"urls": ("http://user:sk-secret-123@127.0.0.1:9",)}]
)
def test_a_secret_in_the_wrong_place_is_refused_and_not_quoted(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineSpec(**{"kind": "vllm", "urls": URLS, **options})
    assert "sk-secret" not in str(caught.value)


def test_what_is_made(tiny_model: ModelDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "sk-1")
    assert isinstance(open_engine(EngineSpec(), tiny_model, threads=1), EmbeddedEngine)
    vllm = open_engine(EngineSpec(kind="vllm", urls=URLS, api_key_env="ENGINE_KEY", model="policy"), tiny_model)
    assert isinstance(vllm, VLLMEngine)
    assert vllm.name == "vllm:policy"
    per_version = EngineSpec(kind="vllm", urls=URLS, model="policy-v{version}")
    assert isinstance(open_engine(per_version, tiny_model), VLLMEngine)
    spec = EngineSpec(kind="sglang", urls=URLS, api_key_env="ENGINE_KEY", model="lora")
    assert isinstance(open_engine(spec, tiny_model), SGLangEngine)
    assert "sk-1" not in msgspec.json.encode(spec).decode()


def test_a_key_that_is_not_there(tiny_model: ModelDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGINE_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"\$ENGINE_KEY is not set"):
        open_engine(EngineSpec(kind="vllm", urls=URLS, api_key_env="ENGINE_KEY"), tiny_model)


@pytest.mark.parametrize(("options", "says"), [({"threads": 2}, "threads"), ({"dtype": "bfloat16"}, "dtype")])
def test_options_of_the_embedded_engine_beside_a_server(
    options: dict[str, Any], says: str, tiny_model: ModelDir
) -> None:
    with pytest.raises(ConfigError, match=f"{says} is an option of the embedded engine"):
        open_engine(EngineSpec(kind="sglang", urls=URLS), tiny_model, **options)


@pytest.mark.case("B4")
async def test_a_sound_server_is_measured_and_started(server: Server, tiny_model: ModelDir) -> None:
    spec = EngineSpec(kind="sglang", urls=(server.url,), boot_timeout_s=5)
    engine = open_engine(spec, tiny_model)
    told: list[str] = []
    report = await start_engine(engine, spec, Renderer(), told.append)
    assert report is not None
    assert not report.blocking
    assert told == ["probing sglang:table: about 250 short calls"]
    await engine.aclose()


@pytest.mark.case("B4")
async def test_a_server_with_raw_log_probs_is_refused_unless_nobody_looks(server: Server, tiny_model: ModelDir) -> None:
    server.table.faults = Faults(raw=True)
    spec = EngineSpec(kind="sglang", urls=(server.url,), boot_timeout_s=5)
    engine = open_engine(spec, tiny_model)
    with pytest.raises(ConfigError, match="log-probs are raw"):
        await start_engine(engine, spec, Renderer(), lambda _: None)
    told: list[str] = []
    blind = msgspec.structs.replace(spec, probe=False)
    assert await start_engine(engine, blind, Renderer(), told.append) is None
    assert "NOT probed" in told[0]
    await engine.aclose()


async def test_a_server_with_another_template_is_refused_before_it_is_sampled_from(
    server: Server, tiny_model: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SGLangEngine, "template_sha256", "cd" * 32, raising=False)
    monkeypatch.setattr(SGLangEngine, "tokenizer_sha256", None, raising=False)
    spec = EngineSpec(kind="sglang", urls=(server.url,), boot_timeout_s=5)
    engine = open_engine(spec, tiny_model)
    with pytest.raises(ConfigError, match="the chat template of engine sglang:table"):
        await start_engine(engine, spec, Renderer(), lambda _: None)
    assert server.calls == []
    await engine.aclose()


@pytest.mark.parametrize("old", [False, True])
async def test_what_kind_of_server_it_is(old: bool) -> None:
    server = Server(Quirks(old_names=old))
    await server.start()
    try:
        found = await detect_kind((server.url,), api_key=None, boot_timeout_s=5, tell=lambda _: None)
        assert found == "sglang"
    finally:
        await server.aclose()
    with pytest.raises(EngineError, match="not ready within"):
        await detect_kind((server.url,), api_key=None, boot_timeout_s=0.1, tell=lambda _: None)
