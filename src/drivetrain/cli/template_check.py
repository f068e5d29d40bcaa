"""``drivetrain template-check``: for which message shapes can stored tokens be continued?"""

from __future__ import annotations

from pathlib import Path

import typer
from rich.markup import escape
from rich.table import Table

from drivetrain.cli.console import err, out, print_json, tell
from drivetrain.engines.models import resolve_model
from drivetrain.errors import ConfigError
from drivetrain.gateway.model import load_template
from drivetrain.tokens.boundary import detect_boundary
from drivetrain.tokens.check import CAUSES, Finding, TemplateCheck, check_template
from drivetrain.tokens.shapes import BY_NAME
from drivetrain.tokens.tokenizer import Tokenizer

_COLOURS = {"append_only": "green", "needs_rule": "cyan", "forks": "yellow", "refused": "red"}


def template_check(
    model: str = typer.Argument("SmolLM2-135M-Instruct", help="Bundled model name or model directory."),
    template: Path | None = typer.Option(None, "--template", help="Check this Jinja file with the model's tokenizer."),
    json_output: bool = typer.Option(False, "--json", help="Print the report as JSON."),
) -> None:
    """Try every shape of appended messages on a chat template, on text and on ids.

    append_only: stored tokens + what the template appends are what it would render. needs_rule: so they are with a
    rule (a cut turn is closed; sampled text stays as sampled). forks: the conversation is rendered anew. refused: the
    template raises, or leaves a message out. "keep" is the verdict that counts by default, "template" the one where
    the template is followed to the letter.

    Exits with 1 when nothing can be continued or the template belongs to no known family.

    Example: drivetrain template-check SmolLM2-135M-Instruct --template mine.jinja
    """
    resolved = resolve_model(model, None, tell, chat_template=template)
    tokenizer = Tokenizer.from_file(resolved.tokenizer_path)
    chat_template = load_template(resolved)
    try:
        found = check_template(chat_template, tokenizer, detect_boundary(chat_template, tokenizer))
    except ConfigError as error:
        if json_output:
            print_json({"family": None, "template_sha256": chat_template.sha256, "error": str(error)})
        err.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error
    if json_output:
        print_json(found)
    else:
        _show(found)
    if not found.continuable:
        raise typer.Exit(1)


def _show(found: TemplateCheck) -> None:
    out.print(f"family {found.family}, template {found.template_sha256[:16]}", markup=False)
    table = Table("shape", "what follows", "keep", "template", "why", "first difference")
    for finding in found.findings:
        table.add_row(
            finding.shape,
            BY_NAME[finding.shape].about,
            _verdict(finding.keep),
            _verdict(finding.verdict),
            escape(finding.detail or CAUSES[finding.cause]),
            _difference(finding),
        )
    out.print(table)


def _verdict(verdict: str) -> str:
    return f"[{_COLOURS[verdict]}]{verdict}[/]"


def _difference(finding: Finding) -> str:
    if not finding.expected and not finding.got:
        return ""
    tokens = " ".join(finding.expected_tokens[:3]), " ".join(finding.got_tokens[:3])
    text = f"template {finding.expected[:30]!r} ({tokens[0]}), stored {finding.got[:30]!r} ({tokens[1]})"
    return escape(text)
