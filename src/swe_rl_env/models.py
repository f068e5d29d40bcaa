"""What goes over the wire between an OpenEnv client and this environment: action, observation, state."""

from __future__ import annotations

from typing import Annotated, Literal

from openenv.core.env_server.types import Action, Observation, State
from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

ActionType = Literal["bash", "read", "write", "apply_patch", "submit"]
Status = Literal["running", "ok", "truncated", "infra_error", "unscorable"]

_FIELDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "bash": (frozenset({"command"}), frozenset({"timeout_s"})),
    "read": (frozenset({"path"}), frozenset()),
    "write": (frozenset({"path", "content"}), frozenset()),
    "apply_patch": (frozenset({"patch"}), frozenset()),
    "submit": (frozenset(), frozenset()),
}
"""Fields that an action of each type must have, and may have."""

_TEXT_CHARS = 16 << 20
_COMMAND_CHARS = 100_000  # one argument of a program may have 128 KiB (execve(2))


def _no_nul(value: str) -> str:
    if "\0" in value:
        # Not ValueError: OpenEnv 0.10 sends an error's context as JSON, and an exception in it ends the session.
        raise PydanticCustomError("nul_character", "may not hold a NUL character")
    return value


_Text = Annotated[str, AfterValidator(_no_nul)]


class SWEAction(Action):  # type: ignore[misc]  # openenv ships no types
    """One thing to do in the task's sandbox, or ``submit``, which ends the episode and has its work graded.

    ``bash`` runs ``command`` in a fresh shell in the checkout (``cd`` and variables do not last; files do).
    ``read`` and ``write`` take UTF-8 text; a ``path`` that is not absolute counts from the checkout. ``apply_patch``
    applies a unified diff there. ``timeout_s`` (seconds) is for ``bash``.
    """

    type: ActionType
    command: Annotated[_Text, Field(max_length=_COMMAND_CHARS)] | None = None
    path: Annotated[_Text, Field(min_length=1, max_length=4096)] | None = None
    content: Annotated[str, Field(max_length=_TEXT_CHARS)] | None = None
    patch: Annotated[str, Field(max_length=_TEXT_CHARS)] | None = None
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _fits_its_type(self) -> SWEAction:
        must, may = _FIELDS[self.type]
        given = {
            name for name in ("command", "path", "content", "patch", "timeout_s") if getattr(self, name) is not None
        }
        if missing := sorted(must - given):
            raise PydanticCustomError(
                "missing_field",
                "an action of type {type} needs {fields}",
                {"type": self.type, "fields": ", ".join(missing)},
            )
        if extra := sorted(given - must - may):
            raise PydanticCustomError(
                "unused_field",
                "an action of type {type} has no {fields}",
                {"type": self.type, "fields": ", ".join(extra)},
            )
        return self

    @classmethod
    def bash(cls, command: str, timeout_s: float | None = None) -> SWEAction:
        """Run a command."""
        return cls(type="bash", command=command, timeout_s=timeout_s)

    @classmethod
    def read(cls, path: str) -> SWEAction:
        """Read a file."""
        return cls(type="read", path=path)

    @classmethod
    def write(cls, path: str, content: str) -> SWEAction:
        """Create or replace a file; folders on the way are made."""
        return cls(type="write", path=path, content=content)

    @classmethod
    def apply_patch(cls, patch: str) -> SWEAction:
        """Apply a unified diff."""
        return cls(type="apply_patch", patch=patch)

    @classmethod
    def submit(cls) -> SWEAction:
        """End the episode and have the work graded."""
        return cls(type="submit")


class SWEObservation(Observation):  # type: ignore[misc]  # openenv ships no types
    """What came of an action.

    ``reward`` is None until the hidden tests have run, 1.0 or 0.0 then, and None for ever when they could not run:
    ``status`` says which (``running``; ``ok``; ``truncated``: graded, but a limit ended the episode; ``infra_error``:
    the sandbox failed; ``unscorable``: grading failed). Leave the last two out of a baseline; they are no zeros.

    ``prompt`` and ``workdir`` come with ``reset``. ``stdout`` is a command's output or a file's content; ``exit_code``
    is a command's (128 + signal when killed). ``error`` says why an action was not carried out; the episode goes on.
    At the end, ``metadata`` has ``reason`` (a typed code), ``findings`` (traces of an attempt to pass without solving;
    they never change the reward), ``dropped_paths`` (edits that did not count), test counts, sizes and times.
    Test names, test output and patches of the task are in none of it.
    """

    status: Status = "running"
    prompt: str = ""
    workdir: str = ""
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    timed_out: bool = False
    output_truncated: bool = False
    error: str = ""
    steps_left: int = Field(default=0, ge=0)


class SWEState(State):  # type: ignore[misc]  # openenv ships no types
    """For whoever runs episodes, not for the agent: ``task`` names the release with the fix.

    ``episode_id`` and ``step_count`` are OpenEnv's; ``reward`` and ``status`` as in the last observation.
    """

    task: str | None = None
    status: Status | None = None
    reward: float | None = None
    max_steps: int | None = None
