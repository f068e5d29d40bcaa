"""OpenEnv's seam for harnesses (RFC 005): its ``CLIHarnessAdapter`` with a real agent behind it.

Needs the ``openenv`` extra; nothing here is imported by the rest of drivetrain.
"""

from drivetrain.rollout.openenv.adapter import CLIAgentAdapter, Endpoint, WorksInSandbox
from drivetrain.rollout.openenv.result import CLIRolloutResult, HarnessRunFailed

__all__ = ["CLIAgentAdapter", "CLIRolloutResult", "Endpoint", "HarnessRunFailed", "WorksInSandbox"]
