"""The scripted engine: real ids, honest ends, faults on demand."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import ContextOverflow, Engine, EngineError, Sampling
from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply
from drivetrain.errors import ConfigError

SAMPLING = Sampling(max_tokens=100, stop_token_ids=(2,))


async def ask(engine: Engine, ids: list[int], session: str = "s", sampling: Sampling = SAMPLING) -> Any:
    return await engine.generate(ids, sampling, request_id="r", session_id=session)


async def test_text_becomes_ids_closed_by_the_stop_token(tiny: ModelDir, tokenizer: Any) -> None:
    seen: list[Any] = []

    def script(ids: list[int], text: str, index: int) -> str:
        seen.append((ids, text, index))
        return "def f():"

    engine = ScriptedEngine(tiny, script)
    assert isinstance(engine, Engine)
    prompt = tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n").ids
    done = await ask(engine, prompt)
    assert tokenizer.decode(list(done.token_ids)) == "def f():"
    assert done.token_ids[-1] == 2
    assert done.finish_reason == "stop"
    assert len(done.logprobs) == len(done.token_ids)
    assert all(math.isfinite(value) and value < 0 for value in done.logprobs)
    assert seen == [(prompt, "<|im_start|>user\nhi<|im_end|>\n", 0)]
    assert await ask(engine, prompt, "other") == done
    await ask(engine, prompt)
    assert [(call.session_id, call.index, call.outcome) for call in engine.calls] == [
        ("s", 0, "stop"), ("other", 0, "stop"), ("s", 1, "stop"),
    ]  # fmt: skip


async def test_limits(tiny: ModelDir) -> None:
    engine = ScriptedEngine(tiny, lambda *_: "some longer text here", context_length=10)
    cut = await ask(engine, [5], sampling=Sampling(max_tokens=2))
    assert (len(cut.token_ids), cut.finish_reason) == (2, "length")
    near = await ask(engine, [5] * 9)
    assert (len(near.token_ids), near.finish_reason) == (1, "length")
    with pytest.raises(ContextOverflow):
        await ask(engine, [5] * 10)


async def test_lines_per_session(tiny: ModelDir, tokenizer: Any) -> None:
    engine = ScriptedEngine.from_lines({"a": ["one", "two"], "b": ["three"]}, tiny)

    async def say(session: str) -> str:
        done = await ask(engine, [5], session)
        return str(tokenizer.decode(list(done.token_ids)))

    assert [await say("a"), await say("b"), await say("a")] == ["one", "three", "two"]
    with pytest.raises(EngineError, match="2 replies"):
        await say("a")
    forever = ScriptedEngine.from_lines(["x"], tiny.path, then="done")
    assert [len((await ask(forever, [5])).token_ids) for _ in range(3)][1:] == [
        len(tokenizer.encode("done").ids) + 1
    ] * 2


async def test_faults(tiny: ModelDir) -> None:
    lines = [
        ScriptedReply(error=EngineError("down")),
        ScriptedReply(hang=True),
        ScriptedReply(token_ids=[7, 8], logprobs=[-0.5, -0.25], finish_reason="abort"),
    ]
    engine = ScriptedEngine.from_lines(lines, tiny)
    with pytest.raises(EngineError, match="down"):
        await ask(engine, [5])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await ask(engine, [5])
    last = await ask(engine, [5])
    assert (list(last.token_ids), list(last.logprobs), last.finish_reason) == ([7, 8], [-0.5, -0.25], "abort")
    assert [call.outcome for call in engine.calls] == ["error", "cancelled", "abort"]
    assert engine.running == 0


async def test_latency_overlaps_and_versions_are_those_of_the_call(tiny: ModelDir) -> None:
    engine = ScriptedEngine(tiny, lambda *_: "x", latency_s=0.05)
    calls = [asyncio.ensure_future(ask(engine, [5])) for _ in range(4)]
    await asyncio.sleep(0.01)
    engine.policy_version = 3
    done = await asyncio.gather(*calls)
    assert engine.peak == 4
    assert {(one.policy_version_start, one.policy_version_end) for one in done} == {(0, 3)}


def test_tokenizer_file_needs_a_stop_token(tiny: ModelDir) -> None:
    ScriptedEngine(tiny.tokenizer_path, lambda *_: "x")
    with pytest.raises(ConfigError, match="does not exist"):
        ScriptedEngine(tiny.path / "nothing.json", lambda *_: "x")
