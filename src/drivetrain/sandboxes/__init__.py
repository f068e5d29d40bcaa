"""Where harnesses and graders run: the contract, and backends by name."""

from drivetrain.sandboxes.protocol import (
    BgJob,
    ExecResult,
    Limits,
    Mount,
    NetworkPolicy,
    SandboxBackend,
    SandboxError,
    SandboxGone,
    SandboxHandle,
    SandboxSpec,
    SandboxStartError,
    SandboxTimeout,
)
from drivetrain.sandboxes.registry import backend_names, get_backend

__all__ = [
    "BgJob",
    "ExecResult",
    "Limits",
    "Mount",
    "NetworkPolicy",
    "SandboxBackend",
    "SandboxError",
    "SandboxGone",
    "SandboxHandle",
    "SandboxSpec",
    "SandboxStartError",
    "SandboxTimeout",
    "backend_names",
    "get_backend",
]
