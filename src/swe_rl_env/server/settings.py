"""What a server may be told, by code or by environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated

import msgspec

from drivetrain.errors import ConfigError

PREFIX = "SWE_ENV_"

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Count = Annotated[int, msgspec.Meta(ge=1)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server's options; seconds, bytes and counts.

    Args:
        sandbox: backend of agents and graders (``drivetrain.sandboxes.backend_names()``).
        source: tasks, as :func:`~swe_rl_env.tasks.loading.parse_source` reads it; None = those of the package.
        tasks: serve only these ids; empty = all of the source that are not in quarantine.
        image: of the sandboxes of tasks without an image of their own; None = the backend's default.
        max_concurrent_envs: episodes at a time, each with a sandbox.
        max_steps: actions of one episode; after the last one its work is graded as it is.
        episode_timeout_s: wall time from ``reset`` on; what comes later is graded as it is. OpenEnv's validation
            policy allows 3600.
        idle_timeout_s: an episode nobody asks anything of for so long is closed, ungraded.
        command_timeout_s: most that one command may ask for, and what it gets when it does not ask.
        output_bytes: of each of stdout and stderr of one observation; the middle of more is left out.
        file_bytes: largest file that is read or written in one action.
        grading_timeout_s: of the hidden tests; None = the task's own.
    """

    sandbox: str = "local"
    source: str | None = None
    tasks: tuple[str, ...] = ()
    image: str | None = None
    max_concurrent_envs: _Count = 8
    max_steps: _Count = 100
    episode_timeout_s: _Positive = 3600.0
    idle_timeout_s: _Positive = 1800.0
    command_timeout_s: _Positive = 300.0
    output_bytes: Annotated[int, msgspec.Meta(ge=1024, le=4 << 20)] = 32 << 10
    file_bytes: Annotated[int, msgspec.Meta(ge=1024, le=64 << 20)] = 1 << 20
    grading_timeout_s: _Positive | None = None


def settings_from(environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings from ``SWE_ENV_SANDBOX``, ``SWE_ENV_MAX_STEPS``, ...: a field's name in capitals; commas between ids.

    Raises:
        ConfigError: a variable with that prefix that is no setting, or a value that cannot be one.
    """
    given: dict[str, object] = {
        name.removeprefix(PREFIX).lower(): value for name, value in environ.items() if name.startswith(PREFIX)
    }
    if "tasks" in given:
        given["tasks"] = [part.strip() for part in str(given["tasks"]).split(",") if part.strip()]
    try:
        return msgspec.convert(given, Settings, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(f"{PREFIX}{name.upper()}" for name in Settings.__struct_fields__)
        raise ConfigError(
            f"The environment variables {PREFIX}* do not fit: {error}.", fix=f"There are: {known}."
        ) from error
