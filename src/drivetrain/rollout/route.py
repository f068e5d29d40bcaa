"""Which task and which agent a trainer's prompt means: they travel as extra keys of a message.

TRL hands the ``prompt`` column on and nothing else of a dataset's row (trl.md sections 1.4 and 5.3), so a prompt is
``[{"role": "user", "content": "...", "task_id": "t2", "agent": "pi"}]``.
"""

from __future__ import annotations

from typing import Any

from drivetrain.errors import ConfigError


def route_of(prompt: Any, default_agent: str = "") -> tuple[str, str]:
    """Task and agent of one prompt, from the extra keys of its last message that has them.

    Raises:
        ConfigError: it names no task.
    """
    messages = prompt if isinstance(prompt, list) else []
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("task_id"):
            return str(message["task_id"]), str(message.get("agent") or default_agent)
    raise ConfigError(
        "a prompt of the dataset names no task.",
        fix="Give a message the key task_id: [{'role': 'user', 'content': '...', 'task_id': '...'}].",
    )


def routed_prompt(task_id: str, agent: str, text: str = "") -> list[dict[str, str]]:
    """The prompt that :func:`route_of` reads; ``text`` is for logs only, the agent gets the task's own statement."""
    return [{"role": "user", "content": text or f"task {task_id}", "task_id": task_id, "agent": agent}]
