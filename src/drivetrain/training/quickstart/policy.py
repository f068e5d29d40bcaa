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

    Weights start at 0.06, near 1/sqrt(width): with the 0.02 of wide models attention says so little at first that
    copying a word, the one thing to learn by looking back, is not found within hundreds of updates.
    """
    return build_tiny_model(
        path, vocab_size=1024, context=CONTEXT, hidden=128, layers=2, heads=4, kv_heads=4, init_std=0.06, seed=seed,
        corpus=texts,
    )  # fmt: skip
