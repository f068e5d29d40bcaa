"""The actions as tools of a model: their manifest, a call as an action, an observation as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openenv.core.env_server.mcp_types import Tool
from pydantic import ValidationError

from swe_rl_env.models import SWEAction
from swe_rl_env.server.errors import EpisodeError
from swe_rl_env.server.perform import Outcome


def _tool(name: str, description: str, **properties: tuple[str, str, bool]) -> Tool:
    """``properties``: JSON type, description, required."""
    return Tool(
        name=name,
        description=description,
        input_schema={
            "type": "object",
            "properties": {key: {"type": kind, "description": text} for key, (kind, text, _) in properties.items()},
            "required": [key for key, (_, _, required) in properties.items() if required],
            "additionalProperties": False,
        },
    )


_PATH = ("string", "Path of the file; a relative one counts from the project's folder.", True)

TOOLS: tuple[Tool, ...] = (
    _tool(
        "bash",
        "Run a shell command in the project's folder. Each call is a new shell: files last, `cd` and variables do not. "
        "There is no network.",
        command=("string", "The command.", True),
        timeout_s=("number", "Seconds after which it is killed.", False),
    ),
    _tool("read", "Read a UTF-8 text file.", path=_PATH),
    _tool(
        "write",
        "Create or replace a text file.",
        path=_PATH,
        content=("string", "The whole new content.", True),
    ),
    _tool(
        "apply_patch",
        "Apply a unified diff in the project's folder, as `git apply` does.",
        patch=("string", "The diff.", True),
    ),
    _tool("submit", "Say that the work is done. Nothing can be done after it."),
)

NAMES = tuple(tool.name for tool in TOOLS)


def action_of(name: str, arguments: Mapping[str, Any]) -> SWEAction:
    """A tool call as an action.

    Raises:
        EpisodeError: no such tool, or arguments that do not fit it; the text is for the model to read.
    """
    if name not in NAMES:
        raise EpisodeError("bad_request", f"There is no tool {name!r}.", fix=f"There are {', '.join(NAMES)}.")
    try:
        action: SWEAction = SWEAction.model_validate({**arguments, "type": name, "metadata": {}})
        return action
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, e['loc'])) or name}: {e['msg']}" for e in error.errors())
        raise EpisodeError("bad_request", f"{name} was called wrongly: {said}.") from error


def text_of(outcome: Outcome) -> str:
    """What a model reads of an outcome: output, then errors, then the exit code unless it is 0."""
    parts = [outcome.stdout.rstrip("\n"), outcome.stderr.rstrip("\n"), outcome.error]
    if outcome.timed_out:
        parts.append("[killed: it took too long]")
    if outcome.exit_code:
        parts.append(f"[exit code {outcome.exit_code}]")
    return "\n".join(part for part in parts if part) or "(no output)"
