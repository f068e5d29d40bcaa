"""Twenty weight updates through files while sixteen agents call a live vLLM: TRL's calls, our gate, every token proven.

The model is small, so that a server of its own starts fast; its head is tied to its embedding, which is what vLLM's own
reload on CPU gets wrong.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from drivetrain.engines.fingerprint_torch import fingerprint_of
from drivetrain.engines.models import ModelDir
from drivetrain.engines.open import EngineSpec
from drivetrain.engines.tiny import build_tiny_model
from drivetrain.engines.vllm import VLLMEngine
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.model import load_codec
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.messages import Message
from drivetrain.rollout.config import RolloutConfig
from drivetrain.rollout.gate import Drain, LocalGate
from drivetrain.rollout.loop_thread import LoopThread
from drivetrain.rollout.run_dir import RunDir
from drivetrain.training.alarm import DeltaAlarm
from drivetrain.training.fenced import FencedWeights
from drivetrain.training.file_transfer import FileTransfer, named_weights, server_flags, worker_folder
from tests.real.vllm.support import BOOT_S
from tests.real.vllm_server import LiveServer, live_server
from tests.training.scripted_agents import Client, ScriptedRunner, opening, plain, stack_of

UPDATES, AGENTS, TOKENS = 20, 16, 24
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> ModelDir:
    """Heads of a size that vLLM's CPU attention takes."""
    return build_tiny_model(tmp_path_factory.mktemp("small") / "model", hidden=128, heads=4, kv_heads=2, context=8192)


@pytest.fixture(scope="module")
def small_server(python: Path, small: ModelDir, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    log = tmp_path_factory.mktemp("small-vllm") / "server.log"
    flags = ("--block-size", "32", *server_flags())
    options: dict[str, Any] = {"mode": "processed_logprobs", "flags": flags, "extension": worker_folder()}
    with live_server(python, small, log, **options) as running:
        yield running


@pytest.mark.case("E1", "E2", "E3", "E4")
@pytest.mark.parametrize("mode", ["drain", "hold"])
def test_twenty_updates_while_sixteen_agents_call(
    mode: Any, small: ModelDir, small_server: LiveServer, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    codec = load_codec(small)
    model = AutoModelForCausalLM.from_pretrained(str(small.path), dtype=torch.float32).eval()
    base = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    text = codec.first_prompt([Message("user", "What is served now? " * 8)], [])

    def become(version: int) -> None:
        model.load_state_dict({name: tensor * (1 + 0.01 * version) for name, tensor in base.items()}, strict=False)

    thread = LoopThread("test-vllm")
    stop, errors = threading.Event(), list[BaseException]()
    engine = VLLMEngine(small_server.url, boot_timeout_s=BOOT_S, tell=print)

    async def start() -> Gateway:
        await engine.start()
        return Gateway(engine, codec, tmp_path / "journal.sqlite", model="policy")

    gateway = thread.wait(start())

    async def agent(number: int) -> Any:
        session, _ = await gateway.open_session(
            SessionPolicy(model="policy", max_tokens_per_turn=TOKENS, seed=number, temperature=0.8)
        )
        client = Client(gateway, session)
        client.tools = ()
        part = 0
        try:
            while not stop.is_set():
                part += 1
                await client.talk(opening(f"agent {number}, part {part}"), 2)
        except BaseException as error:
            errors.append(error)
        return session

    transfer = FileTransfer([small_server.url], tmp_path / "weights")
    weights = FencedWeights(
        transfer,
        LocalGate(gateway, thread.loop),
        drain=Drain(mode=mode),
        fingerprint=lambda: fingerprint_of(model, text, tolerance=TOLERANCE),
    )
    weights.attach()
    weights.init_weight_transfer()
    try:
        # The server may hold what the other case left: start from version 0's weights.
        become(0)
        transfer.send_weights(iter(model.named_parameters()))
        talking = [thread.submit(agent(number)) for number in range(AGENTS)]
        for version in range(1, UPDATES + 1):
            passed = gateway.fence.status().counts.passed
            thread.wait(_until_passed(gateway, passed + AGENTS // 2))
            become(version)
            weights.pause()
            weights.send_weights(iter(model.named_parameters()))
            weights.resume()
            weights.publish(version)
        counts = gateway.fence.status().counts
        stop.set()
        sessions = [future.result(120) for future in talking]
    finally:
        stop.set()
        thread.wait(gateway.aclose())
        thread.wait(engine.aclose())
        thread.close()
    assert errors == []
    assert (counts.pauses, counts.aborted, counts.timeouts, counts.failed) == (UPDATES, 0, 0, 0)
    turns = [(session.graph, turn) for session in sessions for turn in session.graph]
    mixed = [turn for _, turn in turns if turn.policy_version_start != turn.policy_version_end]
    assert mixed if mode == "hold" else not mixed
    assert {turn.policy_version_start for _, turn in turns} >= set(range(1, UPDATES + 1))
    whole = [(graph, turn) for graph, turn in turns if turn.policy_version_start == turn.policy_version_end]
    worst = 0.0
    for graph, turn in sorted(whole[:: max(1, len(whole) // 80)], key=lambda item: item[1].policy_version_start):
        become(turn.policy_version_start)
        prompt, sampled = graph.prompt_ids(turn).tolist(), turn.sampled_ids.tolist()
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *sampled]])).logits[0, len(prompt) - 1 : -1] / 0.8
        exact = logits.log_softmax(-1).gather(1, torch.tensor(sampled).unsqueeze(1)).squeeze(1)
        worst = max(worst, float((exact - torch.tensor(turn.logprobs.tolist())).abs().max()))
    print(f"\n{mode}: {len(turns)} turns, {len(mixed)} of two versions, largest difference {worst:.1e}")
    assert worst < 1e-3
    assert not list((tmp_path / "weights").iterdir())


async def _until_passed(gateway: Gateway, count: int) -> None:
    async with asyncio.timeout(120):
        while gateway.fence.status().counts.passed < count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def test_live_training_samples_from_a_server_that_is_sent_the_weights(
    small: ModelDir, small_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three GRPO steps; trainer and server agree before and after every update."""
    pytest.importorskip("trl")
    from drivetrain.training.episodes import LiveRollouts
    from drivetrain.training.live import train_live

    codec, runners = load_codec(small), list[ScriptedRunner]()

    @asynccontextmanager
    async def open_stack(config: RolloutConfig, run: RunDir, tell: Any, **options: Any) -> AsyncIterator[Any]:
        engine = VLLMEngine(config.engine.urls, boot_timeout_s=BOOT_S, tell=print)
        await engine.start()
        stack = stack_of(codec, {"plain": plain}, runners)
        async with stack(config, run, tell, engine=engine, model=options["model"]) as runner:
            yield runner
        await engine.aclose()

    monkeypatch.setattr("drivetrain.training.episodes.open_stack", open_stack)
    transfer = FileTransfer([small_server.url], tmp_path / "weights")
    transfer.send_weights(_weights(small))  # whatever the tests before have left there
    config = RolloutConfig(
        tasks=("plain",),
        agents=("pi",),
        n=4,
        temperature=0.8,
        max_tokens=TOKENS,
        concurrency=4,
        engine=EngineSpec(kind="vllm", urls=(small_server.url,)),
    )
    run = RunDir.create(tmp_path / "run")
    with LiveRollouts(config, small, run, print, transfer=transfer, tolerance=TOLERANCE) as live:
        report = train_live(
            live.make_source,
            live.tasks,
            small.path,
            out_dir=tmp_path,
            steps=3,
            num_generations=4,
            temperature=0.8,
            learning_rate=1e-3,
            sync=live.sync,
            alarm=DeltaAlarm(max_nats=1e-3, mean_nats=1e-3),
        )
        transfer.send_weights(_weights(small))
    differences = [entry["delta/max"] for entry in report.history]
    print(f"\nlargest difference per step: {differences}")
    assert len(differences) == 3 and max(differences) < 1e-3
    versions = [pair for result in run.results() for row in result.rows for pair in row.metadata["policy_versions"]]
    assert {tuple(pair) for pair in versions} == {(0, 0), (1, 1), (2, 2)}


def _weights(model: ModelDir) -> Iterator[tuple[str, Any]]:
    import torch
    from transformers import AutoModelForCausalLM

    return named_weights(AutoModelForCausalLM.from_pretrained(str(model.path), dtype=torch.float32))
