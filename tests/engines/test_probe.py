"""The probe: an honest engine passes every check, and each fault fails its own check with its own message."""

from __future__ import annotations

import re
from typing import Any

import pytest

from drivetrain.engines.embedded import EmbeddedEngine
from drivetrain.engines.models import ModelDir
from drivetrain.engines.probe import ProbeReport, probe_engine
from drivetrain.engines.probe_checks import CHECKS, CheckName
from drivetrain.engines.protocol import Engine, EngineError
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.errors import ConfigError
from drivetrain.tokens.codec import TokenCodec
from tests.engines.table_engine import CODEC, Faults, TableEngine


async def probed(**faults: Any) -> ProbeReport:
    return await probe_engine(TableEngine(Faults(**faults)), CODEC)


def failed(report: ProbeReport) -> set[CheckName]:
    return {finding.check for finding in report.findings if finding.status == "failed"}


@pytest.mark.case("B4")
async def test_the_embedded_engine_passes_every_check(tiny_model: ModelDir, codec: TokenCodec) -> None:
    pytest.importorskip("torch")
    engine = EmbeddedEngine(tiny_model, threads=1)
    await engine.start()
    report = await probe_engine(engine, codec)
    await engine.aclose()
    assert [(f.check, f.status) for f in report.findings] == [(check.name, "passed") for check in CHECKS], report
    report.require_trainable()


async def test_the_table_passes_every_check() -> None:
    engine = TableEngine()
    assert isinstance(engine, Engine)
    report = await probe_engine(engine, CODEC)
    assert {finding.status for finding in report.findings} == {"passed"}, report
    assert engine.calls < 600
    report.require_trainable()


BLOCKING: list[tuple[dict[str, Any], CheckName, str, str]] = [
    ({"refuses": True}, "ids_in", "30 token ids was refused: unknown field token_ids", "takes token ids"),
    ({"no_ids": True}, "ids_out", "no token ids came back", "router"),
    ({"foreign_id": True}, "ids_out", "2005 came back, which is no id below 2000", "Ask for token ids"),
    ({"no_logprobs": True}, "counts", "8 ids came with 0 log-probs", "logprobs=0"),
    ({"one_logprob_less": True}, "counts", "8 ids came with 7 log-probs", "do not stream"),
    ({"miscounts": True}, "counts", "counted 9 tokens and returned 8 ids", "do not stream"),
    ({"first_logprob": float("nan")}, "values", "position 0 is nan", "float32"),
    ({"first_logprob": 0.25}, "values", "position 0 is 0.25", "float32"),
    ({"ignores_max_tokens": True}, "limit", "11 tokens came back where 8 were asked for", "max_tokens"),
    ({"shift": 1}, "aligned", "shifted: each stands one place behind its token", "by its token id"),
    ({"shift": -1}, "aligned", "shifted: each stands one place before its token", "by its token id"),
    ({"shuffled": True}, "aligned", "not those of their tokens: sampled again they differ by", "by its token id"),
    ({"raw": True}, "temperature", "log-probs are raw", "processed_logprobs"),
    ({"top_k": 50}, "unfiltered", "about 50 of 2,000 tokens can be sampled", "generation-config"),
    ({"top_p": 0.9}, "unfiltered", "about 1,800 of 2,000 tokens can be sampled", "top_p=1"),
    ({"min_p": 0.2, "greedy_scale": 2.0}, "unfiltered", "have probability 1.00000 together", "min_p=0"),
    ({"drops_stop": True}, "stop_token", "a stop token that is not among the ids", "Return the stop token"),
    ({"runs_on": True}, "stop_token", "generation went on behind the stop token", "Return the stop token"),
    ({"stop_called_length": True}, "stop_token", "with a stop token and calls it length", "Return the stop token"),
    ({"version": None}, "policy_version", r"\(None, None\), not numbers", "weights' version"),
    ({"version": 3}, "policy_version", r"says versions \(3, 3\); the engine says 0", "weights' version"),
    ({"pinned_seed": True}, "seeds_differ", "24 seeds gave the same token", "do not pin one"),
    ({"context": 100}, "context_length", "context of 100 tokens holds no agent's first prompt", "max-model-len"),
    ({"overflow_error": True}, "context_length", "another error than context overflow: status 500", "max-model-len"),
    ({"answers_overflow": True}, "context_length", "fills the context, was answered", "max-model-len"),
    ({"swallows_cancel": True}, "cancellation", "a cancelled call went on to its end", "Abort the request"),
]


@pytest.mark.case("B1", "B2", "B4", "B6")
@pytest.mark.parametrize(("faults", "check", "what", "fix"), BLOCKING, ids=[str(row[0]) for row in BLOCKING])
async def test_a_fault_fails_its_check(faults: dict[str, Any], check: CheckName, what: str, fix: str) -> None:
    report = await probed(**faults)
    finding = report.finding(check)
    assert (finding.status, finding.needed) == ("failed", True), report
    assert re.search(what, finding.what), finding
    assert fix in finding.fix
    assert failed(report) == {check}, "no other check takes the blame"
    with pytest.raises(ConfigError, match="cannot be trained on") as error:
        report.require_trainable()
    assert finding.what in str(error.value) and finding.fix in str(error.value)


async def test_every_check_has_a_fault() -> None:
    assert {check for _, check, _, _ in BLOCKING} | {"seed_repeats"} == {check.name for check in CHECKS}
    report = await probed(no_seed=True)
    assert failed(report) == {"seed_repeats"}
    assert "different tokens" in report.finding("seed_repeats").what
    report.require_trainable()  # it can be trained, and not repeated


@pytest.mark.case("B6")
async def test_missing_evidence_refuses_training() -> None:
    """A distribution without any choice proves nothing about its log-probs."""
    report = await probed(greedy_scale=1e6)
    unknown = {finding.check for finding in report.findings if finding.status == "unknown"}
    assert {"aligned", "temperature"} <= unknown
    with pytest.raises(ConfigError, match=r"aligned \(unknown\): at no temperature"):
        report.require_trainable()
    blind = await probed(no_logprobs=True)
    assert blind.finding("aligned").what == "not tried: counts failed."


async def test_a_scripted_engine_is_no_model(tiny_model: ModelDir, codec: TokenCodec) -> None:
    engine = ScriptedEngine(tiny_model, lambda _ids, _text, index: f"say {index}", context_length=8192)
    with pytest.raises(ConfigError, match="engine scripted cannot be trained on"):
        (await probe_engine(engine, codec)).require_trainable()


async def test_an_engine_that_boots_is_asked_again() -> None:
    with pytest.raises(EngineError, match="connection refused"):
        await probe_engine(TableEngine(Faults(boots=1)), CODEC)
    report = await probe_engine(TableEngine(Faults(boots=1)), CODEC, boot_timeout_s=30)
    report.require_trainable()


async def test_a_failure_is_not_remembered() -> None:
    engine = TableEngine(Faults(raw=True))
    assert failed(await probe_engine(engine, CODEC)) == {"temperature"}
    engine.faults = Faults()
    assert failed(await probe_engine(engine, CODEC)) == set()
