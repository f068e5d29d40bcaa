"""Log-probs of both endpoints are those of a transformers forward pass; what the server says of itself is read."""

from __future__ import annotations

from typing import Any

import pytest

from drivetrain.errors import ConfigError
from drivetrain.tokens.codec import TokenCodec
from tests.real.vllm.support import Watched, gaps_of, samples_of, started
from tests.real.vllm_server import LiveServer


@pytest.mark.parametrize("api", ["completions", "generate"])
async def test_log_probs_are_those_of_a_transformers_forward_pass(
    server: LiveServer, codec: TokenCodec, weights: Any, api: Any
) -> None:
    engine = await started(server, api=api)
    samples = await samples_of(engine, codec, (1.0, 0.6))
    await engine.aclose()
    gaps = gaps_of(weights, samples)
    print(f"\n{api}, fp32: n={gaps.size} mean={gaps.mean():.1e} max={gaps.max():.1e}")
    assert gaps.size > 160
    assert gaps.mean() < 1e-4 and gaps.max() < 1e-3
    assert all(done.reported_tokens == len(done.token_ids) for _, _, done in samples)


async def test_start_reads_what_is_served(engine: Watched, codec: TokenCodec, server: LiveServer) -> None:
    assert (engine.name, engine.context_length, engine.served.api) == ("vllm:policy", 8192, "generate")
    assert engine.template_sha256 == codec.template.sha256
    with pytest.raises(ConfigError, match="does not serve 'qwen'; it serves policy"):
        await started(server, model="qwen")
