"""Sandboxes that are started before they are asked for, and how many there may be at once."""

from drivetrain.sandboxes.pool.handle import PooledSandbox
from drivetrain.sandboxes.pool.places import SandboxPoolFull
from drivetrain.sandboxes.pool.pool import SandboxPool
from drivetrain.sandboxes.pool.probe import Probe, runs_a_command, still_there
from drivetrain.sandboxes.pool.stats import PoolStats

__all__ = [
    "PoolStats",
    "PooledSandbox",
    "Probe",
    "SandboxPool",
    "SandboxPoolFull",
    "runs_a_command",
    "still_there",
]
