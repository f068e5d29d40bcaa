"""The gateway before vLLM's wire: prompts extend verbatim, what is missing masks its turn, held calls carry spans."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.engines.vllm import VLLMEngine
from drivetrain.trace.sample import rows_of
from drivetrain.trace.validate import check_graph, check_rows
from tests.engines.vllm.double import VLLMDouble, WireFaults
from tests.gateway.conftest import StartRig, bash_call, start_rig
from tests.gateway.test_turns import play

__all__ = ["start_rig"]

LINES = [bash_call(f"step {number}") for number in range(4)]
APIS: list[dict[str, Any]] = [
    {},
    {"scale_out": True, "version": "0.31.0"},
    {"scale_out": True, "version": "0.32.0"},
]


@pytest.fixture
async def served(tiny_model: ModelDir, request: pytest.FixtureRequest) -> AsyncIterator[tuple[VLLMEngine, VLLMDouble]]:
    options = dict(request.param)
    script = ScriptedEngine.from_lines(LINES, tiny_model, **options.pop("scripted", {}))
    double = VLLMDouble(script, vocab_size=tiny_model.vocab_size, **options)
    engine = VLLMEngine(await double.start())
    await engine.start()
    yield engine, double
    await engine.aclose()
    await double.stop()


def sent(double: VLLMDouble) -> list[list[int]]:
    return [body.get("prompt") or body["token_ids"] for body in double.requests]


@pytest.mark.parametrize("served", APIS, indirect=True, ids=["completions", "generate-0.31", "generate-0.32"])
async def test_prompts_extend_verbatim_and_are_one_row(
    served: tuple[VLLMEngine, VLLMDouble], start_rig: StartRig
) -> None:
    engine, double = served
    rig = await start_rig(engine=engine)
    session, client = await rig.session()
    await play(client, 4)
    turns = list(session.graph)
    for previous, turn, prompt in zip(turns[:-1], turns[1:], sent(double)[1:], strict=True):
        stored = session.graph.ids_through(previous).tolist()
        assert prompt[: len(stored)] == stored
        assert prompt == session.graph.prompt_ids(turn).tolist()
    (row,) = rows_of(session.graph)
    assert sum(row.loss_mask) == sum(len(turn.sampled_ids) for turn in turns)
    assert check_graph(session.graph, vocab_size=rig.gateway.codec.tokenizer.vocab_size) == []
    assert check_rows(session.graph, [row]) == []


@pytest.mark.case("B1", "B2", "B6")
@pytest.mark.parametrize("served", [{}], indirect=True, ids=[""])
@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        (WireFaults(drops=("logprobs",)), "no_logprob"),
        (WireFaults(misnames=True), "logprob"),
        (WireFaults(null_at=1), "logprob"),
        (WireFaults(drops_stop=True), "no_logprob"),
    ],
    ids=["no log-probs", "misnamed", "one missing", "one id missing"],
)
async def test_a_turn_without_evidence_is_served_and_not_trained(
    served: tuple[VLLMEngine, VLLMDouble], start_rig: StartRig, faults: WireFaults, reason: str
) -> None:
    engine, double = served
    rig = await start_rig(engine=engine)
    session, client = await rig.session()
    double.instead = lambda number: setattr(double, "faults", WireFaults() if number else faults)
    await play(client, 2)
    spoilt, sound = list(session.graph)
    rows = rows_of(session.graph)
    assert sum(sum(row.loss_mask) for row in rows) == len(sound.sampled_ids)
    masked = {why for row in rows for why in row.metadata["masked"]}
    assert any(reason in why for why in masked), masked
    assert len(spoilt.sampled_ids)


@pytest.mark.case("E1", "E2")
@pytest.mark.parametrize(
    "served", [{"scale_out": True, "version": "0.32.0", "scripted": {"per_token_s": 0.01}}], indirect=True, ids=[""]
)
async def test_a_held_turn_carries_the_servers_spans(
    served: tuple[VLLMEngine, VLLMDouble], start_rig: StartRig
) -> None:
    engine, double = served
    rig = await start_rig(engine=engine)
    session, client = await rig.session()
    talking = asyncio.ensure_future(play(client, 1))
    while not double.requests:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.1)
    async with rig.gateway.fence.paused("hold") as update:
        double.update()
        update.version = 1
    await talking
    (turn,) = session.graph
    (before, old), (after, new) = turn.policy_spans
    assert (old, new, before + after) == (0, 1, len(turn.sampled_ids))
    assert (turn.policy_version_start, turn.policy_version_end) == (0, 1)
