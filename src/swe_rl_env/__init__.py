"""The SWE environment: tasks from published releases, a sealed workspace, and grading out of the agent's reach.

built = build_task(get_task("pypi__xmltodict-0.14.2"))
workspace = await open_workspace(backend, built)
...  # an agent works in workspace.sandbox
patch, grade = await grade_workspace(workspace, built, backend)
"""

from swe_rl_env.building.build import BuiltTask, build_task
from swe_rl_env.building.prepare import prepare_task
from swe_rl_env.errors import BuildError, ChecksumMismatch, PatchRejected
from swe_rl_env.grading.grade import Grade, rejected
from swe_rl_env.grading.run import grade_workspace
from swe_rl_env.grading.validate import Validation, validate_task
from swe_rl_env.tasks.catalog import get_task, load_tasks, prompt_for
from swe_rl_env.tasks.model import PublicPart, SweTask
from swe_rl_env.tasks.rows import task_from_row
from swe_rl_env.work.agents import AGENTS, ReferenceAgent, noop, oracle, oracle_patch, reference_agent
from swe_rl_env.work.patch import CollectedPatch, PatchLimits, collect, collect_patch
from swe_rl_env.work.workspace import Workspace, open_workspace

__all__ = [
    "AGENTS",
    "BuildError",
    "BuiltTask",
    "ChecksumMismatch",
    "CollectedPatch",
    "Grade",
    "PatchLimits",
    "PatchRejected",
    "PublicPart",
    "ReferenceAgent",
    "SweTask",
    "Validation",
    "Workspace",
    "build_task",
    "collect",
    "collect_patch",
    "get_task",
    "grade_workspace",
    "load_tasks",
    "noop",
    "open_workspace",
    "oracle",
    "oracle_patch",
    "prepare_task",
    "prompt_for",
    "reference_agent",
    "rejected",
    "task_from_row",
    "validate_task",
]
