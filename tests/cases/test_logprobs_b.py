"""Log-probs and masks (docs/cases.md, B): what an engine gets wrong is masked and named, probed for, or stops a run."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.probe import probe_engine
from drivetrain.engines.protocol import Completion, Sampling
from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply
from drivetrain.errors import ConfigError
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.sessions import Session
from drivetrain.messages import Call, Message
from drivetrain.rollout.config import EpisodeSpec, RolloutConfig
from drivetrain.rollout.episode import EpisodeRunner
from drivetrain.rollout.mask_guard import MaskedFractionExceeded, MaskGuard
from drivetrain.rollout.run_dir import RunDir
from drivetrain.sandboxes.protocol import SandboxError
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.sample import rows_of, sampled_by_reason
from drivetrain.trace.validate import check_graph, check_rows
from tests.engines.table_engine import CODEC, Faults, TableEngine

IDS = [40, 41, 42, 2]
GOOD = [-0.5, -0.25, -1.0, -0.125]


class Counting(ScriptedEngine):
    """Says how many tokens it sampled; ``off`` is how far that is from the ids it returns in the first call."""

    off = 0

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session_id: str = ""
    ) -> Completion:
        done = await super().generate(prompt_ids, sampling, request_id=request_id, session_id=session_id)
        off = self.off if len(self.calls) == 1 else 0
        return msgspec.structs.replace(done, reported_tokens=len(done.token_ids) + off)


async def talk(engine: ScriptedEngine, codec: TokenCodec, journal: Path, turns: int = 2) -> Session:
    """A conversation in one chain."""
    gateway = Gateway(engine, codec, journal, model="m")
    session, _ = await gateway.open_session(SessionPolicy(model="m"))
    history: tuple[Message, ...] = (Message("user", "start"),)
    for turn in range(turns):
        served = await gateway.serve(session, Call("test", "m", history), str(turn).encode())
        await gateway.delivered(session, served)
        history += (served.reply.as_message(), Message("user", f"go on {turn}"))
    await gateway.seal_session(session.id)
    await gateway.aclose()
    return session


def trained(session: Session) -> list[int]:
    """Turns that are trained; everything about the rows is checked."""
    rows = rows_of(session.graph)
    assert check_rows(session.graph, rows) == []
    assert all(not math.isnan(value) and value <= 0 for row in rows for value in row.response_logprobs)
    return [turn for row in rows for turn in row.metadata["trained_turns"]]


@pytest.mark.case("B1")
@pytest.mark.parametrize(("off", "reason"), [(0, ""), (3, "no_logprob"), (-1, "no_logprob")])
async def test_ids_that_got_lost(
    tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path, off: int, reason: str
) -> None:
    """The engine counted other than it returned: the turn is context for the next, and is not trained."""
    engine = Counting.from_lines([ScriptedReply(token_ids=IDS, logprobs=GOOD)], tiny_model, then="more")
    assert isinstance(engine, Counting)
    engine.off = off
    session = await talk(engine, codec, tmp_path / "journal.sqlite")
    first, second = session.graph
    assert second.link == "linear"
    assert ("usage_mismatch" in first.notes) is bool(off)
    assert sampled_by_reason(session.graph).get("no_logprob", 0) == (len(IDS) if reason else 0)
    assert trained(session) == ([second.id] if reason else [first.id, second.id])


BAD: dict[str, tuple[list[float], str]] = {
    "fewer": (GOOD[:3], "logprob_count"),
    "more": ([*GOOD, -0.5], "logprob_count"),
    "none": ([], "logprob_count"),
    "nan": ([-0.5, float("nan"), -1.0, -0.125], "logprob_not_finite"),
    "-inf": ([-0.5, -0.25, -1.0, float("-inf")], "logprob_not_finite"),
    "positive": ([-0.5, 0.25, -1.0, -0.125], "logprob_positive"),
}


@pytest.mark.case("B2")
@pytest.mark.parametrize("kind", BAD)
async def test_unusable_logprobs_mask_the_turn(
    tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path, kind: str
) -> None:
    logprobs, code = BAD[kind]
    engine = ScriptedEngine.from_lines([ScriptedReply(token_ids=IDS, logprobs=logprobs)], tiny_model, then="more")
    session = await talk(engine, codec, tmp_path / "journal.sqlite")
    first, second = session.graph
    assert code in first.notes, first.notes
    assert [finding.code for finding in check_graph(session.graph)] == [code]
    assert trained(session) == [second.id]
    assert rows_of(session.graph)[0].metadata["masked"] == {"no_logprob": len(IDS)}


@pytest.mark.case("B2")
async def test_a_shift_of_equal_length_is_found_by_the_probe_only(
    tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path
) -> None:
    """Every value is a log-prob: nothing in the trace can tell. So the probe samples the tokens again."""
    rotated = [GOOD[-1], *GOOD[:-1]]
    engine = ScriptedEngine.from_lines([ScriptedReply(token_ids=IDS, logprobs=rotated)], tiny_model, then="more")
    session = await talk(engine, codec, tmp_path / "journal.sqlite")
    assert check_graph(session.graph) == []
    report = await probe_engine(TableEngine(Faults(shift=1)), CODEC)
    with pytest.raises(ConfigError, match="shifted: each stands one place behind its token"):
        report.require_trainable()


@pytest.mark.case("B4", "B6")
@pytest.mark.parametrize(
    ("faults", "said"),
    [
        (Faults(raw=True), "processed_logprobs"),
        (Faults(top_p=0.9), "Pin top_p=1"),
        (Faults(no_logprobs=True), "let routers pass them on"),
        (Faults(no_ids=True), "a router in between must pass them on"),
    ],
    ids=["raw", "renormalised", "router strips log-probs", "router strips ids"],
)
async def test_wrong_or_stripped_fields_refuse_training(faults: Faults, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        (await probe_engine(TableEngine(faults), CODEC)).require_trainable()
    assert said in str(error.value)


@pytest.mark.case("B7")
async def test_lost_evidence_stops_a_run(tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path) -> None:
    """Turns with calls lose their log-probs, the others do not: trained as they are, the policy unlearns its tools."""

    def script(_ids: list[int], _text: str, index: int) -> ScriptedReply:
        ids = codec.tokenizer.encode("<tool_call> and so on" if index % 3 else "done")
        return ScriptedReply(token_ids=[*ids, 2], logprobs=[] if index % 3 else None)

    guard = MaskGuard(0.5)
    for rollout in range(3):
        session = await talk(ScriptedEngine(tiny_model, script), codec, tmp_path / f"{rollout}.sqlite", turns=9)
        assert trained(session) == [0, 3, 6]
        guard.add(len(session.graph), sampled_by_reason(session.graph))
    with pytest.raises(MaskedFractionExceeded, match=r"lost to faults \(no_logprob \d+\); the limit is 50%") as caught:
        guard.check()
    assert "the engine returns no usable log-probs" in caught.value.fix


class NoSandbox:
    """A backend that is down."""

    async def create(self, _spec: Any) -> Any:
        raise SandboxError("the daemon is gone")

    async def aclose(self) -> None:
        """Nothing to close."""


@pytest.mark.case("B9")
async def test_contract_failures_stop_and_a_rollouts_own_failure_counts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_masked_fraction is 2"):
        RolloutConfig(tasks=("t",), agents=("noop",), max_masked_fraction=2)
    config = RolloutConfig(tasks=("t",), agents=("noop",))
    run = RunDir.create(tmp_path / "run")
    run.write_info({})
    environment = SimpleNamespace(variables=lambda _task, _repo: {}, mounts=())
    checkout = tmp_path / "workspace.tar"
    checkout.write_bytes(b"")
    task = SimpleNamespace(public=SimpleNamespace(workdir_name="w"), image=None, checkout="/work/w")
    tasks: Any = {"t": SimpleNamespace(task=task, environment=environment, workspace_tar=checkout)}
    runner = EpisodeRunner(config, NoSandbox(), tasks, {}, run)  # type: ignore[arg-type]
    specs = [EpisodeSpec(rollout_id=f"t.noop.{n}", task_id="t", agent="noop", group=n, seed=None) for n in range(3)]
    results = await asyncio.gather(*[runner.run(spec) for spec in specs])
    assert [(result.status, result.reward) for result in results] == [("infra_error", None)] * 3
    assert {result.error for result in results} == {"the daemon is gone"}
