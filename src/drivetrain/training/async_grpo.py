"""AsyncGRPOTrainer that measures what its loss stands on.

AsyncGRPO has no importance-sampling correction: the recorded log-probs are the denominator of its ratio (trl.md section
0.5), so a trace that is wrong makes a wrong gradient, and TRL logs nothing but means over ratios.
"""

from __future__ import annotations

from typing import Any

from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer

from drivetrain.training.alarm import DeltaAlarm, LogpMismatch
from drivetrain.training.delta import LogpDelta
from drivetrain.training.versions import require_trl


class MeasuredAsyncGRPOTrainer(AsyncGRPOTrainer):
    """AsyncGRPOTrainer that logs ``delta/max`` and ``delta/mean``: ``|log p_trainer - log p_sampler|`` in nats over the
    trained tokens of every micro-batch.

    In the first step trainer and sampler hold the same weights, and the difference is the trace's fault alone; later it
    holds the drift of the policy too, up to ``max_staleness`` updates.

    Args:
        args, kwargs: AsyncGRPOTrainer's.
        alarm: bounds for the micro-batches of the first step.

    Raises:
        ConfigError: another TRL minor version.
        LogpMismatch (from ``train``): the first step rang the alarm; nothing was trained.
    """

    def __init__(self, *args: Any, alarm: DeltaAlarm | None = None, **kwargs: Any) -> None:
        require_trl()
        super().__init__(*args, **kwargs)
        self._alarm = alarm

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """TRL's loss; its forward pass is measured on the way."""
        kept: list[Any] = []
        hook = model.register_forward_hook(lambda _module, _args, out: kept.append(out.log_probs.detach()))
        try:
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)  # type: ignore[no-untyped-call]
        finally:
            hook.remove()
        self._measure(kept[0], inputs)
        return loss

    def _measure(self, log_probs: Any, inputs: Any) -> None:
        selected = inputs["token_index"] >= 0
        ours = log_probs.flatten()[inputs["token_index"][selected]]
        gap = (ours - inputs["old_log_probs"][selected]).abs()
        tokens = int(gap.numel())
        if not tokens:
            return
        largest, total = float(gap.max()), float(gap.double().sum())
        self._metrics["train"]["delta/max"].append(largest)
        self._metrics["train"]["delta/mean"].append((total, float(tokens)))
        if self._alarm is not None and self._alarm.action == "raise" and self.state.global_step == 0:
            delta = LogpDelta(max=largest, mean=total / tokens, tokens=tokens, per_row=[])
            if self._alarm.rings(delta):
                raise LogpMismatch(
                    "in the first step, trainer and sampler disagree on the recorded tokens",
                    delta,
                    fix="Record some rollouts and run `drivetrain train --run DIR` on them: it names the cause.",
                )
