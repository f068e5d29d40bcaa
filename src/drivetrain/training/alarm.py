"""A log-prob difference that rounding does not explain has a cause, and the cause has a name.

Before the first update trainer and sampler hold the same weights, so what is measured there is the fault of the trace
or of the settings, never of learning. The worst row is scored again, unfused, and the known faults are tried.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from drivetrain.errors import ConfigError, DrivetrainError
from drivetrain.training.delta import LogpDelta, trained_mask

_log = logging.getLogger(__name__)
_EXPLAINS = 0.2
"""A hypothesis explains the difference when it leaves less than this share of it."""
_TEMPERATURES = (1.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.5)


class DeltaAlarm(msgspec.Struct, frozen=True, kw_only=True):
    """When a difference between trainer and sampler is too large, in nats.

    ``max_nats`` bounds the largest of a batch, ``mean_nats`` the mean. In fp32 on one machine 1e-4 holds; a bfloat16
    server shows 0.04 on average and more than 1 at most, so a GPU run bounds the mean. ``action``: ``raise`` raises a
    :class:`LogpMismatch` for the first batch, which is on-policy for certain, and logs a warning for later ones;
    ``warn`` only logs.

    Raises:
        ConfigError: a bound that is not positive.
    """

    max_nats: float = 1e-4
    mean_nats: float = 1e-4
    action: Literal["raise", "warn"] = "raise"

    def __post_init__(self) -> None:
        if not (self.max_nats > 0 and self.mean_nats > 0):
            raise ConfigError("the bounds of an alarm must be positive.", fix="Give them in nats.")

    def rings(self, delta: LogpDelta) -> bool:
        """Whether a batch is over a bound."""
        return not (delta.max <= self.max_nats and delta.mean <= self.mean_nats)


class LogpMismatch(DrivetrainError):
    """Trainer and sampler disagree on the recorded tokens; nothing was trained. ``delta`` says by how much."""

    def __init__(self, what: str, delta: LogpDelta, *, fix: str = "") -> None:
        super().__init__(f"{what} (|log-prob difference| max {delta.max:.3g}, mean {delta.mean:.3g} nats)", fix=fix)
        self.delta = delta


class ShiftedLogprobs(LogpMismatch):
    """The log-probs belong to the neighbouring tokens: an off-by-one between ids and log-probs."""


class WrongTemperature(LogpMismatch):
    """The log-probs are those of another temperature: an engine that returns them raw (before temperature), or a
    trainer that was configured with another one."""


class WrongMask(LogpMismatch):
    """Tokens that the policy did not sample are marked as sampled; their filler claims certainty."""


class ForeignTokens(LogpMismatch):
    """The ids of some turns are not those that were sampled: text was tokenised again, or a prompt differs."""


class WrongWeights(LogpMismatch):
    """All tokens are off: other weights, another dtype, dropout in the trainer, or truncated sampling."""


def sound_alarm(
    alarm: DeltaAlarm, delta: LogpDelta, batch: dict[str, Any], model: Any, temperature: float, names: Sequence[str]
) -> None:
    """Judge a batch that was measured.

    Args:
        batch: see :func:`~drivetrain.training.delta.measure_delta`; ``prompt_ids`` and ``prompt_mask`` too.
        model: the trainer's, unwrapped, as it was when the batch was scored.
        temperature: the trainer's.
        names: how rows are called.

    Raises:
        LogpMismatch: a subclass that names the cause.
    """
    if not alarm.rings(delta):
        return
    worst = max(range(len(delta.per_row)), key=delta.per_row.__getitem__)
    error = diagnose(delta, _row(batch, worst), model, temperature, names[worst])
    if alarm.action == "raise":
        raise error
    _log.warning("%s", error)


class ScoredRow(msgspec.Struct, frozen=True):
    """One row without padding: ids of prompt and response, and of each trained slot its index and its log-prob."""

    prompt: Any
    response: Any
    slots: Any
    told: Any


def diagnose(delta: LogpDelta, row: ScoredRow, model: Any, temperature: float, name: str) -> LogpMismatch:
    """Try the known faults on one row, and name the one that explains its difference."""
    logits = _logits(model, row)
    exact = _logps(logits, row, temperature)
    gap = (exact - row.told).abs()
    certain = row.told == 0.0
    if bool(certain.any()) and float(gap[~certain].sum()) <= _EXPLAINS * float(gap.sum()):
        return WrongMask(
            f"{name}: {int(certain.sum())} tokens carry log-prob 0 but were not sampled",
            delta,
            fix="loss_mask must be 0 for what the environment or the template wrote.",
        )
    size = float(gap.mean())
    for step in (1, -1):
        if len(gap) > 2 and float((exact.roll(step) - row.told).abs().median()) <= _EXPLAINS * size:
            return ShiftedLogprobs(
                f"{name}: the log-probs are those of the {'previous' if step == 1 else 'next'} token",
                delta,
                fix="Align log-probs with ids: entry i belongs to id i.",
            )
    for other in _TEMPERATURES:
        if other != temperature and float((_logps(logits, row, other) - row.told).abs().mean()) <= _EXPLAINS * size:
            return WrongTemperature(
                f"{name}: the log-probs are those of temperature {other:g}, the trainer's is {temperature:g}",
                delta,
                fix="Let the engine return log-probs after temperature (vLLM: --logprobs-mode processed_logprobs), and "
                "give trainer and sampler the same temperature.",
            )
    sound = float((gap <= 1e-3).double().mean())
    if sound > 0:
        return ForeignTokens(
            f"{name}: {1 - sound:.0%} of its tokens are off, the others are exact",
            delta,
            fix="Hand over stored ids only; find the turn with `drivetrain trace check`.",
        )
    return WrongWeights(
        f"{name}: every token is off",
        delta,
        fix="Train the weights that sampled it; no dropout, full-vocabulary sampling, the same dtype.",
    )


def _row(batch: dict[str, Any], index: int) -> ScoredRow:
    prompt = batch["prompt_ids"][index][batch["prompt_mask"][index].bool()]
    length = int(batch["completion_mask"][index].sum())
    slots = trained_mask(batch)[index].nonzero().flatten()
    length = max(length, int(slots[-1]) + 1)
    return ScoredRow(
        prompt, batch["completion_ids"][index][:length], slots, batch["sampling_per_token_logps"][index][slots]
    )


def _logits(model: Any, row: ScoredRow) -> Any:
    import torch

    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            ids = torch.cat([row.prompt, row.response]).unsqueeze(0)
            return model(input_ids=ids).logits[0, len(row.prompt) - 1 : -1][row.slots].float()
    finally:
        model.train(training)


def _logps(logits: Any, row: ScoredRow, temperature: float) -> Any:
    ids = row.response[row.slots].unsqueeze(1)
    return (logits / temperature).log_softmax(-1).gather(1, ids).squeeze(1)
