"""The gateway's keep-alives as an agent's preset wants them."""

from __future__ import annotations

import msgspec

from drivetrain.gateway.patience import Patience
from swe_rl_agent.preset import Preset


def patience_of(preset: Preset) -> Patience | None:
    """For :class:`~drivetrain.gateway.policy.SessionPolicy`; None leaves it to the server."""
    return Patience(**msgspec.structs.asdict(preset.patience)) if preset.patience is not None else None
