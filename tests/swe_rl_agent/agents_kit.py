"""What the tests of every agent must know of each: how its policy calls tools, and where a request keeps what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .gateway_kit import TASK, tool_call
from .native_kit import SECRETS

FINISH = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
CHAT = "/v1/chat/completions"
SED = "sed -i s/wrong/right/ answer.txt"
Body = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Way:
    """``shell`` makes the call of a shell command; ``edit`` are the policy's turns that look at answer.txt and mend it;
    ``last`` is its last turn. ``asked`` and ``limit`` find the task and the token limit in a request. ``tools`` are
    some that must be offered, none of ``absent`` is a part of a tool's name. ``cut`` is how a run ends whose last
    answer was cut."""

    path: str
    shell: Callable[[str], str]
    edit: tuple[str, str]
    tools: frozenset[str]
    asked: Callable[[Body], object]
    limit: Callable[[Body], object]
    absent: tuple[str, ...] = ()
    task: str = TASK
    last: str = "It is done."
    cut: str = "completed"

    @property
    def script(self) -> tuple[str, ...]:
        """Five turns: look for secrets, look, mend, run a check whose exit code is 1, say the last word."""
        return (self.shell(SECRETS), *self.edit, self.shell("sh check.sh; cat answer.txt; false"), self.last)


def _claude(command: str) -> str:
    return tool_call("Bash", description="step é", command=command)  # not in the order of the tool's schema


def _codex(command: str) -> str:
    return tool_call("exec_command", cmd=command, yield_time_ms=5000)


def _gemini(command: str) -> str:
    return tool_call("run_shell_command", command=command, description="step é")


def _qwen(command: str) -> str:
    return tool_call("run_shell_command", command=command, description="step é", is_background=False)


def _opencode(command: str) -> str:
    return tool_call("bash", command=command, description="step é")


def _bash(command: str) -> str:
    return tool_call("bash", command=command)


LOOK = "cat answer.txt; printf 'é\\n'"
WAYS = {
    "claude-code": Way(
        path="/v1/messages",
        shell=_claude,
        edit=(
            tool_call("Read", file_path="/work/answer.txt"),
            tool_call("Edit", file_path="/work/answer.txt", old_string="wrong", new_string="right"),
        ),
        tools=frozenset({"Agent", "Bash", "Edit", "Read", "Write"}),
        absent=("ToolSearch",),
        asked=lambda body: next(m["content"][-1]["text"] for m in body["messages"] if m["role"] == "user"),
        limit=lambda body: body["max_tokens"],
    ),
    "codex": Way(
        path="/v1/responses",
        shell=_codex,
        edit=(_codex(LOOK), _codex(SED)),
        tools=frozenset({"exec_command", "write_stdin", "view_image"}),
        absent=("agent", "web"),
        asked=lambda body: body["input"][-1]["content"][0]["text"],
        limit=lambda _body: 2000,  # it sends none; the gateway's holds
        cut="length",
    ),
    "gemini-cli": Way(
        path="/v1beta/models/policy:streamGenerateContent",
        shell=_gemini,
        edit=(
            tool_call("read_file", file_path="answer.txt"),
            tool_call("replace", file_path="answer.txt", old_string="wrong", new_string="right", instruction="fix it"),
        ),
        tools=frozenset({"run_shell_command", "read_file", "replace", "invoke_agent"}),
        asked=lambda body: body["contents"][0]["parts"][-1]["text"],
        limit=lambda body: body["generationConfig"]["maxOutputTokens"],
    ),
    "mini-swe-agent": Way(
        path=CHAT,
        shell=_bash,
        edit=(_bash(LOOK), _bash(SED)),
        tools=frozenset({"bash"}),
        asked=lambda body: TASK if TASK in body["messages"][1]["content"] else "",
        limit=lambda body: body["max_tokens"],
        last=_bash(FINISH),
        cut="format_error",
    ),
    "opencode": Way(
        path=CHAT,
        shell=_opencode,
        edit=(
            tool_call("read", filePath="/work/answer.txt"),
            tool_call("edit", filePath="/work/answer.txt", oldString="wrong", newString="right"),
        ),
        tools=frozenset({"bash", "read", "edit", "task"}),
        asked=lambda body: body["messages"][-1]["content"],
        limit=lambda body: body["max_tokens"],
        cut="length",
    ),
    "pi": Way(
        path=CHAT,
        shell=_bash,
        edit=(_bash(LOOK), _bash(SED)),
        tools=frozenset({"bash", "edit", "read", "write"}),
        asked=lambda body: body["messages"][-1]["content"][0]["text"],
        limit=lambda body: body["max_tokens"],
        cut="length",
    ),
    "qwen-code": Way(
        path=CHAT,
        shell=_qwen,
        edit=(
            tool_call("read_file", file_path="/work/answer.txt"),
            tool_call("edit", file_path="/work/answer.txt", old_string="wrong", new_string="right"),
        ),
        tools=frozenset({"run_shell_command", "read_file", "edit", "agent"}),
        asked=lambda body: body["messages"][-1]["content"][-1]["text"],
        limit=lambda body: body["max_tokens"],
        task=f"{TASK}\n\n",  # its way to read standard input
    ),
}
