"""What tests before a live vLLM share: engines that keep what they sent, metrics, exact log-probs, other weights."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from openai import AsyncOpenAI

from drivetrain.engines.protocol import Completion, Sampling
from drivetrain.engines.vllm import VLLMEngine
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.messages import Message
from drivetrain.tokens.codec import TokenCodec
from tests.real.vllm_server import LiveServer

BOOT_S = 400.0
QUESTIONS = (
    "Tell me a short story about a lighthouse.",
    "Write a Python function that reverses a list.",
    "Why is the sky blue?",
    "List five animals and what they eat.",
)
Sample = tuple[list[int], float, Completion]
"""Prompt, temperature, what was sampled."""


class Watched(VLLMEngine):
    """Keeps what was sent."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, boot_timeout_s=BOOT_S, tell=print, **options)
        self.sent: list[list[int]] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session_id: str = ""
    ) -> Completion:
        self.sent.append(list(prompt_ids))
        return await super().generate(prompt_ids, sampling, request_id=request_id, session_id=session_id)


async def started(server: LiveServer, **options: Any) -> Watched:
    """An engine before the server, once that has loaded."""
    engine = Watched(server.url, **options)
    await engine.start()
    return engine


async def post(server: LiveServer, path: str, body: Any) -> Any:
    """The answer of a page that is not the engine's business; it must be 200."""
    async with aiohttp.ClientSession() as http, http.post(server.url + path, json=body) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json() if answer.content_type == "application/json" else await answer.text()


async def metric(server: LiveServer, name: str) -> float:
    """Sum of a metric of vLLM."""
    async with aiohttp.ClientSession() as http, http.get(f"{server.url}/metrics") as answer:
        text = await answer.text()
    found = re.findall(rf"^vllm:{name}{{.*}} (\S+)$", text, re.MULTILINE)
    assert found, name
    return sum(map(float, found))


async def until(
    right: Callable[[float], bool], server: LiveServer, name: str, within_s: float = 120.0, poll_s: float = 0.02
) -> None:
    """Wait until a metric is as it should be."""
    async with asyncio.timeout(within_s):
        while not right(await metric(server, name)):  # noqa: ASYNC110
            await asyncio.sleep(poll_s)


async def until_running(server: LiveServer, count: int) -> None:
    """Wait until so many requests run."""
    await until(lambda running: running == count, server, "num_requests_running")


def gaps_of(weights: Any, samples: Sequence[Sample]) -> Any:
    """|log-prob told - log-prob of a transformers fp32 forward pass on the same ids| per sampled token, in order."""
    import torch

    gaps: list[float] = []
    for prompt, temperature, done in samples:
        ids = torch.tensor([[*prompt, *done.token_ids]])
        with torch.inference_mode():
            logits = weights(ids).logits[0, len(prompt) - 1 : -1].float() / temperature
        exact = torch.log_softmax(logits, -1).gather(1, torch.tensor(list(done.token_ids))[:, None])[:, 0]
        gaps += (exact - torch.tensor(list(done.logprobs))).abs().tolist()
    return np.array(gaps)


async def samples_of(
    engine: VLLMEngine, codec: TokenCodec, temperatures: Sequence[float], tokens: int = 32
) -> list[Sample]:
    """An answer to every question at every temperature."""

    async def one(question: str, temperature: float, seed: int) -> Sample:
        prompt = codec.first_prompt([Message("user", question)], [])
        sampling = Sampling(max_tokens=tokens, temperature=temperature, seed=seed, stop_token_ids=tuple(codec.stop_ids))
        return prompt, temperature, await engine.generate(prompt, sampling, request_id=f"gap-{seed}-{temperature}")

    return list(await asyncio.gather(*(one(q, t, seed) for seed, q in enumerate(QUESTIONS) for t in temperatures)))


async def talk(gateway: Gateway, url: str, turns: int, tokens: int, *, seed: int = 1) -> Any:
    """A conversation of a plain client; its session."""
    policy = SessionPolicy(model="policy", max_tokens_per_turn=tokens, seed=seed)
    session, key = await gateway.open_session(policy)
    history: list[Any] = [{"role": "user", "content": QUESTIONS[seed % len(QUESTIONS)]}]
    async with AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=300) as client:
        for turn in range(turns):
            done = await client.chat.completions.create(model="policy", messages=history)
            history += [
                {"role": "assistant", "content": done.choices[0].message.content},
                {"role": "user", "content": f"Go on, part {turn}."},
            ]
    return session


def changed_weights(weights: Any, path: Path, *, embedding: bool) -> tuple[Any, Path]:
    """Other weights, as a model and as a file that the worker extension loads.

    Args:
        weights: the model that is served.
        path: of the file.
        embedding: whether the embedding, which is tied to the head, changes too.
    """
    from safetensors.torch import save_file

    state = {name: value for name, value in weights.state_dict().items() if name != "lm_head.weight"}
    changed = {name: value * 1.03 if embedding or "embed" not in name else value for name, value in state.items()}
    save_file({name: value.contiguous() for name, value in changed.items()}, path, metadata={"format": "pt"})
    new = type(weights)(weights.config).eval()
    missing = new.load_state_dict(changed, strict=False).missing_keys
    assert missing in ([], ["lm_head.weight"])
    new.tie_weights()
    return new, path


async def load(server: LiveServer, path: Path) -> None:
    """Have the worker extension load a file."""
    await post(server, "/collective_rpc", {"method": "load_file", "args": [str(path)]})
