"""The vLLM engine before a live ``vllm serve`` on CPU (``make test-vllm``): two servers, one after the other."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from openai import AsyncOpenAI

from drivetrain.engines.models import ModelDir, resolve_model
from drivetrain.engines.probe import probe_engine
from drivetrain.engines.protocol import Completion, Sampling
from drivetrain.engines.vllm import VLLMEngine
from drivetrain.engines.vllm.wire import WIRES, CompletionsWire
from drivetrain.errors import ConfigError
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.model import load_codec
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.server import GatewayServer
from drivetrain.messages import Message, ToolSpec
from drivetrain.rollout.audit import audit_run
from drivetrain.rollout.config import RolloutConfig, episodes_of
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.runner import run_rollouts
from drivetrain.rollout.stack import open_stack
from drivetrain.tokens.codec import TokenCodec
from drivetrain.tokens.shapes import PROBE_TOOLS, SHAPES
from drivetrain.trace.sample import rows_of
from drivetrain.trace.validate import check_graph, check_rows
from tests.real.vllm_server import LiveServer, live_server, vllm_python

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.environ.get("DRIVETRAIN_VLLM") != "1", reason="needs a live vLLM: make test-vllm"),
]

BOOT_S = 300.0
FLAGS = (
    "--enable-scale-out",
    "--enable-tokenizer-info-endpoint",
    "--enable-auto-tool-choice",
    *("--tool-call-parser", "hermes"),
    *("--worker-extension-cls", "drivetrain_file_weights.FileWeights"),
)
QUESTIONS = (
    "Tell me a short story about a lighthouse.",
    "Write a Python function that reverses a list.",
    "Why is the sky blue?",
    "List five animals and what they eat.",
)


@pytest.fixture(scope="module")
def model() -> ModelDir:
    return resolve_model()


@pytest.fixture(scope="module")
def codec(model: ModelDir) -> TokenCodec:
    return load_codec(model)


@pytest.fixture(scope="module")
def python() -> Path:
    found = vllm_python()
    assert found is not None, "no vLLM: run scripts/vllm-venv, or set DRIVETRAIN_VLLM_PYTHON"
    return found


@pytest.fixture(scope="module")
def server(python: Path, model: ModelDir, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with live_server(python, model, log, mode="processed_logprobs", flags=FLAGS) as running:
        yield running
        print(f"\nvLLM: {running.memory_gb():.1f} GB resident")


async def started(server: LiveServer, **options: Any) -> VLLMEngine:
    engine = VLLMEngine(server.url, boot_timeout_s=BOOT_S, tell=print, **options)
    await engine.start()
    return engine


class Watched(VLLMEngine):
    """Keeps what was sent."""

    sent: list[list[int]]

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session_id: str = ""
    ) -> Completion:
        self.sent.append(list(prompt_ids))
        return await super().generate(prompt_ids, sampling, request_id=request_id, session_id=session_id)


@pytest.fixture
async def engine(server: LiveServer) -> AsyncIterator[Watched]:
    made = Watched(server.url, boot_timeout_s=BOOT_S, tell=print)
    made.sent = []
    await made.start()
    yield made
    await made.aclose()


async def metric(server: LiveServer, name: str) -> float:
    async with aiohttp.ClientSession() as http, http.get(f"{server.url}/metrics") as answer:
        text = await answer.text()
    return sum(float(value) for value in re.findall(rf"^vllm:{name}{{.*}} (\S+)$", text, re.MULTILINE))


async def until_running(server: LiveServer, count: int, within_s: float = 60.0) -> None:
    await until(lambda running: running == count, server, "num_requests_running", within_s)


async def until(right: Callable[[float], bool], server: LiveServer, name: str, within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not right(await metric(server, name)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


# -- log-probs


def sampler_gaps(model: ModelDir, weights: Any, samples: Sequence[tuple[list[int], float, Completion]]) -> Any:
    """|log-prob told - log-prob of a transformers fp32 forward pass on the same ids| per sampled token."""
    import torch

    gaps: list[float] = []
    for prompt, temperature, done in samples:
        ids = torch.tensor([[*prompt, *done.token_ids]])
        with torch.inference_mode():
            logits = weights(ids).logits[0, len(prompt) - 1 : -1].float() / temperature
        exact = torch.log_softmax(logits, -1).gather(1, torch.tensor(list(done.token_ids))[:, None])[:, 0]
        gaps += (exact - torch.tensor(list(done.logprobs))).abs().tolist()
    return np.array(gaps)


@pytest.fixture(scope="module")
def weights(model: ModelDir) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(str(model.path), dtype=torch.float32).eval()


async def samples_of(
    engine: VLLMEngine, codec: TokenCodec, temperatures: Sequence[float]
) -> list[tuple[list[int], float, Completion]]:
    async def one(question: str, temperature: float, seed: int) -> tuple[list[int], float, Completion]:
        prompt = codec.first_prompt([Message("user", question)], [])
        sampling = Sampling(max_tokens=64, temperature=temperature, seed=seed, stop_token_ids=tuple(codec.stop_ids))
        return prompt, temperature, await engine.generate(prompt, sampling, request_id=f"gap-{seed}-{temperature}")

    asked = [one(q, t, seed) for seed, q in enumerate(QUESTIONS) for t in temperatures]
    return list(await asyncio.gather(*asked))


# Before the first test that needs the other server: two at once would need 8 GB.
@pytest.mark.case("B4")
async def test_the_probe_refuses_raw_log_probs_and_bf16_is_reported(
    python: Path, model: ModelDir, codec: TokenCodec, weights: Any, tmp_path: Path
) -> None:
    with live_server(python, model, tmp_path / "raw.log", mode="raw_logprobs", dtype="bfloat16") as server:
        engine = await started(server)
        assert engine.served.api == "completions"  # started without --enable-scale-out
        with pytest.raises(ConfigError, match="--enable-scale-out"):
            await started(server, api="generate")
        gaps = sampler_gaps(model, weights, await samples_of(engine, codec, (1.0,)))  # raw and processed are one at T=1
        print(f"\nbf16: n={gaps.size} mean={gaps.mean():.1e} p99={np.quantile(gaps, 0.99):.1e} max={gaps.max():.1e}")
        report = await probe_engine(engine, codec)
        await engine.aclose()
    assert report.finding("temperature").status == "failed", report
    with pytest.raises(ConfigError, match=r"log-probs are raw.*--logprobs-mode processed_logprobs"):
        report.require_trainable()


@pytest.mark.parametrize("api", ["completions", "generate"])
async def test_log_probs_are_those_of_a_transformers_forward_pass(
    server: LiveServer, model: ModelDir, codec: TokenCodec, weights: Any, api: Any
) -> None:
    engine = await started(server, api=api)
    samples = await samples_of(engine, codec, (1.0, 0.6))
    await engine.aclose()
    gaps = sampler_gaps(model, weights, samples)
    print(f"\n{api}, fp32: n={gaps.size} mean={gaps.mean():.1e} max={gaps.max():.1e}")
    assert gaps.size > 200
    assert gaps.mean() < 1e-4 and gaps.max() < 1e-3
    assert all(done.reported_tokens == len(done.token_ids) for _, _, done in samples)


async def test_start_reads_what_is_served(engine: Watched, codec: TokenCodec, server: LiveServer) -> None:
    assert (engine.name, engine.context_length, engine.served.api) == ("vllm:policy", 8192, "generate")
    assert engine.template_sha256 == codec.template.sha256
    with pytest.raises(ConfigError, match="does not serve 'qwen'; it serves policy"):
        await started(server, model="qwen")


# -- render


def as_openai(message: Message) -> dict[str, Any]:
    said: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        said["tool_call_id"] = message.tool_call_id
    return said


def tool_of(spec: ToolSpec) -> dict[str, Any]:
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {"type": "function", "function": function}


@pytest.mark.parametrize("tools", [(), PROBE_TOOLS], ids=["no tools", "tools"])
async def test_our_first_render_is_the_servers(
    engine: Watched, server: LiveServer, codec: TokenCodec, tools: Sequence[ToolSpec]
) -> None:
    """Every message shape that the template can express without reasoning (it renders none)."""
    equal, other = [], []
    async with aiohttp.ClientSession() as http:
        for shape in SHAPES:
            messages = [*shape.history, *shape.tail]
            if any(message.reasoning for message in messages) or messages[-1].role == "assistant":
                continue
            body: dict[str, Any] = {"model": "policy", "messages": [as_openai(message) for message in messages]}
            if tools:
                body["tools"] = [tool_of(spec) for spec in tools]
            async with http.post(f"{server.url}/v1/chat/completions/render", json=body) as answer:
                said = await answer.json()
            same = answer.status == 200 and said["token_ids"] == codec.first_prompt(messages, tools)
            (equal if same else other).append(shape.name)
    print(f"\nequal: {', '.join(equal)}; not: {other}")
    assert other == ["tool_odd_args"]  # vLLM empties arguments that are no JSON object; we show what was said
    assert len(equal) >= 14


# -- through the gateway


@pytest.fixture
async def gateway(engine: Watched, codec: TokenCodec, tmp_path: Path) -> AsyncIterator[tuple[Gateway, str]]:
    front = GatewayServer(Gateway(engine, codec, tmp_path / "journal.sqlite", model="policy"))
    port = await front.listen_tcp(0)
    yield front.gateway, f"http://127.0.0.1:{port}/v1"
    await front.aclose()


async def talk(gateway: Gateway, url: str, turns: int, tokens: int, *, seed: int = 1) -> Any:
    """A conversation of a plain client; its session."""
    policy = SessionPolicy(model="policy", max_tokens_per_turn=tokens, seed=seed)
    session, key = await gateway.open_session(policy)
    history: list[Any] = [{"role": "user", "content": QUESTIONS[seed % len(QUESTIONS)]}]
    async with AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=300) as client:
        for turn in range(turns):
            done = await client.chat.completions.create(model="policy", messages=history)
            history += [
                {"role": "assistant", "content": done.choices[0].message.content},
                {"role": "user", "content": f"Go on, part {turn}."},
            ]
    return session


async def test_a_conversation_extends_verbatim_and_is_one_row(
    gateway: tuple[Gateway, str], engine: Watched, codec: TokenCodec
) -> None:
    session = await talk(*gateway, 4, 24)
    graph = session.graph
    turns = list(graph)
    assert [turn.link for turn in turns] == ["root"] + ["linear"] * 3
    for previous, turn, sent in zip(turns[:-1], turns[1:], engine.sent[1:], strict=True):
        stored = graph.ids_through(previous).tolist()
        assert sent[: len(stored)] == stored
        assert sent == graph.prompt_ids(turn).tolist()
    rows = rows_of(graph)
    assert len(rows) == 1
    assert sum(rows[0].loss_mask) == sum(len(turn.sampled_ids) for turn in turns)
    assert check_graph(graph, vocab_size=codec.tokenizer.vocab_size) == []
    assert check_rows(graph, rows) == []


async def test_a_cancelled_call_is_aborted_in_vllm(engine: Watched, server: LiveServer, codec: TokenCodec) -> None:
    prompt = codec.first_prompt([Message("user", QUESTIONS[0])], [])
    await until_running(server, 0)
    long = Sampling(max_tokens=4000, temperature=2.0, seed=1)
    call = asyncio.ensure_future(engine.generate(prompt, long, request_id="long"))
    await until_running(server, 1)
    call.cancel()
    await until_running(server, 0)


@pytest.mark.case("E2", "E3", "E4")
@pytest.mark.parametrize("mode", ["hold", "drain"])
async def test_a_pause_under_load_loses_nothing(
    gateway: tuple[Gateway, str], engine: Watched, server: LiveServer, mode: Any
) -> None:
    front, url = gateway
    talking = [asyncio.ensure_future(talk(front, url, 2, 32, seed=seed)) for seed in range(6)]
    await until(bool, server, "num_requests_running")
    async with front.fence.paused(mode, deadline_s=120) as update:
        before = await metric(server, "generation_tokens_total")
        await asyncio.sleep(1.5)
        assert await metric(server, "generation_tokens_total") == before  # nothing is sampled
        update.version = 1
    sessions = await asyncio.gather(*talking)
    turns = [turn for session in sessions for turn in session.graph]
    assert len(turns) == 12
    assert all(len(turn.sampled_ids) and turn.finish_reason in ("stop", "length") for turn in turns)
    assert {turn.policy_version_end for turn in turns} <= {0, 1}
    straddled = [turn for turn in turns if turn.policy_version_start != turn.policy_version_end]
    assert bool(straddled) == (mode == "hold")
    for session in sessions:
        assert len(rows_of(session.graph)) == 1


@pytest.mark.case("E1", "E2", "E4")
async def test_new_weights_from_a_file(
    engine: Watched, server: LiveServer, codec: TokenCodec, model: ModelDir, weights: Any, tmp_path: Path
) -> None:
    """Paused with a call in flight, other weights, cache reset, resumed: each part is exact under its own weights.

    The embedding stays as it is: it is tied to the head, and vLLM's reload on CPU leaves the head's packed copy old.
    """
    from safetensors.torch import load_file, save_file

    original = model.path / "model.safetensors"
    changed = {name: value if "embed" in name else value * 1.03 for name, value in load_file(original).items()}
    save_file(changed, tmp_path / "new.safetensors", metadata={"format": "pt"})

    async def load(path: Path) -> None:
        body = {"method": "load_file", "args": [str(path)]}
        async with aiohttp.ClientSession() as http, http.post(f"{server.url}/collective_rpc", json=body) as answer:
            assert answer.status == 200, await answer.text()

    prompt = codec.first_prompt([Message("user", QUESTIONS[0])], [])
    sampling = Sampling(max_tokens=96, seed=3)
    try:
        running = asyncio.ensure_future(engine.generate(prompt, sampling, request_id="straddles"))
        start = await metric(server, "generation_tokens_total")
        await until(lambda sampled: sampled >= start + 10, server, "generation_tokens_total")
        await engine.pause()
        assert not running.done()
        await load(tmp_path / "new.safetensors")
        await engine.reset_prefix_cache()
        await engine.set_policy_version(1)
        await engine.resume()
        straddled = await running
        fresh = await engine.generate(prompt, sampling, request_id="fresh")
    finally:
        await load(original)
        await engine.reset_prefix_cache()

    new = type(weights)(weights.config).eval()
    new.load_state_dict({**weights.state_dict(), **changed})
    gaps = sampler_gaps(model, new, [(prompt, 1.0, fresh)])
    print(f"\nnew weights: mean={gaps.mean():.1e} max={gaps.max():.1e}")
    assert gaps.max() < 1e-3
    old = sampler_gaps(model, weights, [(prompt, 1.0, fresh)])
    assert old.mean() > 1e-2, "or the file changed nothing"
    assert (fresh.policy_version_start, fresh.policy_version_end) == (1, 1)
    assert (straddled.policy_version_start, straddled.policy_version_end) == (0, 1)
    by_old = sampler_gaps(model, weights, [(prompt, 1.0, straddled)])
    by_new = sampler_gaps(model, new, [(prompt, 1.0, straddled)])
    switch = int(np.argmax(by_old > 1e-3))
    print(f"switched after {switch} of {len(straddled.token_ids)} tokens; spans {straddled.version_spans}")
    assert 10 <= switch < 96 and by_old[:switch].max() < 1e-3 and by_new[switch:].max() < 1e-3
    if engine.served.versions[0] >= "0.32":
        assert straddled.version_spans == ((switch, 0), (96 - switch, 1))
    again = await engine.generate(prompt, sampling, request_id="back")
    assert sampler_gaps(model, weights, [(prompt, 1.0, again)]).max() < 1e-3


class CallingWire(CompletionsWire):
    """The first calls must be of a tool: unaided, a model of 135M ends Pi's loop with its first words."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    def request(self, *asked: Any) -> Any:
        body = super().request(*asked)
        if self._left:
            self._left -= 1
            body["structured_outputs"] = {"regex": _CALL}
        return body


_CALL = r'<tool_call>\n\{"name": "bash", "arguments": \{"command": "(ls|pwd|date|git log|git status)"\}\}\n</tool_call>'


@pytest.mark.real
async def test_pi_takes_several_turns_in_a_sandbox(
    server: LiveServer, model: ModelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WIRES, "completions", CallingWire(2))
    engine = Watched(server.url, api="completions")
    engine.sent = []
    await engine.start()
    config = RolloutConfig(
        tasks=("pypi__xmltodict-0.14.2",),
        agents=("pi",),
        n=1,
        variant="small",
        max_turns=3,
        max_tokens=48,
        concurrency=1,
        deadline_s=400,
        seed=7,
    )
    run = RunDir.create(tmp_path / "run")
    async with open_stack(config, run, lambda _: None, engine=engine, model=model) as runner:
        (result,) = await run_rollouts(runner, episodes_of(config), concurrency=1)
    await engine.aclose()
    assert result.reward == 0.0, result
    assert [audit.problems for audit in audit_run(run, vocab_size=model.vocab_size)] == [[]]
    assert len(engine.sent) == 3
    for before, after in pairwise(engine.sent):
        assert after[: len(before)] == before
    (row,) = result.rows
    last = engine.sent[-1]
    assert last == [*row.prompt_ids, *row.response_ids][: len(last)]
    print(f"\nPi: 3 turns, prompts of {[len(ids) for ids in engine.sent]} tokens, {sum(row.loss_mask)} trained")


# -- the probe


async def test_the_probe_passes(server: LiveServer, codec: TokenCodec) -> None:
    engine = await started(server, api="completions")
    report = await probe_engine(engine, codec)
    await engine.aclose()
    for finding in report.findings:
        print(f"\n{finding.check}: {finding.status}, {finding.what}", end="")
    assert [finding.status for finding in report.findings] == ["passed"] * len(report.findings)
    report.require_trainable()
