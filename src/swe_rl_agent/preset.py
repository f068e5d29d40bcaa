"""Presets: everything drivetrain knows about one harness, as data.

A preset is a TOML file in ``presets/``: the command line, environment, config files written into the private HOME,
dialect, timeouts, what is switched off and how the harness's own last word reads. No code knows a harness by name
except the log reader a preset names.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from drivetrain.errors import ConfigError
from swe_rl_agent.names import lookup
from swe_rl_agent.template import NAMES, Value, merge, placeholders

PRESETS = Path(__file__).parent / "presets"
OPTIONS = "{options}"
"""The argv element that stands for the chosen variant's options (none by default)."""
TOOLS = "{tools}"
"""The argv element that stands for the options that name an environment's MCP server (none without one)."""
EXIT_CODE = "exit_code"
"""The log reader of a harness without a readable log: its last word is ``exit N``, the detail the end of its stderr."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Dialect = Literal["openai_chat", "openai_responses", "anthropic", "google"]
StopReason = Literal[
    "completed",
    "length",
    "max_turns",
    "format_error",
    "context_overflow",
    "deadline",
    "model_error",
    "crashed",
]
"""Why a run ended. ``completed``: the harness says it finished. ``length``: its last answer was cut. ``max_turns``: its
own step limit. ``format_error``: it gave up on malformed answers. ``context_overflow``: the conversation no longer
fits. ``deadline``: killed by us. ``model_error``: the model endpoint failed. ``crashed``: no readable last word."""

INFRASTRUCTURE: frozenset[StopReason] = frozenset({"model_error", "crashed"})
"""Stops that say nothing about the policy: such a rollout is not graded as a failure."""


class ConfigFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file written into HOME with mode 0600. ``content`` is a tree with placeholders, written as TOML where the path
    ends in ``.toml`` and as JSON elsewhere, or a text, written as it is (:mod:`swe_rl_agent.config_text`)."""

    path: str
    content: dict[str, Any] | str


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds. ``request_s``: the harness's patience with one model call. ``command_s``: with one shell command.
    ``kill_grace_s``: between TERM and KILL at the deadline."""

    request_s: int = 1800
    command_s: int = 120
    kill_grace_s: float = 2.0


class Patience(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the gateway keeps this harness waiting for a slow model call, in seconds and in the form that it understands
    (harnesses.md section 1.5): :class:`drivetrain.gateway.patience.Patience`."""

    grace_s: Annotated[float, msgspec.Meta(gt=0)] = 15.0
    every_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    form: Literal["default", "comment", "event", "newline"] = "default"


class LabelRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation that is not a plain agent's, by what its first request looks like; all conditions must hold.

    It wins over what the structure of the session suggests (:mod:`drivetrain.trace.labels`).
    """

    label: Literal["subagent", "title", "summary", "compaction", "probe"]
    system_contains: str = ""
    without_tools: bool = False


class Variant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named change of a preset: extra options, and config trees merged over the files of the same path."""

    options: tuple[str, ...] = ()
    files: tuple[ConfigFile, ...] = ()


class ToolWiring(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the harness is told of an MCP server (streamable HTTP, called ``environment``) at ``{tools_url}`` that wants
    ``{tools_key}`` as a bearer token: options where the argv says ``{tools}``, files that are added or merged."""

    options: tuple[str, ...] = ()
    files: tuple[ConfigFile, ...] = ()


class Preset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One harness. ``bundle`` is a recipe of :mod:`swe_rl_agent.bundle`; for a custom agent a host folder (a path,
    relative to the preset's file, mounted read-only at ``{bundle}``), or empty: the program is in the image.
    ``stops`` maps the harness's own final words to a :data:`StopReason`; a word it does not list is
    ``crashed``. ``overflow_marks`` are lower-case fragments of an error text that make a ``model_error`` a
    ``context_overflow``. ``native_log`` is the trajectory the harness writes, ``{home}`` allowed. ``stdin`` is
    the path of one of ``files``, which the harness reads as its standard input (empty otherwise): for a task that it
    would alter as an argument. ``task_guard`` lists
    first characters the harness would not take as text. ``log_noise`` lists the beginnings of log
    lines that are not returned (partial answers, repeated per token). Without ``patience`` the gateway's own is used;
    a harness that does not stream can be sent nothing before its reply. ``linger_s`` is how long (seconds) a harness
    may take to end after its last word, for those that sometimes do not end by themselves; 0 = until the deadline. A
    harness without ``tools`` speaks no MCP."""

    name: str
    bundle: str
    dialect: Dialect
    stream: bool
    log_reader: str
    argv: tuple[str, ...]
    stops: dict[str, StopReason]
    native_log: str = ""
    stdin: str = ""
    task_guard: str = ""
    log_noise: tuple[str, ...] = ()
    env: dict[str, str] = {}
    files: tuple[ConfigFile, ...] = ()
    timeouts: Timeouts = Timeouts()
    patience: Patience | None = None
    max_retries: int = 2
    linger_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    overflow_marks: tuple[str, ...] = ()
    switched_off: tuple[str, ...] = ()
    labels: tuple[LabelRule, ...] = ()
    tools: ToolWiring | None = None
    variants: dict[str, Variant] = {}
    variant: str = ""

    @property
    def sha256(self) -> str:
        """Hash of the preset as data (hex): part of a rollout's provenance."""
        data = msgspec.structs.replace(self, bundle=posixpath.basename(self.bundle))  # not where a folder lies here
        return hashlib.sha256(msgspec.json.encode(data, order="sorted")).hexdigest()

    def with_variant(self, name: str | None) -> Preset:
        """The preset with a variant applied; None or "" is the preset itself.

        Raises:
            ConfigError: no such variant.
        """
        chosen = lookup(f"variant of {self.name}", name, self.variants) if name else Variant()
        argv: list[str] = []
        for word in self.argv:
            argv.extend(chosen.options if word == OPTIONS else [word])
        files = _with_files(self.files, chosen.files)
        return msgspec.structs.replace(self, argv=tuple(argv), files=files, variants={}, variant=name or "")

    def with_tools(self, wanted: bool) -> Preset:
        """The preset with an environment's MCP server configured, or without.

        Raises:
            ConfigError: wanted, and the harness speaks no MCP.
        """
        if wanted and self.tools is None:
            raise ConfigError(
                f"{self.name} speaks no MCP, so it cannot be given an environment's tools.",
                fix="Choose an agent that does (drivetrain agents ls), or a session without tools.",
            )
        wiring = self.tools if wanted and self.tools is not None else ToolWiring()
        argv: list[str] = []
        for word in self.argv:
            argv.extend(wiring.options if word == TOOLS else [word])
        return msgspec.structs.replace(self, argv=tuple(argv), files=_with_files(self.files, wiring.files), tools=None)


def _with_files(files: tuple[ConfigFile, ...], extra: tuple[ConfigFile, ...]) -> tuple[ConfigFile, ...]:
    """Files with others merged over those of the same path, or added."""
    changes: Mapping[str, ConfigFile] = {file.path: file for file in extra}
    known = {file.path for file in files}
    merged = [_merged(file, changes[file.path]) if file.path in changes else file for file in files]
    return (*merged, *(file for file in extra if file.path not in known))


def _merged(file: ConfigFile, extra: ConfigFile) -> ConfigFile:
    content = merge(file.content, extra.content)
    assert isinstance(content, dict | str)
    return ConfigFile(file.path, content)


def load_preset(path: Path) -> Preset:
    """Read and check one preset file.

    Raises:
        ConfigError: unreadable, not TOML, a wrong field, an unknown placeholder, or a key that would become visible.
    """
    try:
        preset = msgspec.convert(tomllib.loads(path.read_text()), Preset)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(
            f"Preset {path.name} is not valid: {error}.", fix="See presets/pi.toml for a valid one."
        ) from error
    check_preset(preset, path.name)
    if "/" in preset.bundle or preset.bundle.startswith("."):
        preset = msgspec.structs.replace(preset, bundle=str((path.absolute().parent / preset.bundle).resolve()))
    return preset


def check_preset(preset: Preset, where: str = "") -> None:
    """The rules a type cannot express; for presets that are made in Python.

    Raises:
        ConfigError: which one is broken.
    """
    where = where or preset.name
    if not _NAME.fullmatch(preset.name):
        raise ConfigError(f"Preset {where} has the name {preset.name!r}.", fix="Use letters, digits and `.`, `_`, `-`.")
    variants = preset.variants.values()
    wiring = preset.tools or ToolWiring()
    visible: list[Value] = [*preset.argv, *preset.env.values(), preset.native_log, *wiring.options]
    visible += [option for variant in variants for option in variant.options]
    files = [*preset.files, *(file for variant in variants for file in variant.files)]
    texts: list[Value] = [file.content for file in (*files, *wiring.files)]
    used = {name for part in [*visible, *texts] for name in placeholders(part)}
    if unknown := used - NAMES - {"options", "tools"}:
        raise ConfigError(
            f"Preset {where} uses unknown placeholders: {', '.join(sorted(unknown))}.",
            fix=f"Known: {', '.join(sorted(NAMES))}.",
        )
    # design, section 3, invariant 6: the secret never appears in an argv, and env is inherited by every child
    for name in sorted({"api_key", "tools_key"} & {name for part in visible for name in placeholders(part)}):
        raise ConfigError(f"Preset {where} puts {{{name}}} into its argv or env.", fix="Write it into a config file.")
    if not preset.bundle and "bundle" in used:
        raise ConfigError(f"Preset {where} uses {{bundle}} and names none.", fix="Set bundle, or name the program.")
    if not preset.argv:
        raise ConfigError(f"Preset {where} has an empty argv.", fix="Name the program to start.")
    if "task" not in used:
        raise ConfigError(f"Preset {where} never uses {{task}}.", fix="Put it into the argv or a config file.")
    known = {file.path for file in preset.files}
    if preset.stdin and preset.stdin not in known:
        raise ConfigError(f"Preset {where}: stdin {preset.stdin} is no file it writes.", fix="Add it to files.")
    if preset.tools is not None and not {"tools_url", "tools_key"} <= used:
        raise ConfigError(f"Preset {where} has [tools] and never uses {{tools_url}} and {{tools_key}}.")
    for file in (*files, *wiring.files):
        if file.path.startswith("/") or ".." in Path(file.path).parts:
            raise ConfigError(f"Preset {where}: {file.path} leaves HOME.", fix="Give a path relative to HOME.")
    for file in files:
        if file.path not in known:
            raise ConfigError(f"Preset {where}: a variant changes {file.path}, which the preset does not write.")
