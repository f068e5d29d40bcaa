"""``drivetrain reap``: what crashed runs left behind goes."""

from __future__ import annotations

import asyncio

import typer
from rich.markup import escape
from rich.table import Table

from drivetrain.cli.console import out, print_json
from drivetrain.rollout.socket_folder import remove_stale_folders
from drivetrain.sandboxes.reaper import ReapReport, reap_backends

_COLOURS = {"ok": "green", "skipped": "yellow", "failed": "red"}


def reap(
    backend: list[str] = typer.Option(
        [],
        "--backend",
        "-b",
        help="Clean this backend only (local, docker, e2b, hf, ...); may be repeated. Every backend that is installed "
        "and configured when none is named.",
    ),
    timeout_s: float = typer.Option(120.0, "--timeout", min=1.0, help="Limit for each backend, seconds."),
    json_output: bool = typer.Option(False, "--json", help="Print the report as JSON."),
) -> None:
    """Remove sandboxes that nobody owns any more: processes, control groups, containers, cloud boxes, folders.

    A run removes its own sandboxes when it ends, also after Ctrl-C. Killed with SIGKILL, or by the kernel for want of
    memory, it cannot; its sandboxes then end themselves at their deadline, the next run on this machine removes what
    is left, and this command does so at once.

    Only what drivetrain made for you and labelled so is touched, and only when its owner process is dead or its
    deadline has passed. Runs that are going on are safe.

    Exits with 1 when a backend failed. One that cannot work here (not installed, no engine, no credentials) is skipped,
    or counts as failed when it was named.

    Example: drivetrain reap --backend docker --json
    """
    reports = asyncio.run(reap_backends(backend or None, timeout_s=timeout_s))
    if not backend or "local" in backend:
        reports.append(
            ReapReport(backend="gateway sockets", outcome="ok", removed=tuple(sorted(remove_stale_folders())))
        )
    if json_output:
        print_json(reports)
    else:
        table = Table("backend", "", "removed", "")
        for report in reports:
            mark = f"[{_COLOURS[report.outcome]}]{report.outcome}[/]"
            removed = "\n".join(report.removed) or ("nothing" if report.outcome == "ok" else "")
            table.add_row(report.backend, mark, removed, escape(report.reason))
        out.print(table)
    if any(report.outcome == "failed" for report in reports):
        raise typer.Exit(1)
