"""OpenEnv's seam for harnesses (RFC 005): its ``CLIHarnessAdapter`` with a real agent behind it.

Needs the ``openenv`` extra; nothing here is imported by the rest of drivetrain.
"""

from drivetrain.rollout.openenv.adapter import CLIAgentAdapter, Endpoint, WorksInSandbox
from drivetrain.rollout.openenv.factory import AgentSessionFactory, AgentSessions
from drivetrain.rollout.openenv.result import CLIRolloutResult, HarnessRunFailed
from drivetrain.rollout.openenv.session import AgentSession, EpisodeUngraded

__all__ = [
    "AgentSession",
    "AgentSessionFactory",
    "AgentSessions",
    "CLIAgentAdapter",
    "CLIRolloutResult",
    "Endpoint",
    "EpisodeUngraded",
    "HarnessRunFailed",
    "WorksInSandbox",
]
