"""Where harnesses and graders run: the contract, and backends by name."""

from drivetrain.sandboxes.protocol import (
    BgJob,
    ExecResult,
    Feature,
    Limits,
    Mount,
    NetworkPolicy,
    Reach,
    SandboxBackend,
    SandboxError,
    SandboxGone,
    SandboxHandle,
    SandboxSpec,
    SandboxStartError,
    SandboxStats,
    SandboxTimeout,
    SandboxUnsupported,
    Snapshot,
)
from drivetrain.sandboxes.registry import backend_names, get_backend

__all__ = [
    "BgJob",
    "ExecResult",
    "Feature",
    "Limits",
    "Mount",
    "NetworkPolicy",
    "Reach",
    "SandboxBackend",
    "SandboxError",
    "SandboxGone",
    "SandboxHandle",
    "SandboxSpec",
    "SandboxStartError",
    "SandboxStats",
    "SandboxTimeout",
    "SandboxUnsupported",
    "Snapshot",
    "backend_names",
    "get_backend",
]
