"""A second server, first in order: bfloat16, raw log-probs, adapters, no token endpoint (two servers need 8 GB)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drivetrain.engines.fingerprint import WeightsMismatch
from drivetrain.engines.fingerprint_torch import fingerprint_of
from drivetrain.engines.models import ModelDir
from drivetrain.engines.probe import probe_engine
from drivetrain.engines.probe_checks import CHECKS
from drivetrain.engines.protocol import Completion, Sampling
from drivetrain.errors import ConfigError
from drivetrain.gateway.fence import Fence
from drivetrain.messages import Message
from drivetrain.tokens.codec import TokenCodec
from tests.real.vllm.conftest import SMALL_BLOCKS
from tests.real.vllm.support import QUESTIONS, gaps_of, post, samples_of, started, until_running
from tests.real.vllm_server import LiveServer, live_server

RANK = 4


@pytest.fixture(scope="module")
def bf16(
    server: LiveServer, python: Path, model: ModelDir, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """``server`` is asked for so that it boots meanwhile."""
    log = tmp_path_factory.mktemp("vllm-bf16") / "server.log"
    flags = (*SMALL_BLOCKS, "--enable-lora", "--max-loras", "2", "--max-lora-rank", "8")
    with live_server(python, model, log, mode="raw_logprobs", dtype="bfloat16", flags=flags) as running:
        yield running


async def test_bf16_is_close_and_the_token_endpoint_is_not_assumed(
    bf16: LiveServer, codec: TokenCodec, weights: Any
) -> None:
    engine = await started(bf16)
    assert engine.served.api == "completions"
    with pytest.raises(ConfigError, match="--enable-scale-out"):
        await started(bf16, api="generate")
    gaps = gaps_of(weights, await samples_of(engine, codec, (1.0,)))  # raw and processed are one at T=1
    await engine.aclose()
    print(f"\nbf16: n={gaps.size} mean={gaps.mean():.1e} p99={np.quantile(gaps, 0.99):.1e} max={gaps.max():.1e}")
    assert gaps.size > 80
    assert gaps.mean() < 0.1 and gaps.max() < 1.0


@pytest.mark.case("B4")
async def test_the_probe_refuses_raw_log_probs(bf16: LiveServer, codec: TokenCodec) -> None:
    engine = await started(bf16)
    needed = {"ids_in", "ids_out", "counts", "values", "temperature"}
    report = await probe_engine(engine, codec, checks=[check for check in CHECKS if check.name in needed])
    await engine.aclose()
    assert [finding.check for finding in report.blocking] == ["temperature"], report
    with pytest.raises(ConfigError, match=r"log-probs are raw.*--logprobs-mode processed_logprobs"):
        report.require_trainable()


# -- adapters, as TRL's adapter sync sends them


def adapter(model: ModelDir, weights: Any, seed: int, folder: Path) -> Any:
    """A random adapter in ``folder``, and the model with it merged in."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    merged = type(weights)(weights.config).eval()
    merged.load_state_dict(weights.state_dict())
    tensors = {}
    for number, layer in enumerate(merged.model.layers):
        for name in ("q_proj", "v_proj"):
            weight = getattr(layer.self_attn, name).weight
            down = torch.randn(RANK, weight.shape[1], generator=generator) * 0.08
            up = torch.randn(weight.shape[0], RANK, generator=generator) * 0.08
            base = f"base_model.model.model.layers.{number}.self_attn.{name}"
            tensors |= {f"{base}.lora_A.weight": down, f"{base}.lora_B.weight": up}
            with torch.no_grad():
                weight += up @ down
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model.path),
        "target_modules": ["q_proj", "v_proj"],
        "r": RANK,
        "lora_alpha": RANK,
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return merged


@pytest.mark.case("E1")
async def test_an_adapter_per_version_is_asked_for_by_its_live_name(
    bf16: LiveServer, model: ModelDir, codec: TokenCodec, weights: Any, tmp_path: Path
) -> None:
    """Each version is sampled from its own adapter: log-probs are those of its merged weights, and of no other's."""
    engine = await started(bf16, adapter="trl-policy-v{version}")
    fence = Fence(engine)
    policies = [weights, *(adapter(model, weights, seed, tmp_path / f"v{seed}") for seed in (1, 2))]
    prompt = codec.first_prompt([Message("user", QUESTIONS[0])], [])

    async def load(version: int) -> None:
        body = {"lora_name": f"trl-policy-v{version}", "lora_path": str(tmp_path / f"v{version}")}
        await post(bf16, "/v1/load_lora_adapter", body)

    async def ask(tokens: int, seed: int = 5) -> Completion:
        async with fence.passing():
            return await engine.generate(prompt, Sampling(max_tokens=tokens, seed=seed), request_id="lora")

    def nearest(done: Completion) -> int:
        gaps = [float(gaps_of(policy, [(prompt, 1.0, done)]).mean()) for policy in policies]
        print(f"\nversion {done.policy_version_end}: mean differences to v0, v1, v2: {_listed(gaps)}", end="")
        assert min(gaps) < 0.1
        return int(np.argmin(gaps))

    assert nearest(await ask(24)) == 0
    await fence.pause()
    with pytest.raises(ConfigError, match="does not serve 'trl-policy-v1'; it serves policy"):
        await fence.resume(1)  # nobody loaded it: the gate stays closed
    await load(1)
    sound = fingerprint_of(policies[1], prompt, tolerance=0.15)
    await fence.resume(1, fingerprint=sound)
    first = await ask(24)
    assert (nearest(first), first.policy_version_start, first.policy_version_end) == (1, 1, 1)

    straddling = asyncio.ensure_future(ask(64))
    await until_running(bf16, 1)
    await fence.pause("hold")
    await load(2)
    with pytest.raises(WeightsMismatch):
        await fence.resume(2, fingerprint=sound)  # of the version before
    with pytest.raises(Exception, match="not confirmed"):
        await straddling
    await fence.resume(2, fingerprint=fingerprint_of(policies[2], prompt, tolerance=0.15))
    second = await ask(24)
    assert (nearest(second), second.policy_version_start, second.policy_version_end) == (2, 2, 2)

    straddling = asyncio.ensure_future(ask(64))  # under v2; it goes on under that name whatever comes
    await until_running(bf16, 1)
    await post(bf16, "/v1/load_lora_adapter", {"lora_name": "trl-policy-v3", "lora_path": str(tmp_path / "v1")})
    await engine.set_policy_version(3)
    done = await straddling
    assert (nearest(done), done.policy_version_start, done.policy_version_end) == (2, 2, 2)
    assert nearest(await ask(24)) == 1  # v3 is the first adapter once more
    await engine.aclose()


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)
