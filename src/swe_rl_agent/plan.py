"""What exactly is run: a preset filled in for one rollout.

Pure data, no sandbox: the seam for other ways to run a harness (an OpenEnv CLI adapter starts the same plan).
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Mapping

import msgspec

from drivetrain.errors import ConfigError
from swe_rl_agent.config_text import config_bytes
from swe_rl_agent.preset import Preset
from swe_rl_agent.template import fill, fill_text

_KEY = re.compile(r"[A-Za-z0-9._~-]{8,512}")


class PlannedFile(msgspec.Struct, frozen=True):
    """A config file: absolute path inside and its bytes; it holds the key, so its mode is 0600."""

    path: str
    data: bytes


class ToolsEndpoint(msgspec.Struct, frozen=True):
    """An environment's MCP server as seen from inside; the key is sent as a bearer token."""

    url: str
    key: str


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """``stdin`` is the path of the file that is the harness's standard input. ``config_sha256`` hashes argv, env and
    files with key, URL, task, home and cwd left as placeholders: equal for every rollout of one experiment
    (provenance)."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: tuple[PlannedFile, ...]
    cwd: str
    native_log: str
    stdin: str
    config_sha256: str


def make_plan(
    preset: Preset,
    *,
    bundle: str,
    home: str,
    cwd: str,
    task: str,
    base_url: str,
    api_key: str,
    model: str,
    context_length: int,
    max_output_tokens: int,
    max_turns: int = 0,
    tools: ToolsEndpoint | None = None,
) -> LaunchPlan:
    """Fill a preset in.

    Args:
        bundle: where the bundle is mounted inside.
        home: HOME inside.
        base_url: without trailing slash and without ``/v1``.
        api_key: session key; letters, digits and ``._~-`` only (harnesses expand ``$`` and ``!`` in config values).
        context_length: tokens the model can hold.
        max_output_tokens: tokens of one answer.
        max_turns: the harness's own step limit where it has one; 0 = none.
        tools: tools of the environment, for a harness that speaks MCP.

    Raises:
        ConfigError: a value the harness could not take unchanged, or tools for a harness that cannot take any.
    """
    if not all(_KEY.fullmatch(key) for key in (api_key, *((tools.key,) if tools is not None else ()))):
        raise ConfigError("The session key holds characters a harness may expand, or is shorter than 8.")
    if not task.strip() or "\0" in task:
        raise ConfigError("The task is empty or holds a NUL byte.", fix="Give the agent a problem statement.")
    if max_output_tokens < 1 or context_length <= max_output_tokens:
        raise ConfigError(
            f"max_output_tokens {max_output_tokens} does not fit into context_length {context_length}.",
            fix="Leave room for the prompt.",
        )
    constant: dict[str, str | int] = {
        "bundle": bundle,
        "model": model,
        "context_length": context_length,
        "max_output_tokens": max_output_tokens,
        "max_turns": max_turns,
        "max_retries": preset.max_retries,
        "attempts": preset.max_retries + 1,
        "request_timeout_s": preset.timeouts.request_s,
        "request_timeout_ms": preset.timeouts.request_s * 1000,
        "command_timeout_s": preset.timeouts.command_s,
        "command_timeout_ms": preset.timeouts.command_s * 1000,
    }
    guarded = f" {task}" if preset.task_guard and task[0] in preset.task_guard else task
    preset = preset.with_tools(tools is not None)
    secret = {"api_key": api_key, "base_url": base_url, "task": guarded, "home": home, "cwd": cwd}
    if tools is not None:
        secret |= {"tools_url": tools.url, "tools_key": tools.key}
    neutral = {name: f"<{name}>" for name in secret}
    argv, env, files = _fill_all(preset, {**constant, **secret})
    return LaunchPlan(
        argv=argv,
        env=env,
        files=tuple(PlannedFile(posixpath.join(home, path), data) for path, data in files),
        cwd=cwd,
        native_log=fill_text(preset.native_log, {**constant, **secret}),
        stdin=posixpath.join(home, preset.stdin) if preset.stdin else "/dev/null",
        config_sha256=hashlib.sha256(msgspec.json.encode(_fill_all(preset, {**constant, **neutral}))).hexdigest(),
    )


_Filled = tuple[tuple[str, ...], dict[str, str], tuple[tuple[str, bytes], ...]]


def _fill_all(preset: Preset, values: Mapping[str, str | int]) -> _Filled:
    argv = tuple(fill_text(word, values) for word in preset.argv)
    env = {name: fill_text(text, values) for name, text in preset.env.items()}
    files = tuple((file.path, config_bytes(file.path, fill(file.content, values))) for file in preset.files)
    return argv, env, files
