"""``drivetrain``: the entry point and its error manners."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from drivetrain import __version__
from drivetrain.cli import (
    agents,
    dashboard,
    doctor,
    openapi,
    prepare,
    probe,
    reap,
    rollout,
    serve,
    tasks,
    template_check,
    trace,
    train,
)
from drivetrain.cli import eval as evaluation
from drivetrain.cli.completion import completion
from drivetrain.cli.config import DEFAULT_FILE, ConfigFile, read_config
from drivetrain.cli.console import fail, tell
from drivetrain.cli.init import init
from drivetrain.cli.surface import UNCONFIGURED, configurable, name_variables, option_name
from drivetrain.errors import ConfigError, DrivetrainError


class _Group(TyperGroup):
    """Defaults come from the configuration file; a typed error becomes one clear line and a non-zero exit code."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        name_variables(self)

    def invoke(self, ctx: Any) -> Any:
        try:
            asked = [*ctx._protected_args, *ctx.args]
            found = None if _needs_no_config(asked) else _read_config(self, ctx.params.get("config"))
            if found is not None:
                ctx.default_map = found.default_map()
                _say_used(found, asked)
            try:
                return super().invoke(ctx)
            except typer.BadParameter as error:
                raise _located(error, found) from None
        except DrivetrainError as error:
            raise typer.Exit(fail(error)) from error
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _needs_no_config(arguments: list[str]) -> bool:
    return bool(set(arguments[:1]) & set(UNCONFIGURED) or {"-h", "--help"} & set(arguments))


def _read_config(root: Any, named: Path | None) -> ConfigFile | None:
    path = named or (DEFAULT_FILE if DEFAULT_FILE.is_file() else None)
    return read_config(path, configurable(root)) if path is not None else None


def _say_used(found: ConfigFile, arguments: list[str]) -> None:
    """Settings that were not typed should not be a surprise."""
    for path, values in found.values.items():
        if values and tuple(arguments[: len(path)]) == path:
            tell(f"{len(values)} settings of {' '.join(path)} are taken from {found.path}")


def _located(error: typer.BadParameter, found: ConfigFile | None) -> Exception:
    """A value that an option refuses is told with its place in the file, or with the variable that held it."""
    context, parameter = error.ctx, error.param
    if context is None or parameter is None or parameter.name is None:
        return error
    source = context.get_parameter_source(parameter.name)
    if source is not None and source.name == "ENVIRONMENT":
        return ConfigError(f"${parameter.envvar}: {error.message}.", fix="Change it or unset it.")
    if found is None or source is None or source.name != "DEFAULT_MAP":
        return error
    path = tuple(context.command_path.split()[1:])
    return ConfigError(f"{found.where(path, option_name(parameter))}: {error.message}.")


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
    "Every option can also be set in drivetrain.toml (`drivetrain init` writes one) or in the environment as "
    "DRIVETRAIN_<COMMAND>_<OPTION>, e.g. DRIVETRAIN_ROLLOUT_MAX_TURNS. A flag beats the environment, the environment "
    "beats the file.\n\n"
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
    config: Path | None = typer.Option(
        None,
        "--config",
        envvar="DRIVETRAIN_CONFIG",
        metavar="FILE",
        help="Settings of every command, TOML; stands before the command. Default: drivetrain.toml, if there is one.",
    ),
) -> None:
    """Options of every command."""


app.command("doctor")(doctor.doctor)
app.command("init")(init)
app.command("reap")(reap.reap)
app.add_typer(tasks.app, name="tasks")
app.add_typer(agents.app, name="agents")
app.command("prepare")(prepare.prepare)
app.command("rollout")(rollout.rollout)
app.command("eval")(evaluation.eval_)
app.add_typer(trace.app, name="trace")
app.command("train")(train.train)
app.command("serve")(serve.serve)
app.command("dashboard")(dashboard.dashboard)
app.command("openapi")(openapi.openapi)
app.command("probe")(probe.probe)
app.command("template-check")(template_check.template_check)
app.command("completion")(completion)


def main() -> None:
    """Run the command line. SIGTERM ends a command as Ctrl-C does: sandboxes and sockets are cleaned up."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app()
