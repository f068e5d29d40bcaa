"""The wire suite runs against the gateway on loopback; each dialect brings its own official SDK."""

from tests.gateway.conftest import start_rig

__all__ = ["start_rig"]
