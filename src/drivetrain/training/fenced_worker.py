"""TRL's ``HarnessRolloutWorker`` with a gate; importing this needs TRL, building a worker needs vLLM too."""

from __future__ import annotations

from typing import Any

from trl.experimental.async_grpo.openenv_harness import HarnessRolloutWorker

from drivetrain.training.fenced import Versioned
from drivetrain.training.tokenizer import loop_owning_tokenizer
from drivetrain.training.versions import require_trl


class FencedRolloutWorker(HarnessRolloutWorker):
    """``HarnessRolloutWorker(harness_session_factory=AgentSessions(..., gate=folder))`` that publishes versions.

    Args:
        weights: a :class:`~drivetrain.training.fenced.FencedWeights` or
            :class:`~drivetrain.training.fenced.AdapterVersions` on ``SocketGate(folder)``.
        others: TRL's own; ``processing_class`` may lack a response template.

    Raises:
        ConfigError: another TRL minor version.
        ImportError: vLLM is not installed (TRL's own check).
    """

    def __init__(self, *, weights: Versioned, processing_class: Any, **others: Any) -> None:
        require_trl()
        super().__init__(processing_class=loop_owning_tokenizer(processing_class), **others)
        self._weights = weights
        weights.attach()

    def update_model_version(self, model_version: int) -> None:
        """TRL's own, then the gate opens."""
        super().update_model_version(model_version)
        self._weights.publish(model_version)
