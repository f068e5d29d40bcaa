"""The SGLang engine against a protocol double; against a real server when DRIVETRAIN_SGLANG_URL names one."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from drivetrain.engines.models import resolve_model
from drivetrain.engines.probe import probe_engine
from drivetrain.engines.protocol import (
    Completion,
    ContextOverflow,
    Engine,
    EngineError,
    EngineMalformed,
    Pausable,
    PrefixCached,
    Sampling,
    VersionSettable,
    honoured_knobs,
)
from drivetrain.engines.sglang import SGLangEngine
from drivetrain.errors import ConfigError
from drivetrain.gateway.fence import Fence
from drivetrain.gateway.model import load_codec
from tests.engines.sglang.double import Quirks, Server
from tests.engines.table_engine import CODEC, Faults

PROMPT = [5, 6, 7, 8]
Rig = Callable[..., Awaitable[tuple[Server, SGLangEngine]]]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    open_things: list[Any] = []

    async def start(quirks: Quirks | None = None, *, context: int = 512, **options: Any) -> tuple[Server, SGLangEngine]:
        server = Server(quirks, context=context)
        open_things.append(server)
        engine = SGLangEngine(await server.start(), **{"boot_timeout_s": 5, **options})
        open_things.append(engine)
        await engine.start()
        return server, engine

    yield start
    for thing in reversed(open_things):
        await thing.aclose()


def ask(engine: SGLangEngine, prompt: list[int] | None = None, **sampling: Any) -> Awaitable[Completion]:
    return engine.generate(
        prompt or PROMPT, Sampling(**{"max_tokens": 6, "seed": 1, **sampling}), request_id="s:1", session_id="s"
    )


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not happened():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_is_sent_and_what_comes_back(rig: Rig) -> None:
    server, engine = await rig()
    assert isinstance(engine, Engine)
    assert isinstance(engine, Pausable)
    assert isinstance(engine, PrefixCached)
    assert isinstance(engine, VersionSettable)
    done = await ask(engine, stop_token_ids=(1,), temperature=0.7)
    assert len(done.token_ids) == len(done.logprobs) == 6
    assert (done.finish_reason, done.reported_tokens) == ("length", 6)
    assert (done.policy_version_start, done.policy_version_end, list(done.version_spans)) == (0, 0, [(6, 0)])
    body = dict(server.calls[0])
    assert body.pop("rid").startswith("s:1-")
    assert body == {
        "input_ids": PROMPT,
        "sampling_params": {
            "n": 1,
            "max_new_tokens": 6,
            "min_new_tokens": 0,
            "temperature": 0.7,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "stop": [],
            "stop_token_ids": [1],
            "ignore_eos": False,
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "sampling_seed": 1,
        },
        "return_logprob": True,
        "logprob_start_len": -1,
        "top_logprobs_num": 0,
        "return_text_in_logprobs": False,
        "stream": False,
    }
    assert engine.name == "sglang:table"
    assert engine.context_length == 506


@pytest.mark.case("B4")
async def test_the_probe_passes_a_server_that_is_set_up_well(rig: Rig) -> None:
    _, engine = await rig()
    report = await probe_engine(engine, CODEC)
    assert {finding.status for finding in report.findings} == {"passed"}, report
    report.require_trainable()


@pytest.mark.case("B4")
async def test_the_probe_refuses_log_probs_before_temperature(rig: Rig) -> None:
    """What a server with SGLANG_RETURN_ORIGINAL_LOGPROB returns."""
    _, engine = await rig(Quirks(faults=Faults(raw=True)))
    report = await probe_engine(engine, CODEC)
    assert "log-probs are raw" in report.finding("temperature").what
    with pytest.raises(ConfigError, match="temperature"):
        report.require_trainable()


async def test_a_stop_token_in_the_last_place_is_a_stop(rig: Rig) -> None:
    """SGLang calls it length."""
    _, engine = await rig()
    free = await ask(engine)
    done = await ask(engine, stop_token_ids=(free.token_ids[-1],))
    if free.token_ids[-1] not in free.token_ids[:-1]:
        assert len(done.token_ids) == 6
    assert (done.token_ids[-1], done.finish_reason) == (free.token_ids[-1], "stop")
    early = await ask(engine, stop_token_ids=(free.token_ids[2],))
    assert early.finish_reason == "stop"
    assert early.token_ids[-1] == free.token_ids[2]


@pytest.mark.case("B6")
@pytest.mark.parametrize(
    ("quirks", "logprobs"),
    [
        (Quirks(no_logprobs=True), []),
        (Quirks(nan_at=2), [False, False, True, False, False, False]),
        (Quirks(foreign_triple=True), [True, False, False, False, False, False]),
    ],
)
async def test_log_probs_that_prove_nothing(rig: Rig, quirks: Quirks, logprobs: list[bool]) -> None:
    _, engine = await rig(quirks)
    done = await ask(engine)
    assert len(done.token_ids) == 6
    assert [math.isnan(value) for value in done.logprobs] == logprobs


async def test_ids_come_from_the_triples_of_servers_without_output_ids(rig: Rig) -> None:
    _, plain = await rig()
    _, engine = await rig(Quirks(no_output_ids=True))
    assert (await ask(engine)).token_ids == (await ask(plain)).token_ids


@pytest.mark.parametrize(
    ("quirks", "says"),
    [
        (Quirks(no_output_ids=True, no_logprobs=True), "no token ids came back"),
        (Quirks(nan_happened=True), "ended a sample at 'NaN happened'"),
        (Quirks(truncates=True), "a prompt of 12 tokens, not on the 13 tokens"),
    ],
)
async def test_answers_that_are_no_completion(rig: Rig, quirks: Quirks, says: str) -> None:
    _, engine = await rig(quirks, context=20)
    with pytest.raises(EngineMalformed, match=says):
        await ask(engine, [5] * 13 if quirks.truncates else PROMPT, max_tokens=2)


async def test_context(rig: Rig) -> None:
    """Whatever the engine says it has room for is accepted, and one more is an overflow."""
    server, engine = await rig(context=40)
    room = engine.context_length
    done = await ask(engine, [5] * (room - 1), max_tokens=6)
    assert len(done.token_ids) == 1
    server.context = 20  # the server knows better
    with pytest.raises(ContextOverflow):
        await ask(engine, [5] * 25)


@pytest.mark.parametrize(
    ("status", "body", "retryable", "says"),
    [
        (400, {"error": {"message": "bad id"}}, False, "bad id"),
        (400, {"object": "error", "message": "no", "type": "BadRequestError", "param": None, "code": 400}, False, "no"),
        (500, {"detail": "scheduler died"}, True, "scheduler died"),
        (503, {"detail": "busy"}, True, "busy"),
        (200, {"text": "hello"}, True, "not of the form"),
    ],
)
async def test_errors(rig: Rig, status: int, body: Any, retryable: bool, says: str) -> None:
    _, engine = await rig(Quirks(status=status, body=body))
    with pytest.raises(EngineError, match=says) as caught:
        await ask(engine)
    assert caught.value.retryable is retryable


@pytest.mark.case("D6")
async def test_a_cancelled_call_is_aborted_by_its_own_id(rig: Rig) -> None:
    server, engine = await rig(Quirks(step_s=0.02))
    sampling = Sampling(max_tokens=200, seed=1)
    calls = [
        asyncio.create_task(engine.generate(PROMPT, sampling, request_id=name, session_id="s"))
        for name in ("s:1", "s:10")
    ]
    await until(lambda: len(server.running) == 2)
    calls[0].cancel()
    await asyncio.wait([calls[0]])
    assert calls[0].cancelled()
    await until(lambda: bool(server.aborted))
    assert [rid.split("-")[0] for rid in server.aborted] == ["s:1"]
    assert not calls[1].done()
    calls[1].cancel()
    await asyncio.wait([calls[1]])


@pytest.mark.case("E1")
async def test_a_weight_update_under_load_loses_nothing(rig: Rig) -> None:
    server, engine = await rig(Quirks(pauses_at=5))
    fence = Fence(engine)
    call = asyncio.create_task(engine.generate(PROMPT, Sampling(max_tokens=40, seed=1), request_id="s:1"))
    await server.stays.wait()
    async with fence.paused("hold") as update:
        await engine.update_weights_from_disk("/models/step-1", 1)
        update.version = 1
    done = await call
    assert len(done.token_ids) == 40
    assert (done.finish_reason, done.policy_version_start, done.policy_version_end) == ("length", 0, 1)
    assert list(done.version_spans) == [(5, 0), (35, 1)]
    assert server.label == "1"
    assert [path for path, _ in server.control] == [
        "/pause_generation",
        "/update_weights_from_disk",
        "/flush_cache",
        "/continue_generation",
    ]
    assert dict(server.control)["/pause_generation"] == {"mode": "retract"}


async def test_versions_of_weights_that_somebody_else_updates(rig: Rig) -> None:
    server, engine = await rig()
    server.label = "step-9"  # unannounced
    done = await ask(engine)
    assert (done.policy_version_start, list(done.version_spans)) == (0, [])
    await engine.set_policy_version(9)
    assert (server.label, engine.policy_version) == ("step-9", 9)
    assert list((await ask(engine)).version_spans) == [(6, 9)]
    await engine.set_policy_version(10)  # the trainer gave no label of its own
    assert server.label == "10"
    assert dict(server.control)["/update_weight_version"] == {"new_version": "10", "abort_all_requests": False}
    assert list((await ask(engine)).version_spans) == [(6, 10)]


async def test_servers_without_spans(rig: Rig) -> None:
    _, engine = await rig(Quirks(spans=False), policy_version=3)
    done = await ask(engine)
    assert (done.policy_version_start, done.policy_version_end, list(done.version_spans)) == (3, 3, [])


async def test_an_update_that_fails(rig: Rig) -> None:
    _, engine = await rig()
    with pytest.raises(EngineError, match="Failed to update weights"):
        await engine.update_weights_from_disk("/nowhere", 1)
    assert engine.policy_version == 0


async def test_nothing_is_flushed_while_calls_run(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivetrain.engines.sglang.engine._FLUSH_PAUSE_S", 0.01)
    server, engine = await rig(Quirks(step_s=0.05))
    call = asyncio.create_task(engine.generate(PROMPT, Sampling(max_tokens=100, seed=1), request_id="s:1"))
    await until(lambda: bool(server.running))
    with pytest.raises(EngineError, match="Pause the engine first"):
        await engine.reset_prefix_cache()
    await engine.pause()
    await engine.reset_prefix_cache()
    await engine.resume()
    call.cancel()
    await asyncio.wait([call])


@pytest.mark.parametrize(
    ("quirks", "options", "error", "says"),
    [
        (Quirks(says_truncates=True), {}, ConfigError, "--allow-auto-truncate"),
        (Quirks(), {"adapter": "polcy"}, ConfigError, "Served: table, policy-lora"),
        (Quirks(api_key="k1"), {}, EngineError, "401"),
        (Quirks(starting=99), {"boot_timeout_s": 0.2}, EngineError, "not ready within 0.2 s"),
    ],
)
async def test_what_start_refuses(
    rig: Rig, quirks: Quirks, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        await rig(quirks, **options)


async def test_servers_that_still_load_old_pages_keys_and_adapters(rig: Rig) -> None:
    quirks = Quirks(old_names=True, starting=2, api_key="k1", hides_context=True)
    server, engine = await rig(quirks, api_key="k1", adapter="policy-lora")
    assert engine.context_length == 506
    assert engine.name == "sglang:policy-lora"
    await ask(engine, extra={"top_p": 0.9, "top_k": 0, "stop": "END"})
    assert server.calls[0]["lora_path"] == "policy-lora"
    params = server.calls[0]["sampling_params"]
    assert (params["top_p"], params["top_k"], params["stop"]) == (0.9, -1, ["END"])
    assert {"top_p", "stop"} <= honoured_knobs(engine)
    assert "k1" not in repr(engine)


async def test_not_started() -> None:
    engine = SGLangEngine("http://127.0.0.1:9")
    with pytest.raises(EngineError, match="was not started"):
        await ask(engine)
    with pytest.raises(ConfigError, match="no address"):
        SGLangEngine("127.0.0.1:9")


@pytest.mark.real
@pytest.mark.skipif("DRIVETRAIN_SGLANG_URL" not in os.environ, reason="needs a live SGLang: DRIVETRAIN_SGLANG_URL")
async def test_a_live_server() -> None:
    """``DRIVETRAIN_SGLANG_MODEL`` is the directory of the model that it serves (default: the bundled one)."""
    codec = load_codec(resolve_model(os.environ.get("DRIVETRAIN_SGLANG_MODEL", "SmolLM2-135M-Instruct")))
    engine = SGLangEngine(os.environ["DRIVETRAIN_SGLANG_URL"])
    await engine.start()
    try:
        (await probe_engine(engine, codec)).require_trainable()
    finally:
        await engine.aclose()
