"""The agents this package knows, by name, and custom ones by the path of their preset."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from swe_rl_agent.harness import CLIHarness
from swe_rl_agent.names import lookup
from swe_rl_agent.preset import PRESETS, Preset, load_preset


@cache
def _presets() -> dict[str, Preset]:
    presets = [load_preset(path) for path in sorted(PRESETS.glob("*.toml"))]
    return {preset.name: preset for preset in presets}


def list_agents() -> tuple[str, ...]:
    """Names of all agents, sorted."""
    return tuple(sorted(_presets()))


def get_agent(name: str, *, variant: str | None = None) -> CLIHarness:
    """The harness called ``name``; nothing is built or started yet.

    Args:
        name: one of :func:`list_agents`, or the path of a preset of your own (it ends in ``.toml``).
        variant: a named change of the preset, e.g. ``small`` for a short prompt.

    Raises:
        ConfigError: unknown agent or variant (the message lists close matches), or a broken preset file.
    """
    return CLIHarness(get_preset(name).with_variant(variant))


def agent_name(name: str) -> str:
    """What the agent is called in results: the name in its preset; a name that is no path is its own.

    Raises:
        ConfigError: a broken preset file.
    """
    return get_preset(name).name if name.endswith(".toml") else name


def get_preset(name: str) -> Preset:
    """The preset as it is written, its variants included.

    Raises:
        ConfigError: unknown agent, or a broken preset file.
    """
    return load_preset(Path(name)) if name.endswith(".toml") else lookup("agent", name, _presets())
