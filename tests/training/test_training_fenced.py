"""Weights move while agents run: who waits, who opens the gate, which version a token carries."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drivetrain.engines.embedded import EmbeddedEngine
from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import EngineError, Sampling
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.errors import ConfigError
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.fence_types import FenceTimeout
from drivetrain.rollout.config import RolloutConfig
from drivetrain.rollout.gate import Drain, LocalGate, SocketGate, kept_version, serve_gate
from drivetrain.rollout.loop_thread import LoopThread
from drivetrain.rollout.route import routed_prompt
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.validate import check_graph
from drivetrain.training.fenced import AdapterVersions, FencedWeights, fence_generation
from tests.training import scripted_agents as agents
from tests.training.scripted_agents import ScriptedRunner, stack_of

UPDATES, AGENTS = 20, 16


class Inner:
    """Notes what a transfer is told."""

    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes

    def init_weight_transfer(self) -> None:
        self.notes.append("init")

    def pause(self) -> None:
        self.notes.append("pause")

    def send_weights(self, iterator: Any) -> None:
        self.notes.append(list(iterator))

    def resume(self) -> None:
        self.notes.append("resume")

    def destroy(self) -> None:
        self.notes.append("destroy")


class NotedGate:
    def __init__(self, notes: list[Any], held: bool = False) -> None:
        self.notes = notes
        self.held = held

    def pause(self, how: Drain) -> bool:
        self.notes.append(("close", how.mode, how.on_deadline))
        return self.held

    def resume(self, policy_version: int, fingerprint: Any = None) -> None:
        self.notes.append(("open", policy_version, *([fingerprint] if fingerprint else [])))

    def advance(self, policy_version: int) -> None:
        self.notes.append(("advance", policy_version))


def test_the_gate_opens_when_the_version_is_known() -> None:
    notes: list[Any] = []
    weights = FencedWeights(Inner(notes), NotedGate(notes))
    weights.attach()
    weights.init_weight_transfer()
    weights.publish(5)  # a trainer that resumes from a checkpoint tells where it was
    weights.pause()
    weights.send_weights(iter([("w", 1)]))
    weights.resume()
    assert notes == ["init", ("close", "drain", "hold"), "pause", [("w", 1)]], "the server waits for its version"
    weights.publish(6)
    assert notes[4:] == ["resume", ("open", 6)], "a server that is asked for a fingerprint must not be paused"
    weights.pause()
    with pytest.raises(ConfigError, match="not sent"):
        weights.publish(7)
    weights.destroy()
    assert notes[-1] == "destroy"
    AdapterVersions(NotedGate(notes)).publish(8)
    assert notes[-1] == ("advance", 8)


def test_held_calls_go_on_under_the_new_version_and_weights_are_checked() -> None:
    notes: list[Any] = []
    told = object()
    weights = FencedWeights(Inner(notes), NotedGate(notes, held=True), fingerprint=lambda: told)
    weights.attach()
    weights.pause()
    weights.send_weights(iter([]))
    weights.publish(2)
    assert notes == [("close", "drain", "hold"), "pause", [], ("open", 2, told), "resume"]


def test_grpo_trainers_own_transfer_is_fenced() -> None:
    notes: list[Any] = []

    class Generation:
        mode = "server"

        def sync_weights(self) -> None:
            notes.append("sync")

    class Trainer:
        vllm_mode = "server"
        vllm_generation: Any = Generation()
        accelerator = type("A", (), {"wait_for_everyone": staticmethod(lambda: notes.append("everyone"))})
        state = type("S", (), {"global_step": 3})

    trainer = Trainer()
    fence_generation(trainer, NotedGate(notes))
    assert trainer.vllm_generation.mode == "server"
    trainer.vllm_generation.sync_weights()
    assert notes == [("close", "drain", "hold"), "everyone", "sync", "everyone", ("open", 3)]
    trainer.vllm_mode = "colocate"
    with pytest.raises(ConfigError, match="no vLLM server"):
        fence_generation(trainer, NotedGate(notes))


@pytest.fixture
def served(tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path) -> Iterator[tuple[Gateway, LoopThread, Path]]:
    """A gateway whose gate is served in a private folder."""
    folder = tmp_path / "gate"
    folder.mkdir(mode=0o700)
    thread = LoopThread("test-gate")

    async def start() -> tuple[Gateway, Any]:
        engine = ScriptedEngine(tiny_model, lambda *_: "x", latency_s=0.05)
        gateway = Gateway(engine, codec, tmp_path / "journal.sqlite", model="policy")
        return gateway, await serve_gate(gateway, folder)

    gateway, runner = thread.wait(start())
    yield gateway, thread, folder

    async def stop() -> None:
        await runner.cleanup()
        await gateway.aclose()

    thread.wait(stop())
    thread.close()


def test_a_gate_is_worked_over_its_socket(served: tuple[Gateway, LoopThread, Path]) -> None:
    gateway, _, folder = served
    gate = SocketGate(folder)
    assert gate.pause(Drain()) is False
    assert gateway.fence.status().state == "closed"
    gate.pause(Drain())  # a lost answer is asked for again
    gate.resume(4)
    assert (gateway.fence.status().state, gateway.engine.policy_version) == ("open", 4)
    gate.advance(5)
    assert gateway.engine.policy_version == 5
    with pytest.raises(ConfigError, match="nothing to resume"):
        gate.resume(6)
    gate.pause(Drain())
    with pytest.raises(ConfigError, match="lower than 5"):
        gate.resume(3)
    gate.resume(6)


def test_a_call_that_does_not_end_is_named_over_the_socket(
    served: tuple[Gateway, LoopThread, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, thread, folder = served
    entered = threading.Event()

    async def hold() -> None:
        async with gateway.fence.passing():
            entered.set()
            await asyncio.sleep(60)

    call = thread.submit(hold())
    assert entered.wait(10)
    with pytest.raises(FenceTimeout) as error:
        SocketGate(folder).pause(Drain(deadline_s=0.05, on_deadline="error"))
    assert error.value.in_flight == 1
    call.cancel()


def test_before_there_is_a_gateway_the_version_is_kept_for_it(tmp_path: Path) -> None:
    gate = SocketGate(tmp_path)
    assert kept_version(tmp_path) is None
    gate.pause(Drain())
    gate.resume(1)
    assert kept_version(tmp_path) == 1
    (tmp_path / "gate.sock").touch()
    with pytest.raises(EngineError, match="does not answer"):
        gate.pause(Drain())


async def test_a_folder_that_others_reach_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigError, match="open to others"):
        await serve_gate(object(), tmp_path)  # type: ignore[arg-type]


def test_another_process_works_the_gate(served: tuple[Gateway, LoopThread, Path]) -> None:
    gateway, _, folder = served
    code = (
        "import sys, pathlib; from drivetrain.rollout.gate import Drain, SocketGate; "
        "gate = SocketGate(pathlib.Path(sys.argv[1])); gate.pause(Drain()); gate.resume(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=100)
    assert (gateway.engine.policy_version, gateway.fence.status().counts.pauses) == (9, 1)


# Under load ----------------------------------------------------------------------------------------------------------


class Load:
    """``AGENTS`` agents that talk until they are told to stop; ``errors`` they saw."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.errors: list[BaseException] = []

    async def __call__(self, client: agents.Client, spec: Any) -> agents.Outcome:
        client.tools = ()  # the template's text about tools is most of a short prompt
        try:
            turn = 0
            while not self.stop.is_set():
                turn += 1
                await client.talk(agents.opening(f"agent {spec.group}, part {turn}"), 2)
        except BaseException as error:
            self.errors.append(error)
            raise
        return agents.Outcome(1.0)


@pytest.mark.case("E1", "E2", "E3", "E4")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["drain", "hold"])
def test_twenty_updates_while_sixteen_agents_run(
    mode: Any, tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No agent sees an error; with ``drain`` no turn has two versions; every token's log-prob is that of the weights
    whose version it carries, so no key or value of older weights was used (the prefix cache was reset)."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("openenv.core.harness")
    from transformers import AutoModelForCausalLM

    from drivetrain.rollout.openenv import AgentSessionFactory
    from drivetrain.training.file_transfer import EmbeddedTransfer

    load, runners = Load(), list[ScriptedRunner]()
    monkeypatch.setattr("drivetrain.rollout.openenv.factory.open_stack", stack_of(codec, {"load": load}, runners))
    engine = EmbeddedEngine(tiny_model, threads=1, max_batch=AGENTS, busy_prefill_chunk=1024)
    config = RolloutConfig(tasks=("load",), agents=("pi",), max_tokens=8)
    factory = AgentSessionFactory(config, run=tmp_path / "run", engine=engine, model=tiny_model)
    model = AutoModelForCausalLM.from_pretrained(str(tiny_model.path), dtype=torch.float32).eval()
    base = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def weights_of(version: int) -> dict[str, Any]:
        return {name: tensor * (1 + 0.01 * version) for name, tensor in base.items()}

    weights = FencedWeights(EmbeddedTransfer(engine), factory.gate, drain=Drain(mode=mode))
    weights.attach()
    sessions = [factory.create(routed_prompt("load", "pi"), seed=1, episode_id=str(i)) for i in range(AGENTS)]
    try:
        gateway = runners[0].gateway
        for version in range(1, UPDATES + 1):
            passed = gateway.fence.status().counts.passed
            _until(lambda: gateway.fence.status().counts.passed >= passed + AGENTS // 4)  # noqa: B023
            weights.pause()
            weights.send_weights(iter(weights_of(version).items()))
            weights.resume()
            weights.publish(version)
        counts = gateway.fence.status().counts
        load.stop.set()
        graphs = []
        for session in sessions:
            assert session.wait_for_completion() == 0
            session_id = session.verify([]).artifacts["session_id"]
            graphs.append(gateway.sessions.get(session_id).graph)
            session.close()
    finally:
        load.stop.set()
        factory.close()
    assert load.errors == []
    assert (counts.pauses, counts.aborted, counts.timeouts, counts.failed) == (UPDATES, 0, 0, 0)
    turns = [(graph, turn) for graph in graphs for turn in graph]
    assert all(check_graph(graph) == [] for graph in graphs)
    mixed = [turn for _, turn in turns if turn.policy_version_start != turn.policy_version_end]
    assert mixed if mode == "hold" else not mixed
    seen = {version for _, turn in turns for version in (turn.policy_version_start, turn.policy_version_end)}
    assert seen <= set(range(UPDATES + 1)) and len(seen) > UPDATES // 2
    if mode == "drain":  # a held call may begin and end under later versions than the one that it was let in under
        assert seen == set(range(UPDATES + 1))
    worst = _largest_difference(model, weights_of, turns[:: max(1, len(turns) // 60)])
    print(f"\n{mode}: {len(turns)} turns, {len(mixed)} of two versions, largest difference {worst:.1e}")
    assert worst < 1e-4


def _until(right: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not right():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def _largest_difference(model: Any, weights_of: Callable[[int], dict[str, Any]], turns: Any) -> float:
    """Of recorded log-probs to a plain forward pass under the weights that the record names, in nats."""
    import torch

    worst, loaded = 0.0, -1
    spans: list[tuple[int, Any, Any, int, int]] = []
    for graph, turn in turns:
        at = 0
        whole = [(len(turn.sampled_ids), turn.policy_version_start)]
        for count, version in turn.policy_spans or whole:
            spans.append((version, graph, turn, at, at + count))
            at += count
    for version, graph, turn, start, stop in sorted(spans, key=lambda span: span[0]):
        if version != loaded:
            model.load_state_dict(weights_of(version), strict=False)
            loaded = version
        prompt = graph.prompt_ids(turn).tolist()
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *turn.sampled_ids.tolist()]])).logits[0, len(prompt) - 1 : -1]
        exact = logits.log_softmax(-1).gather(1, torch.tensor(turn.sampled_ids.tolist()).unsqueeze(1)).squeeze(1)
        told = torch.tensor(turn.logprobs.tolist())
        worst = max(worst, float((exact - told)[start:stop].abs().max()) if stop > start else 0.0)
    return worst


async def test_a_local_gate_moves_a_version_without_closing(
    tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path
) -> None:
    engine = ScriptedEngine(tiny_model, lambda *_: "x")
    gateway = Gateway(engine, codec, tmp_path / "journal.sqlite", model="policy")
    gate = LocalGate(gateway, asyncio.get_running_loop())
    await asyncio.to_thread(gate.advance, 3)
    assert engine.policy_version == 3 and gateway.fence.status().counts.pauses == 0
    completion = await engine.generate([1], Sampling(max_tokens=1), request_id="1")
    assert completion.policy_version_start == 3
    await gateway.aclose()
