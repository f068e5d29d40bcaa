"""The probe through real HTTP: an honest server passes, and each fault fails its own check with its own message."""

from __future__ import annotations

import re
from typing import Any

import pytest

from drivetrain.engines.probe import ProbeReport, probe_engine
from drivetrain.engines.probe_checks import CHECKS, CheckName
from drivetrain.engines.vllm import VLLMEngine
from drivetrain.errors import ConfigError
from tests.engines.table_engine import CODEC, Faults
from tests.engines.vllm.double import KnobTable, VLLMDouble, WireFaults, serving

W = WireFaults


async def probed(
    table: Faults | None = None, *, api: Any = "completions", call_timeout_s: float = 60.0, **double: Any
) -> ProbeReport:
    server = VLLMDouble(KnobTable(table), **double)
    async with serving(server) as urls:
        engine = VLLMEngine(urls, api=api)
        await engine.start()
        try:
            return await probe_engine(engine, CODEC, call_timeout_s=call_timeout_s)
        finally:
            await engine.aclose()


def failed(report: ProbeReport) -> set[CheckName]:
    return {finding.check for finding in report.findings if finding.status == "failed"}


@pytest.mark.case("B4", "B6")
@pytest.mark.parametrize(
    "double",
    [
        {"api": "completions", "generation_config": {"top_p": 0.9, "top_k": 20, "temperature": 0.6}},
        {"api": "generate", "scale_out": True, "version": "0.31.0", "generation_config": {"top_k": 20}},
        {"api": "generate", "scale_out": True, "version": "0.32.0"},
    ],
    ids=["completions", "generate-0.31", "generate-0.32"],
)
async def test_an_honest_server_passes(double: dict[str, Any]) -> None:
    report = await probed(**double)
    assert [(f.check, f.status) for f in report.findings] == [(check.name, "passed") for check in CHECKS], report
    report.require_trainable()


FAULTS: list[tuple[dict[str, Any], CheckName, str]] = [
    ({"faults": W(refuses_ids=True)}, "ids_in", "30 token ids was refused: .*answered 400: prompt must be a string"),
    ({"faults": W(drops=("token_ids",))}, "ids_out", "no token ids came back.*router in between must pass"),
    ({"faults": W(drops=("logprobs",))}, "counts", "8 ids came with 0 log-probs"),
    ({"table": Faults(miscounts=True)}, "counts", "counted 9 tokens and returned 8 ids"),
    ({"faults": W(null_at=0)}, "values", "position 0 is nan"),
    ({"faults": W(floor_at=0)}, "values", "position 0 is -inf"),
    ({"faults": W(misnames=True)}, "values", "position 0 is nan"),
    ({"table": Faults(ignores_max_tokens=True)}, "limit", "11 tokens came back where 8 were asked for"),
    ({"table": Faults(shift=1)}, "aligned", "shifted: each stands one place behind its token"),
    ({"table": Faults(raw=True)}, "temperature", "log-probs are raw"),
    (
        {"faults": W(ignores=("top_k",)), "generation_config": {"top_k": 50}},
        "unfiltered",
        "top_k=1 was asked for and did not act.*a default of the server may be active",
    ),
    (
        {"faults": W(ignores=("top_p",)), "generation_config": {"top_p": 0.9}},
        "unfiltered",
        "top_p=1e-06 was asked for and did not act",
    ),
    ({"faults": W(ignores=("min_p",))}, "unfiltered", "min_p=1 was asked for and did not act"),
    (
        {"faults": W(most={"top_p": 0.9})},
        "unfiltered",
        r"of \d\d tokens made equally likely about \d\d can be sampled: a top-p is active, whatever",
    ),
    ({"faults": W(drops_stop=True)}, "stop_token", "a stop token that is not among the ids"),
    ({"faults": W(ignores=("seed",))}, "seeds_differ", "24 seeds gave the same token at T=2"),
    ({"table": Faults(no_seed=True)}, "seed_repeats", "the same seed gave different tokens"),
    ({"table": Faults(context=100)}, "context_length", "context of 100 tokens holds no agent's first prompt"),
    ({"faults": W(overflow_status=500)}, "context_length", "another error than context overflow: .* 500"),
    (
        {"faults": W(one_at_a_time=True), "call_timeout_s": 1.0},
        "cancellation",
        "the engine failed: no answer within 1 s",
    ),
]


@pytest.mark.case("B1", "B2", "B4", "B6")
@pytest.mark.parametrize(("fault", "check", "what"), FAULTS, ids=[f"{row[1]}-{row[2][:28]}" for row in FAULTS])
async def test_a_fault_fails_its_check(fault: dict[str, Any], check: CheckName, what: str) -> None:
    report = await probed(**fault)
    finding = report.finding(check)
    assert finding.status == "failed", report
    assert re.search(what, finding.what), finding
    assert failed(report) == {check}, report
    if check == "seed_repeats":
        report.require_trainable()  # told, and no obstacle
        return
    with pytest.raises(ConfigError, match="cannot be trained on") as error:
        report.require_trainable()
    assert finding.what in str(error.value)


@pytest.mark.case("E1")
async def test_a_server_with_the_weights_of_another_version_fails(api: str = "generate") -> None:
    """It was told of version 1 and restarted from its old weights."""
    server = VLLMDouble(KnobTable(), version="0.32.0", scale_out=True)
    async with serving(server) as urls:
        engine = VLLMEngine(urls)
        await engine.start()
        await engine.set_policy_version(1)
        server.labels[0] = "default"
        report = await probe_engine(engine, CODEC)
        await engine.aclose()
    assert failed(report) == {"policy_version"}, report
    assert report.finding("policy_version").what == (
        "a completion says versions (0, 0); the engine says 1 before and 1 after it."
    )


OWN_TESTS = {"policy_version": test_a_server_with_the_weights_of_another_version_fails}


def test_every_check_has_a_fault() -> None:
    assert {check for _, check, _ in FAULTS} | OWN_TESTS.keys() == {check.name for check in CHECKS}


@pytest.mark.case("B4")
async def test_a_bias_that_does_not_act_is_no_evidence() -> None:
    report = await probed(faults=W(ignores=("logit_bias",)))
    assert report.finding("unfiltered").status == "unknown", report
    assert report.finding("unfiltered").what == "a bias on tokens does not act."
    with pytest.raises(ConfigError, match=r"unfiltered \(unknown\)"):
        report.require_trainable()
