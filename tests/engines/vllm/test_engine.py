"""The vLLM engine against the protocol double: what it sends, what it believes, how it starts, pauses and fails."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web

from drivetrain.engines.identity import ServesTemplate, check_identity
from drivetrain.engines.models import ModelDir
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
)
from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply, fake_logprob
from drivetrain.engines.vllm import VLLMEngine
from drivetrain.errors import ConfigError
from tests.engines.vllm.double import VLLMDouble, WireFaults

STOP = 2
Made = tuple[VLLMEngine, VLLMDouble]
Make = Callable[..., Awaitable[Made]]


@pytest.fixture
async def make(tiny_model: ModelDir) -> AsyncIterator[Make]:
    """A started engine before a double that says ``reply``."""
    opened: list[Any] = []

    async def build(
        reply: Any = "hello there", *, engine: dict[str, Any] | None = None, scripted: Any = None, **options: Any
    ) -> Made:
        script = ScriptedEngine(
            tiny_model,
            lambda _ids, _text, _index: reply,
            context_length=(scripted or {}).pop("context_length", 4096),
            **(scripted or {}),
        )
        double = VLLMDouble(script, vocab_size=tiny_model.vocab_size, **options)
        opened.append(double.stop)
        await double.start()
        made = VLLMEngine(double.url, **(engine or {}))
        opened.append(made.aclose)
        await made.start()
        return made, double

    yield build
    for close in reversed(opened):
        await close()


async def ask(engine: VLLMEngine, ids: list[int] | None = None, **sampling: Any) -> Completion:
    wanted = Sampling(**{"max_tokens": 50, "seed": 7, "stop_token_ids": (STOP,), **sampling})
    return await engine.generate(ids or [5, 6, 7], wanted, request_id="turn-1", session_id="s")


APIS = [
    {"engine": {"api": "completions"}},
    {"engine": {"api": "generate"}, "scale_out": True, "version": "0.31.0"},
    {"engine": {"api": "generate"}, "scale_out": True, "version": "0.32.0"},
]


@pytest.mark.parametrize("options", APIS, ids=["completions", "generate-0.31", "generate-0.32"])
async def test_ids_and_log_probs_come_through_unchanged(make: Make, options: dict[str, Any]) -> None:
    ids = [11, 12, 13, 700, STOP]
    engine, _ = await make(ScriptedReply(token_ids=ids, finish_reason="stop"), **options)
    for kind in (Engine, Pausable, PrefixCached, VersionSettable, ServesTemplate):
        assert isinstance(engine, kind)
    done = await ask(engine)
    assert list(done.token_ids) == ids
    assert list(done.logprobs) == [fake_logprob(*pair) for pair in enumerate(ids)]
    assert (done.finish_reason, done.reported_tokens) == ("stop", 5)
    assert (done.policy_version_start, done.policy_version_end) == (0, 0)
    assert (engine.name, engine.context_length) == ("vllm:policy", 4096)


@pytest.mark.case("B4")
async def test_every_knob_is_sent_whatever_the_server_takes_for_a_default(make: Make) -> None:
    knobs = {
        "n": 1,
        "max_tokens": 50,
        "min_tokens": 0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logit_bias": None,
        "seed": 7,
        "stop": [],
        "stop_token_ids": [STOP],
        "ignore_eos": False,
        "logprobs": 0,
        "skip_special_tokens": False,
    }
    engine, double = await make(engine={"api": "completions"})
    await ask(engine)
    body = double.requests[0]
    assert knobs.items() <= body.items()
    assert {name: body[name] for name in body.keys() - knobs.keys()} == {
        "model": "policy",
        "prompt": [5, 6, 7],
        "add_special_tokens": False,
        "echo": False,
        "stream": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    assert double.headers[0]["x-request-id"] == "turn-1"
    engine, double = await make(engine={"api": "generate"}, scale_out=True)
    await ask(engine)
    assert double.requests[0] == {"model": "policy", "token_ids": [5, 6, 7], "stream": False, "sampling_params": knobs}


async def test_knobs_that_a_session_honours_are_passed_on(make: Make) -> None:
    engine, double = await make()
    await ask(engine, extra={"top_p": 0.5, "stop": "END", "logit_bias": {"7": -100}}, temperature=0.7)
    body = double.requests[0]
    assert (body["top_p"], body["stop"], body["logit_bias"], body["temperature"]) == (0.5, ["END"], {"7": -100}, 0.7)


async def test_no_seed_is_a_fresh_one_each_time(make: Make) -> None:
    """Data-parallel servers draw alike without."""
    engine, double = await make()
    for _ in range(2):
        await ask(engine, seed=None)
    first, second = (body["seed"] for body in double.requests)
    assert first != second
    await ask(engine, seed=2**63 + 5)
    assert double.requests[2]["seed"] == 5  # vLLM takes 64 bits with a sign


async def test_max_tokens_never_asks_for_more_than_the_context_holds(make: Make) -> None:
    engine, double = await make(scripted={"context_length": 300})
    await ask(engine, list(range(10, 290)))
    assert double.requests[0]["max_tokens"] == 20


@pytest.mark.parametrize("options", APIS, ids=["completions", "generate-0.31", "generate-0.32"])
async def test_a_prompt_that_fills_the_context_is_an_overflow(make: Make, options: dict[str, Any]) -> None:
    engine, _ = await make(scripted={"context_length": 300}, **options)
    with pytest.raises(ContextOverflow) as error:
        await ask(engine, [5] * 300)
    assert (error.value.prompt_tokens, error.value.context_length, error.value.status) == (300, 300, 400)


async def test_a_temperature_that_vllm_would_raise_in_silence_is_refused(make: Make) -> None:
    engine, double = await make()
    with pytest.raises(EngineError, match=r"temperature 0\.001"):
        await ask(engine, temperature=0.001)
    assert not double.requests


@pytest.mark.case("B1", "B6")
@pytest.mark.parametrize("options", APIS, ids=["completions", "generate-0.31", "generate-0.32"])
@pytest.mark.parametrize(
    ("faults", "what"),
    [
        (WireFaults(drops=("token_ids",)), "no token ids came back"),
        (WireFaults(adds_bos=True), "a prompt of 4 tokens that is not the one of 3 tokens"),
        (WireFaults(drops=("finish_reason",)), "for the reason 'None'"),
    ],
    ids=["no-ids", "other-prompt", "no-reason"],
)
async def test_what_a_completion_cannot_be_without(
    make: Make, faults: WireFaults, what: str, options: dict[str, Any]
) -> None:
    engine, _ = await make(faults=faults, **options)
    with pytest.raises(EngineMalformed, match=what):
        await ask(engine)


@pytest.mark.case("B1", "B2")
@pytest.mark.parametrize("options", APIS, ids=["completions", "generate-0.31", "generate-0.32"])
async def test_missing_and_misnamed_log_probs_are_not_believed(make: Make, options: dict[str, Any]) -> None:
    engine, double = await make(ScriptedReply(token_ids=[11, 11, 12, STOP]), **options)

    async def logprobs(faults: WireFaults) -> list[Any]:
        double.faults = faults
        done = await ask(engine)
        assert list(done.token_ids) == [11, 11, 12, STOP]
        return [None if math.isnan(value) else value for value in done.logprobs]

    told = [fake_logprob(*pair) for pair in enumerate([11, 11, 12, STOP])]
    assert await logprobs(WireFaults()) == told
    assert await logprobs(WireFaults(drops=("logprobs",))) == []
    assert await logprobs(WireFaults(null_at=1)) == [told[0], None, *told[2:]]
    assert await logprobs(WireFaults(floor_at=2)) == [*told[:2], -math.inf, told[3]]
    assert await logprobs(WireFaults(misnames=True)) == [told[0], None, None, None]


@pytest.mark.case("B1")
async def test_an_id_that_did_not_arrive_is_counted(make: Make) -> None:
    engine, _ = await make(ScriptedReply(token_ids=[11, 12, STOP]), faults=WireFaults(drops_stop=True))
    done = await ask(engine)
    assert (list(done.token_ids), done.reported_tokens) == ([11, 12], 3)


def page(status: int) -> web.Response:
    return web.Response(status=status, text="<html><title>Bad</title>", content_type="text/html")


def busy() -> web.Response:
    return web.json_response({"error": {"message": "busy"}}, status=429, headers={"Retry-After": "3"})


@pytest.mark.parametrize(
    ("answer", "kind", "status", "retryable", "after"),
    [
        (lambda: page(502), EngineError, 502, True, None),
        (lambda: page(200), EngineMalformed, None, True, None),
        (lambda: web.json_response({"choices": []}), EngineMalformed, None, True, None),
        (lambda: web.json_response({"choices": [{}, {}]}), EngineMalformed, None, True, None),
        (lambda: web.json_response({"id": 1}), EngineMalformed, None, True, None),
        (busy, EngineError, 429, True, 3),
        (lambda: web.json_response({"error": {"message": "no"}}, status=400), EngineError, 400, False, None),
    ],
    ids=["html-502", "html-200", "no-choice", "two-choices", "no-choices", "429", "400"],
)
async def test_failures_keep_what_is_known_of_them(
    make: Make, answer: Any, kind: type[EngineError], status: int, retryable: bool, after: float | None
) -> None:
    engine, double = await make()
    double.instead = lambda _number: answer()
    with pytest.raises(kind) as error:
        await ask(engine)
    assert type(error.value) is kind
    assert (error.value.status, error.value.retryable, error.value.retry_after_s) == (status, retryable, after)
    assert double.url not in str(error.value)  # it reaches the agent in the sandbox


async def test_cancelling_aborts_in_the_server_and_others_go_on(make: Make) -> None:
    engine, double = await make(ScriptedReply(hang=True))
    calls = [asyncio.ensure_future(ask(engine)) for _ in range(3)]
    while len(double.requests) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    calls[0].cancel()
    async with asyncio.timeout(10):
        while not double.aborted:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert double.engine.running == 2  # type: ignore[attr-defined]
    await engine.aclose()
    assert all(isinstance(done, EngineError) for done in await asyncio.gather(*calls[1:], return_exceptions=True))


# -- start


async def test_auto_takes_generate_only_where_it_is_switched_on(make: Make) -> None:
    assert (await make())[0].served.api == "completions"
    assert (await make(scale_out=True))[0].served.api == "generate"
    with pytest.raises(ConfigError, match=r"status 403.*--enable-scale-out"):
        await make(engine={"api": "generate"})


async def test_an_unknown_model_lists_what_is_served(make: Make) -> None:
    with pytest.raises(ConfigError, match="does not serve 'qwen'; it serves policy, lora-a"):
        await make(engine={"model": "qwen"}, models=["policy", "lora-a"])
    with pytest.raises(ConfigError, match="does not serve 'lora-b'; it serves policy, lora-a"):
        await make(engine={"adapter": "lora-b"}, models=["policy", "lora-a"])


@pytest.mark.parametrize("options", [{"api": "chat"}, {"adapter": "a-{step}"}, {"adapter": ""}], ids=str)
def test_an_impossible_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        VLLMEngine("http://127.0.0.1:1", **options)


async def test_a_key_is_sent(make: Make) -> None:
    engine, double = await make(engine={"api_key": "hunter2"}, api_key="hunter2")
    await ask(engine)
    assert double.headers[0]["authorization"] == "Bearer hunter2"
    with pytest.raises(EngineError, match="401"):
        await make(engine={"api_key": "wrong"}, api_key="hunter2")


async def test_it_waits_for_a_server_that_loads_and_says_so(make: Make) -> None:
    _, double = await make()
    await double.stop()
    told: list[str] = []
    engine = VLLMEngine(double.url, boot_timeout_s=30, tell=told.append)
    starting = asyncio.ensure_future(engine.start())
    while not told:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await double.start()
    await starting
    await engine.start()  # once more does nothing
    await engine.aclose()
    assert told[0].startswith(f"waiting for {double.url}")
    await double.stop()
    with pytest.raises(EngineError, match=r"not ready within 0\.1 s"):
        await VLLMEngine(double.url, boot_timeout_s=0.1).start()


async def test_before_start_it_says_so() -> None:
    with pytest.raises(EngineError, match="not started"):
        await ask(VLLMEngine("http://127.0.0.1:1"))


async def test_another_template_is_refused(make: Make) -> None:
    template = "{{ messages }}"
    ours = hashlib.sha256(template.encode()).hexdigest()
    engine, _ = await make(template=template)
    assert check_identity(engine, name=engine.name, template_sha256=ours).template == "same"
    engine, _ = await make(template=template + " ")
    with pytest.raises(ConfigError, match="chat template of engine vllm:policy"):
        check_identity(engine, name=engine.name, template_sha256=ours)
    engine, _ = await make()
    assert check_identity(engine, name=engine.name, template_sha256=ours).template == "unknown"


# -- adapters


async def test_an_adapter_is_what_calls_ask_for(make: Make) -> None:
    engine, double = await make(engine={"adapter": "lora-a"}, models=["policy", "lora-a"])
    await ask(engine)
    assert double.requests[0]["model"] == "lora-a"
    assert engine.context_length == 4096  # its base's


@pytest.mark.case("E1")
async def test_an_adapter_per_version_follows_the_policy(make: Make) -> None:
    """TRL's adapter sync loads trl-policy-vN; a call under the old name goes on under it."""
    engine, double = await make(
        ScriptedReply(text="hi", delay_s=0.3), engine={"adapter": "trl-policy-v{version}"}, models=["policy"]
    )
    first = asyncio.ensure_future(ask(engine))
    while not double.requests:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    with pytest.raises(ConfigError, match="does not serve 'trl-policy-v1'"):
        await engine.set_policy_version(1)
    assert engine.policy_version == 0
    double.models.append("trl-policy-v1")
    await engine.set_policy_version(1)
    second = await ask(engine)
    assert [body["model"] for body in double.requests] == ["policy", "trl-policy-v1"]
    assert ((await first).policy_version_start, (await first).policy_version_end) == (0, 0)
    assert (second.policy_version_start, second.policy_version_end) == (1, 1)


# -- weights


@pytest.mark.case("E1", "E2")
@pytest.mark.parametrize("label", [None, "step-1"], ids=["unnamed", "named by the trainer"])
async def test_spans_of_versions_are_the_servers_own(make: Make, label: str | None) -> None:
    engine, double = await make(
        ScriptedReply(token_ids=[10 + n % 5 for n in range(40)]),
        scripted={"per_token_s": 0.01},
        scale_out=True,
        version="0.32.0",
    )
    running = asyncio.ensure_future(ask(engine))
    await asyncio.sleep(0.1)
    await engine.pause()
    double.update(label)
    await engine.reset_prefix_cache()
    await engine.set_policy_version(1)
    await engine.resume()
    done = await running
    (before, old), (after, new) = done.version_spans
    assert (old, new, before + after) == (0, 1, 40)
    assert before > 0 and after > 0
    assert (done.policy_version_start, done.policy_version_end) == (0, 1)
    assert double.label_now == (label or "1")
    assert double.control == [
        "/weight_info",
        "/pause?mode=keep",
        "/reset_prefix_cache?reset_running_requests=true",
        "/weight_info",
        *(["/update_weight_version"] if label is None else []),
        "/resume",
    ]


async def test_weights_that_nobody_announced_have_no_version(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    engine, double = await make(scale_out=True, version="0.32.0")
    double.update("sneaky")
    done = await ask(engine)
    assert done.version_spans == ()
    assert "sneaky" in caplog.text


async def test_without_spans_both_ends_are_stamped(make: Make) -> None:
    engine, double = await make(ScriptedReply(text="hi", delay_s=0.2))
    running = asyncio.ensure_future(ask(engine))
    while not double.requests:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    await engine.set_policy_version(4)
    done = await running
    assert (done.policy_version_start, done.policy_version_end, done.version_spans) == (0, 4, ())


async def test_a_server_without_control_endpoints_says_which_switch(make: Make) -> None:
    engine, _ = await make(dev_mode=False)
    for call in (engine.pause, engine.resume, engine.reset_prefix_cache):
        with pytest.raises(EngineError, match="VLLM_SERVER_DEV_MODE=1") as error:
            await call()
        assert not error.value.retryable
    await engine.set_policy_version(2)  # needs none of it
    assert engine.policy_version == 2


@pytest.mark.case("E4")
async def test_a_reset_that_did_not_happen_is_tried_again_and_then_an_error(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drivetrain.engines.vllm.engine._RESET_PAUSE_S", 0.001)
    engine, double = await make()
    double.reset_fails = 3
    await engine.reset_prefix_cache()
    assert len([path for path in double.control if "reset" in path]) == 4
    double.reset_fails = 10**6
    with pytest.raises(EngineError, match="did not reset its prefix cache"):
        await engine.reset_prefix_cache()


@pytest.mark.case("E4")
async def test_every_replica_is_told_or_it_is_an_error(make: Make) -> None:
    _, one = await make()
    _, two = await make()
    engine = VLLMEngine([one.url, two.url])
    await engine.start()
    await engine.pause()
    await engine.reset_prefix_cache()
    await engine.resume()
    for double in (one, two):
        assert [path.split("?")[0] for path in double.control][-3:] == ["/pause", "/reset_prefix_cache", "/resume"]
    two.dev_mode = False
    with pytest.raises(EngineError, match=two.url):
        await engine.pause()
    assert one.control[-2:] == ["/pause?mode=keep", "/resume"], "the one that was paused goes on"
    await engine.aclose()


async def test_sessions_stay_with_their_server_and_survive_it(make: Make) -> None:
    _, one = await make()
    _, two = await make()
    engine = VLLMEngine([one.url, two.url])
    await engine.start()

    async def call(session: str) -> None:
        await engine.generate([5], Sampling(max_tokens=3, seed=1), request_id="r", session_id=session)

    for _ in range(4):
        await call("a")
    home, other = sorted((one, two), key=lambda double: -len(double.requests))
    assert (len(home.requests), len(other.requests)) == (4, 0)
    await home.stop()
    await asyncio.sleep(0.05)  # its kept connections are seen to close
    await call("a")
    assert len(other.requests) == 1
    await engine.aclose()


async def test_replicas_must_agree(make: Make) -> None:
    _, one = await make(template="a")
    _, two = await make(template="b")
    with pytest.raises(ConfigError, match="different chat templates"):
        await VLLMEngine([one.url, two.url]).start()
    _, three = await make(template="a", models=["other"])
    with pytest.raises(ConfigError, match="does not serve 'policy'; it serves other"):
        await VLLMEngine([one.url, three.url]).start()
    _, short = await make(template="a", scripted={"context_length": 100}, scale_out=True)
    engine = VLLMEngine([one.url, short.url])
    await engine.start()
    assert (engine.context_length, engine.served.api) == (100, "completions")
    await engine.aclose()


def test_requests_are_json(tiny_model: ModelDir) -> None:
    from drivetrain.engines.vllm.wire import WIRES

    for wire in WIRES.values():
        sent = msgspec.json.encode(wire.request("m", [1], Sampling(max_tokens=1), 1, 1))
        assert [1] in json.loads(sent).values()
