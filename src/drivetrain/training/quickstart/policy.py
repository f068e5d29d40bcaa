"""A model that is small enough for two cores, with a tokenizer made from what the harness really sends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drivetrain.engines.models import ModelDir
from drivetrain.engines.tiny import build_tiny_model

CONTEXT = 1536
"""Tokens; an episode of the family takes a third of it."""


def build_policy(path: Path, texts: Sequence[str], *, seed: int) -> ModelDir:
    """Write a random Llama of half a million parameters whose tokenizer is trained on ``texts``: recorded episodes,
    so that their long constant part (system prompt, tools) is few tokens, and a word that matters is one.
    """
    return build_tiny_model(
        path, vocab_size=1024, context=CONTEXT, hidden=128, layers=2, heads=4, kv_heads=4, init_std=0.02, seed=seed,
        corpus=texts,
    )  # fmt: skip
