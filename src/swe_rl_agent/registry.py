"""The agents this package knows, by name."""

from __future__ import annotations

from functools import cache

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
        variant: a named change of the preset, e.g. ``small`` for a short prompt.

    Raises:
        ConfigError: unknown agent or variant (the message lists close matches), or a broken preset file.
    """
    return CLIHarness(lookup("agent", name, _presets()).with_variant(variant))
