"""``drivetrain openapi``: the OpenAPI document of the gateway, without one running."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from drivetrain.cli.console import print_json
from drivetrain.dashboard import part as dashboard
from drivetrain.gateway.openapi.part import gateway_document
from drivetrain.metrics import part as metrics

SERVED = (*dashboard.OPERATIONS, *metrics.OPERATIONS)
"""What ``drivetrain serve`` adds to the admin surface."""


def openapi(
    out: Path | None = typer.Option(None, "--out", "-o", help="Write it here instead of printing it."),
    json_output: bool = typer.Option(False, "--json", help="With --out: say where it was written, as JSON."),
) -> None:
    """Print the OpenAPI 3.1 document of the gateway: the four APIs for harnesses, and the admin surface.

    A running gateway serves the same at GET /admin/openapi.json.

    EXAMPLES

    drivetrain openapi --out openapi.json
    """
    text = render()
    if out is None:
        typer.echo(text, nl=False)
        return
    out.write_text(text)
    if json_output:
        print_json({"path": str(out)})


def render() -> str:
    """The document as JSON text, as it is kept in docs/openapi.json."""
    return json.dumps(gateway_document(SERVED), indent=1, ensure_ascii=False) + "\n"
