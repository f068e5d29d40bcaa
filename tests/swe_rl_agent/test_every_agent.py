"""What must hold for every agent, unmodified, in a real sandbox without a network: one exact chain whatever fails."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from drivetrain.engines.embedded import EmbeddedEngine
from drivetrain.engines.models import ModelDir, resolve_model
from drivetrain.engines.protocol import Completion, Engine, Sampling
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.engines.tiny import build_tiny_model
from drivetrain.gateway.model import load_codec
from drivetrain.tokens.codec import TokenCodec
from swe_rl_agent import list_agents
from tests.agent_claims import note

from .agents_kit import WAYS
from .conftest import Boxes
from .gateway_kit import CONTEXT, Done, Line, tool_names
from .native_kit import BUSY, NetBench, attempts_elsewhere, make_bench, statuses, tool_results

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


def test_every_agent_is_here() -> None:
    assert set(WAYS) == set(list_agents())


class LongBench(NetBench):
    context = CONTEXT


@pytest.mark.agent_claim("task", "other connections", "retry", "lost reply")
@pytest.mark.parametrize("name", list_agents())
async def test_a_task_is_one_exact_chain_whatever_fails(
    name: str,
    sandbox_for: Boxes,
    socket_path: Path,
    tiny_model: ModelDir,
    codec: TokenCodec,
    record_property: Callable[[str, object], None],
) -> None:
    """503 for the first call; later a reply that never arrives is asked for again and served from memory. Every prompt
    continues the last, the key is out of reach of the policy's commands, and nothing but the gateway is called."""
    way = WAYS[name]
    bench = make_bench(name, None, sandbox_for, socket_path.parent, tiny_model, codec, LongBench)
    done = await bench.run((BUSY, *way.script), lose=frozenset({4}))
    killed = {137, 143} if bench.agent.preset.linger_s else set()  # it may stay after its last word
    assert done.outcome.stop == "completed" and done.outcome.exit_code in {0, *killed}, done.summary()
    assert done.files["answer.txt"] == b"right\n"
    assert statuses(done) == [503, 200, 200, 0, 200, 200, 200], done.summary()
    assert {seen.path for seen in done.relay.seen} == {way.path}
    done.assert_one_exact_chain(5)
    assert done.session.events["replayed"] == 1
    first = done.relay.seen[0].body
    assert (way.asked(first), way.limit(first)) == (way.task, 2000)
    assert way.tools <= set(tool_names(first))
    assert not [tool for tool in tool_names(first) for part in way.absent if part in tool]
    assert [seen.body.get("stream", name == "gemini-cli") for seen in done.relay.seen] == [
        bench.agent.preset.stream
    ] * 7
    results = tool_results(done)
    assert "HOME=/home/agent" in results and "good" in results
    assert not any(key in results for key in keys_of(done))
    assert attempts_elsewhere(bench.network) == {}
    note(record_property, name, tools=len(tool_names(first)), request_kb=round(len(json.dumps(first)) / 1000))


def keys_of(done: Done) -> set[str]:
    """The session key as the agent sent it."""
    names = {"authorization", "x-api-key", "x-goog-api-key"}
    sent = {value for seen in done.relay.seen for name, value in seen.headers.items() if name.lower() in names}
    keys = {value.removeprefix("Bearer ") for value in sent}
    assert len(keys) == 1
    return keys


class FirstDictated:
    """The first answer is given, so that there is a second prompt; what a model says to that is its own."""

    def __init__(self, script: ScriptedEngine, model: EmbeddedEngine) -> None:
        self._script, self._model = script, model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session_id: str = ""
    ) -> Completion:
        engine: Engine = self._model if self._script.calls else self._script
        return await engine.generate(prompt_ids, sampling, request_id=request_id, session_id=session_id)


class ModelBench(LongBench):
    """Samples with the model; the first answer is dictated if there is a line for it."""

    def _engine(self, lines: Sequence[Line] | Callable[[list[int], str, int], Line]) -> Engine:
        model = EmbeddedEngine(self.tiny, max_batch=1, threads=1)
        if not lines or callable(lines):
            return model
        script = ScriptedEngine.from_lines(lines, self.tiny, context_length=CONTEXT)
        return FirstDictated(script, model)


@pytest.fixture(scope="session")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> ModelDir:
    """A random model whose context holds the longest first prompt, with a tokenizer that keeps it short."""
    folder = Path(tmp_path_factory.mktemp("long")) / "long"
    sizes = {"vocab_size": 4096, "context": 200_000, "hidden": 16, "layers": 1, "heads": 1, "kv_heads": 1}
    return build_tiny_model(folder, **sizes)


@pytest.mark.agent_claim("real model")
@pytest.mark.parametrize("name", ["codex", "gemini-cli", "opencode", "qwen-code"])
async def test_a_model_with_a_long_context_samples(
    name: str, sandbox_for: Boxes, socket_path: Path, long_model: ModelDir
) -> None:
    """Random weights: two turns in one row, the second sampled behind all of the first and cut."""
    variant = "small" if name == "codex" else None
    bench = make_bench(name, variant, sandbox_for, socket_path.parent, long_model, load_codec(long_model), ModelBench)
    done = await bench.run([WAYS[name].shell("cat answer.txt")], max_output_tokens=100, max_turns=2)
    sampled(done, 2)
    cut = done.session.graph[1].finish_reason == "length"
    assert done.outcome.stop == (WAYS[name].cut if cut else "completed"), done.summary()
    assert len(done.relay.seen) == 2, "a cut answer is not asked for again"


@pytest.mark.agent_claim("real model")
@pytest.mark.parametrize("name", ["claude-code", "mini-swe-agent", "pi"])
async def test_smollm2_samples(name: str, sandbox_for: Boxes, socket_path: Path) -> None:
    """Their prompts fit into its context. Pi and mini-swe-agent up to a training step: tests/real/test_smollm2.py."""
    model = resolve_model()
    bench = make_bench(name, "small", sandbox_for, socket_path.parent, model, load_codec(model), ModelBench)
    turns = 1 if name == "mini-swe-agent" else 2  # it drops an answer without a call, which forks
    done = await bench.run([], max_output_tokens=12, max_turns=turns)
    sampled(done, len(done.session.graph))
    assert not done.outcome.infrastructure, done.summary()


def sampled(done: Done, turns: int) -> None:
    """Valid rows: one chain, finite log-probs where the policy is trained, nothing that an audit finds."""
    assert len(done.session.graph) == turns > 0, done.summary()
    (row,) = done.rows
    assert len(row.response_ids) == len(row.loss_mask) == len(row.response_logprobs)
    assert sum(row.loss_mask) == sum(len(turn.sampled_ids) for turn in done.session.graph)
    assert all(math.isfinite(value) and value <= 0.0 for value in row.response_logprobs)
    last = row.response_logprobs[-len(done.session.graph[turns - 1].sampled_ids) :]
    assert any(value < 0.0 for value in last), "the model's own, not a script's"
    assert done.labels == ["agent"] * turns and done.forks == []
    assert done.findings == []
