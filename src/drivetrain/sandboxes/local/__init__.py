"""Sandboxes on this machine from bubblewrap namespaces."""

from drivetrain.sandboxes.local.backend import DEFAULT_RELAY_PORT, LocalBackend, default_root

__all__ = ["DEFAULT_RELAY_PORT", "LocalBackend", "default_root"]
