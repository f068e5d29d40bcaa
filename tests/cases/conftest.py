"""Known failure cases (docs/cases.md) through the real gateway, over HTTP."""

from __future__ import annotations

from tests.gateway.conftest import start_rig

__all__ = ["start_rig"]
