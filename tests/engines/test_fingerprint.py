"""Fingerprints: what a mismatch looks like is named, and each server's numbers are read at the right token."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from drivetrain.engines.fingerprint import ChecksWeights, Fingerprint, Fingerprints, WeightsMismatch
from drivetrain.engines.protocol import EngineError, EngineMalformed, Sampling
from drivetrain.engines.sglang import SGLangEngine
from drivetrain.engines.vllm import VLLMEngine
from drivetrain.errors import ConfigError
from tests.engines.sglang.double import Server
from tests.engines.vllm.double import KnobTable, VLLMDouble, WireFaults, scored, serving

IDS = (5, 9, 7, 1, 12, 30)


def of(weights: int, tolerance: float = 0.01) -> Fingerprint:
    return Fingerprint(token_ids=IDS, logprobs=tuple(scored(IDS, weights)), tolerance=tolerance)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"token_ids": (1,), "logprobs": ()}, "1 ids and 0 log-probs"),
        ({"logprobs": (-1.0,)}, "6 ids and 1 log-probs"),
        ({"logprobs": (-1.0, -1.0, math.nan, -1.0, -1.0)}, "not finite, or above 0"),
        ({"logprobs": (-1.0, -1.0, 0.5, -1.0, -1.0)}, "not finite, or above 0"),
        ({"tolerance": 0.0}, "tolerance of a fingerprint is 0"),
    ],
)
def test_what_is_no_fingerprint_is_refused(changes: dict[str, Any], what: str) -> None:
    fine: dict[str, Any] = {"token_ids": IDS, "logprobs": (-1.0,) * 5, "tolerance": 0.1}
    Fingerprint(**fine)
    with pytest.raises(ConfigError, match=what):
        Fingerprint(**{**fine, **changes})


def test_each_way_to_go_wrong_has_its_own_cause() -> None:
    seen = Fingerprints()
    old, new, third = (scored(IDS, weights) for weights in (0, 1, 2))
    assert seen.judge(of(0), {"a": old, "b": old}) == 0.0
    for told, cause, what in (
        ({"a": new, "b": old}, "some_servers", "^b: .*the other servers serve the new weights"),
        ({"a": old, "b": old}, "unchanged", "^a, b: .*are what they were before the update"),
        ({"a": third, "b": third}, "neither", "neither the old weights nor the trainer's"),
        ({"a": new, "b": [*new[:-1], math.nan]}, "no_numbers", "^b: .*not finite"),
        ({"a": new, "b": new[:-1]}, "no_numbers", "^b: .*missing"),
    ):
        seen.judge(of(0), {"a": old, "b": old})
        with pytest.raises(WeightsMismatch, match=what) as error:
            seen.judge(of(1), told)
        assert (error.value.cause, error.value.retryable) == (cause, False)
        assert math.isnan(error.value.gap) == (cause == "no_numbers")
    assert seen.judge(of(1), {"a": new, "b": new}) == 0.0


def test_without_a_look_before_old_weights_are_not_told_from_mixed_ones() -> None:
    with pytest.raises(WeightsMismatch, match=r"Suspects: .* tied embedding") as error:
        Fingerprints().judge(of(1), {"a": scored(IDS, 0)})
    assert error.value.cause == "neither"


def test_noise_below_the_tolerance_passes_and_is_told() -> None:
    noisy = [value - 0.03 for value in scored(IDS, 0)]
    assert Fingerprints().judge(of(0, 0.1), {"a": noisy}) == pytest.approx(0.03)
    with pytest.raises(WeightsMismatch):
        Fingerprints().judge(of(0, 0.02), {"a": noisy})


@pytest.mark.case("E1", "E4")
async def test_vllm_scores_the_policy_on_every_replica() -> None:
    one, two = (VLLMDouble(KnobTable(), models=["policy", "lora-1"]) for _ in range(2))
    async with serving(one, two) as urls:
        engine = VLLMEngine(urls, adapter="lora-{version}")
        assert isinstance(engine, ChecksWeights)
        with pytest.raises(EngineError, match="not started"):
            await engine.check_weights(of(0))
        await engine.start()
        assert await engine.check_weights(of(0)) == 0.0
        await engine.set_policy_version(1)
        one.weights = 1
        with pytest.raises(WeightsMismatch, match=two.url) as error:
            await engine.check_weights(of(1))
        assert error.value.cause == "some_servers" and one.url not in error.value.what
        assert [body["model"] for body in two.requests] == ["policy", "lora-1"]
        assert two.requests[0]["prompt"] == list(IDS)
        two.weights = 1
        assert await engine.check_weights(of(1)) == 0.0
        two.scores_prompts = False
        with pytest.raises(EngineMalformed, match="did not score a prompt"):
            await engine.check_weights(of(1))
        two.scores_prompts, two.faults = True, WireFaults(adds_bos=True)
        with pytest.raises(EngineMalformed, match="did not score a prompt"):
            await engine.check_weights(of(1))
        await engine.aclose()


@pytest.mark.parametrize("adapter", [None, "lora"])
async def test_beside_an_adapter_a_text_is_scored_alone(adapter: str | None) -> None:
    """vLLM's CPU code for adapters ends its engine over a scored prompt in a batch with another call."""
    table = KnobTable()
    server = VLLMDouble(table, models=["policy", "lora"])
    async with serving(server) as urls:
        engine = VLLMEngine(urls, adapter=adapter)
        await engine.start()
        long = Sampling(max_tokens=300, seed=1)  # the table takes a millisecond for each
        running = asyncio.ensure_future(engine.generate([5], long, request_id="r"))
        while not server.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await engine.check_weights(of(0))
        assert running.done() == (adapter is not None)
        await running
        await engine.aclose()


@pytest.mark.case("E1", "E4")
async def test_sglang_scores_the_policy() -> None:
    server = Server()
    engine = SGLangEngine(await server.start(), adapter="policy-lora")
    assert isinstance(engine, ChecksWeights)
    with pytest.raises(EngineError, match="not started"):
        await engine.check_weights(of(0))
    await engine.start()
    assert await engine.check_weights(of(0)) == 0.0
    assert (server.calls[0]["lora_path"], server.calls[0]["input_ids"]) == ("policy-lora", list(IDS))
    with pytest.raises(WeightsMismatch) as error:
        await engine.check_weights(of(1))
    assert error.value.cause == "unchanged"
    server.weights = 1
    assert await engine.check_weights(of(1)) == 0.0
    server.quirks.truncates, server.context = True, 10
    with pytest.raises(EngineMalformed, match="did not score the prompt that it was sent"):
        await engine.check_weights(of(1))
    await engine.aclose()
    await server.aclose()


def test_a_torch_model_says_its_own(tiny_model: Any) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    from drivetrain.engines.fingerprint_torch import fingerprint_of

    model = AutoModelForCausalLM.from_pretrained(str(tiny_model.path), dtype=torch.float32).train()
    found = fingerprint_of(model, IDS, tolerance=0.1)
    assert model.training
    assert (found.token_ids, len(found.logprobs), found.tolerance) == (IDS, 5, 0.1)
    with torch.inference_mode():
        for at in range(1, len(IDS)):
            exact = torch.log_softmax(model.eval()(torch.tensor([IDS[:at]])).logits[0, -1], -1)[IDS[at]].item()
            assert found.logprobs[at - 1] == pytest.approx(exact, abs=1e-5)
