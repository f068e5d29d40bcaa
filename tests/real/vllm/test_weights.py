"""New weights from a file while calls are in flight: held, loaded, cache reset, confirmed, resumed.

What is recorded is proven twice: against vLLM's own ``weight_versions``, and token by token against a transformers
forward pass under the weights that the record names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from drivetrain.engines.fingerprint import Fingerprint, WeightsMismatch
from drivetrain.engines.fingerprint_torch import fingerprint_of
from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import Completion
from drivetrain.engines.vllm.wire import WIRES, GenerateReply, GenerateWire
from drivetrain.gateway.core import Gateway
from drivetrain.messages import Message
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.sample import rows_of
from drivetrain.trace.validate import check_graph, check_rows
from tests.real.vllm.support import QUESTIONS, Watched, changed_weights, gaps_of, load, metric, talk, until
from tests.real.vllm_server import LiveServer

TALKS, TURNS, TOKENS = 4, 2, 64
TOLERANCE = 1e-3


class Listening(GenerateWire):
    """Keeps the spans that the server tells, by the ids that they are of."""

    def __init__(self) -> None:
        self.told: dict[tuple[int, ...], Any] = {}

    def read(self, reply: GenerateReply, prompt_ids: Sequence[int]) -> Any:
        (choice,) = reply.choices
        key = (*prompt_ids, *(choice.token_ids or ()))
        self.told[key] = choice.weight_versions
        return super().read(reply, prompt_ids)


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> Listening:
    wire = Listening()
    monkeypatch.setitem(WIRES, "generate", wire)
    return wire


@pytest.fixture(scope="module")
def text(codec: TokenCodec) -> list[int]:
    return codec.first_prompt([Message("user", " ".join(QUESTIONS))], [])


@pytest.fixture(scope="module")
def new(weights: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    """Other weights but for the embedding: vLLM on CPU can load these."""
    path = tmp_path_factory.mktemp("weights") / "new.safetensors"
    yield changed_weights(weights, path, embedding=False)
    path.unlink()


@pytest.fixture
async def restored(
    gateway: tuple[Gateway, str], server: LiveServer, model: ModelDir, weights: Any, text: list[int]
) -> AsyncIterator[None]:
    """Afterwards the server has its first weights again, and they are confirmed."""
    yield
    fence = gateway[0].fence
    version = fence.policy_version + 1
    await fence.pause("drain", owner="restore")  # takes over what has failed
    await load(server, model.path / "model.safetensors")
    await fence.resume(version, fingerprint=fingerprint_of(weights, text, tolerance=TOLERANCE), owner="restore")


@pytest.mark.case("E1", "E2", "E3", "E4")
@pytest.mark.usefixtures("restored")
async def test_held_calls_straddle_and_every_token_has_its_version(
    gateway: tuple[Gateway, str],
    engine: Watched,
    server: LiveServer,
    codec: TokenCodec,
    weights: Any,
    new: tuple[Any, Path],
    text: list[int],
    listening: Listening,
) -> None:
    front, url = gateway
    policies = (weights, new[0])
    sampled_before = await metric(server, "generation_tokens_total")
    talking = [asyncio.ensure_future(talk(front, url, TURNS, TOKENS, seed=seed)) for seed in range(TALKS)]
    await until(lambda now: now >= sampled_before + 4 * TALKS, server, "generation_tokens_total")
    async with front.fence.paused("hold", deadline_s=60) as update:
        held = front.fence.status().in_flight
        assert held and not any(task.done() for task in talking)
        sampled = await metric(server, "generation_tokens_total")
        await load(server, new[1])
        assert await metric(server, "generation_tokens_total") == sampled  # nothing is sampled
        update.version, update.fingerprint = 1, fingerprint_of(new[0], text, tolerance=TOLERANCE)
    sessions = await asyncio.gather(*talking)

    turns = [(session.graph, turn) for session in sessions for turn in session.graph]
    assert len(turns) == TALKS * TURNS
    assert all(turn.finish_reason in ("stop", "length") for _, turn in turns)
    straddled = [turn for _, turn in turns if turn.policy_version_start != turn.policy_version_end]
    # of those held, a call may have sampled nothing yet, or its last token already
    assert 0 < len(straddled) <= held
    labelled = engine.served.versions[0] >= "0.32"
    versions: set[int] = set()
    for graph, turn in turns:
        prompt = graph.prompt_ids(turn).tolist()
        ids = turn.sampled_ids.tolist()
        told = listening.told[(*prompt, *ids)]
        assert (told is not None) == labelled
        spans = list(turn.policy_spans) or [(len(ids), turn.policy_version_end)]
        if labelled:
            assert [count for count, _ in spans] == [span.end - span.start for span in told], "vLLM's own"
            assert [told[0].start, told[-1].end] == [0, len(ids)]
            assert len({span.version for span in told}) == len(told)
        elif turn.policy_version_start != turn.policy_version_end:  # 0.31 does not say where
            assert not turn.policy_spans
            spans = []
        done = Completion(
            token_ids=ids,
            logprobs=turn.logprobs.tolist(),
            finish_reason="length",
            policy_version_start=turn.policy_version_start,
            policy_version_end=turn.policy_version_end,
        )
        sample = [(prompt, 1.0, done)]
        asked = {version for _, version in spans} or {0, 1}
        off = {version: gaps_of(policies[version], sample) for version in asked}
        if not spans:
            moved = off[0] > 1e-3
            switch = int(moved.argmax()) if moved.any() else len(ids)
            spans = [(count, version) for count, version in ((switch, 0), (len(ids) - switch, 1)) if count]
        at = 0
        for count, version in spans:
            assert turn.policy_version_start <= version <= turn.policy_version_end
            assert off[version][at : at + count].max() < 1e-3, (version, at, off[version])
            if len(spans) > 1 and count > 3:
                assert off[1 - version][at : at + count].mean() > 1e-2, "or the file changed nothing"
            versions.add(version)
            at += count
        assert at == len(ids)
    assert versions == {0, 1}
    if labelled:
        print(f"\nheld {held}, spans of the straddling: {[list(turn.policy_spans) for turn in straddled]}")
        assert all(len(turn.policy_spans) == 2 for turn in straddled)
    assert await metric(server, "generation_tokens_total") - sampled_before >= sum(len(t.sampled_ids) for _, t in turns)
    for session in sessions:
        rows = rows_of(session.graph)
        assert len(rows) == 1
        assert check_graph(session.graph, vocab_size=codec.tokenizer.vocab_size) == []
        assert check_rows(session.graph, rows) == []


@contextmanager
def mismatch(cause: str) -> Iterator[None]:
    with pytest.raises(WeightsMismatch) as error:
        yield
    print(f"\n{cause}: {error.value}", end="")
    assert error.value.cause == cause


@pytest.mark.case("E1", "E4")
@pytest.mark.usefixtures("restored")
async def test_an_update_that_did_not_arrive_or_left_the_head_old_is_refused(
    gateway: tuple[Gateway, str],
    server: LiveServer,
    weights: Any,
    new: tuple[Any, Path],
    text: list[int],
    tmp_path: Path,
) -> None:
    """Servers answer 200 and are healthy in both cases. The head is tied to the embedding, and vLLM's reload on CPU
    leaves its packed copy as it was."""
    fence = gateway[0].fence

    def expected(model: Any) -> Fingerprint:
        return fingerprint_of(model, text, tolerance=TOLERANCE)

    await fence.pause()
    await fence.resume(1, fingerprint=expected(weights))
    await fence.pause()
    with mismatch("unchanged"):
        await fence.resume(2, fingerprint=expected(new[0]))
    await load(server, new[1])
    await fence.resume(2, fingerprint=expected(new[0]))
    whole, path = changed_weights(weights, tmp_path / "whole.safetensors", embedding=True)
    await fence.pause()
    await load(server, path)
    path.unlink()
    with mismatch("neither"):
        await fence.resume(3, fingerprint=expected(whole))
    assert fence.status().failed
