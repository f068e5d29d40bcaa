"""``drivetrain``: the entry point and its error manners."""

from __future__ import annotations

import signal
from typing import Any

import typer
from typer.core import TyperGroup

from drivetrain import __version__
from drivetrain.cli import agents, doctor, prepare, probe, reap, rollout, serve, tasks, template_check, trace, train
from drivetrain.cli import eval as evaluation
from drivetrain.cli.console import fail
from drivetrain.errors import DrivetrainError


class _Group(TyperGroup):
    """A typed error becomes one clear line and a non-zero exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DrivetrainError as error:
            raise typer.Exit(fail(error)) from error
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


app = typer.Typer(
    name="drivetrain",
    cls=_Group,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train a model inside a real coding agent.\n\n"
    "A rollout puts an unmodified agent (Claude Code, Codex, Pi, ...) into a sandbox with a real task, serves its "
    "model calls token-in / token-out, records every sampled token, and grades the work in a second, sealed "
    "sandbox.\n\n"
    "Start with `drivetrain doctor`, then `drivetrain rollout --agent pi --task pypi__xmltodict-0.14.2`, then "
    "`drivetrain trace check RUN` and `drivetrain train --run RUN`.",
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"drivetrain {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Options of every command."""


app.command("doctor")(doctor.doctor)
app.command("reap")(reap.reap)
app.add_typer(tasks.app, name="tasks")
app.add_typer(agents.app, name="agents")
app.command("prepare")(prepare.prepare)
app.command("rollout")(rollout.rollout)
app.command("eval")(evaluation.eval_)
app.add_typer(trace.app, name="trace")
app.command("train")(train.train)
app.command("serve")(serve.serve)
app.command("probe")(probe.probe)
app.command("template-check")(template_check.template_check)


def main() -> None:
    """Run the command line. SIGTERM ends a command as Ctrl-C does: sandboxes and sockets are cleaned up."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app()
