"""``drivetrain agents``: which agents there are, and their bundles."""

from __future__ import annotations

from typing import Any

import typer
from rich.table import Table

from drivetrain.cli.console import out, print_json, tell
from swe_rl_agent.bundle import RECIPES, Bundle, built_bundle
from swe_rl_agent.preset import Preset
from swe_rl_agent.registry import get_agent, get_preset, list_agents

app = typer.Typer(no_args_is_help=True, help="Agents: their presets and their pinned, hashed bundles.")


@app.command("ls")
def ls(json_output: bool = typer.Option(False, "--json", help="Print as JSON.")) -> None:
    """Every agent that is built in: version, API, variants, its bundle if it is built, the oldest glibc that runs it.

    What the tests say about each is in docs/agents.md. Give a preset file of your own wherever an agent is named.

    Example: drivetrain agents ls --json
    """
    lines = [_line(preset, _built(preset)) for preset in map(get_preset, list_agents())]
    if json_output:
        print_json(lines)
        return
    table = Table("agent", "version", "API", "variants", "environment's tools", "bundle", "MB", "glibc", "status")
    for line in lines:
        digest, size = line["sha256"], line["bytes"]
        table.add_row(
            line["name"],
            line["version"],
            line["dialect"],
            ", ".join(line["variants"]) or "-",
            "MCP" if line["mcp"] else "-",
            digest[:12] if digest else "-",
            str(round(size / 1e6)) if size else "-",
            {None: "-", "": "any libc"}.get(line["glibc"], line["glibc"]),
            line["status"],
        )
    out.print(table)


@app.command("build")
def build(
    name: list[str] = typer.Argument(None, help="Agents; every one when none is named.", show_default=False),
    check: bool = typer.Option(False, "--check", help="Hash every file of what is built already."),
    json_output: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """Build bundles, or find them in the cache: a minute each, from the npm and PyPI registries, locked and hashed.

    Example: drivetrain agents build pi codex
    """
    lines = []
    for each, agent in [(each, get_agent(each)) for each in name or list_agents()]:  # names are checked first
        bundle = agent.prepare(None, tell)
        if check and bundle.mounted:
            bundle.verify(full=True)
        lines.append(_line(get_preset(each), bundle))
        if not json_output:
            out.print(f"{bundle.name} {bundle.version}  {bundle.bytes / 1e6:.0f} MB  {bundle.sha256}", markup=False)
    if json_output:
        print_json(lines)


def _built(preset: Preset) -> Bundle | None:
    """The preset's bundle where the cache holds it."""
    return built_bundle(preset.bundle) if preset.bundle in RECIPES else None


def _line(preset: Preset, bundle: Bundle | None) -> dict[str, Any]:
    """What is known of one agent; ``status`` is ``built``, ``not built`` or ``own`` (a preset that brings its own)."""
    recipe = RECIPES.get(preset.bundle)
    built = "built" if bundle is not None else "not built"
    return {
        "name": preset.name,
        "version": recipe.version if recipe is not None else "-",
        "dialect": preset.dialect,
        "variants": sorted(preset.variants),
        "mcp": preset.tools is not None,
        "status": "own" if recipe is None else built,
        "sha256": bundle.sha256 if bundle is not None else None,
        "bytes": bundle.bytes if bundle is not None else None,
        "runtime": bundle.runtime if bundle is not None else None,
        "glibc": bundle.glibc if bundle is not None else None,
        "path": str(bundle.path) if bundle is not None else None,
    }
