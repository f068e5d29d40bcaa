"""``drivetrain eval``: how well an agent with a model does, against any endpoint, nothing intercepted."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import msgspec
import typer

from drivetrain.cli import task_options as options
from drivetrain.cli.completion import agents as complete_agents
from drivetrain.cli.completion import tasks as complete_tasks
from drivetrain.cli.console import out, print_json, tell
from drivetrain.cli.task_options import TaskChoice, make_filters
from drivetrain.errors import ConfigError
from drivetrain.evaluation.config import EvalConfig, NetworkChoice
from drivetrain.evaluation.folder import Attempt, EvalFolder
from drivetrain.evaluation.page import page
from drivetrain.evaluation.report import EvalReport, headline, interval, make_report, markdown
from drivetrain.evaluation.run import evaluate
from swe_rl_env.tasks.model import SweTask

_NETWORKS = ("model_only", "open")


def eval_(
    agent: str = typer.Option(
        ..., "--agent", "-a", help="Agent to evaluate, or oracle or noop.", autocompletion=complete_agents
    ),
    task: list[str] = typer.Option(
        [], "--tasks", "--task", "-t", help="Task id, may be repeated; or `all`.", autocompletion=complete_tasks
    ),
    base_url: str = typer.Option("", "--base-url", help="Model endpoint, without /v1: https://api.example.com."),
    model: str = typer.Option("", "--model", "-m", help="Model name that the endpoint knows."),
    api_key_env: str = typer.Option("", "--api-key-env", help="Environment variable that holds the endpoint's key."),
    n: int = typer.Option(1, "-n", help="Attempts per task."),
    source: str | None = options.SOURCE,
    format: str | None = options.FORMAT,
    language: list[str] = options.LANGUAGE,
    repo: list[str] = options.REPO,
    difficulty: list[str] = options.DIFFICULTY,
    max_lines: int | None = options.MAX_LINES,
    split: str | None = options.SPLIT,
    include_quarantined: bool = options.QUARANTINED,
    quarantine: Path | None = options.QUARANTINE,
    variant: str | None = typer.Option(None, help="Preset variant, e.g. 'small' for short prompts."),
    context_length: int = typer.Option(131_072, help="Tokens that the model can hold."),
    max_tokens: int = typer.Option(8192, help="Tokens of one answer."),
    max_turns: int = typer.Option(0, help="The agent's own step limit, where it has one; 0 = none."),
    deadline: float = typer.Option(1800.0, help="Seconds of wall time per attempt."),
    sandbox: str = typer.Option("local", "--sandbox", help="Sandbox backend."),
    network: str = typer.Option(
        "model_only", help="model_only: the sandbox reaches the endpoint and nothing else. open: the host's network."
    ),
    concurrency: int = typer.Option(2, "--concurrency", "-c", help="Attempts at a time."),
    infra_tries: int = typer.Option(3, help="How often an attempt is started while the machinery fails."),
    out_dir: Path | None = typer.Option(None, "--out", "-o", help="Folder; an existing one is gone on with."),
    json_output: bool = options.JSON,
) -> None:
    """Evaluate an unmodified agent with a model: pass@k, intervals, a table per repository; JSON, Markdown and HTML.

    Example: drivetrain eval -a pi -t all --base-url https://api.example.com --api-key-env KEY -m some-model -n 4

    With --out an evaluation that was stopped goes on: what is graded is not run again. Attempts that failed for reasons
    of the machinery (endpoint down, sandbox lost) count as nothing, never as failures, and are run again.

    Exits with 1 when attempts could not be graded.
    """
    if not task:
        raise ConfigError("name tasks with --tasks, or take every one with --tasks all.")
    if network not in _NETWORKS:
        raise ConfigError(f"There is no network {network!r} here.", fix=f"Choose one of: {', '.join(_NETWORKS)}.")
    config = EvalConfig(
        agent=agent,
        model=model,
        base_url=base_url.rstrip("/"),
        variant=variant,
        context_length=context_length,
        max_tokens=max_tokens,
        max_turns=max_turns,
        deadline_s=deadline,
        sandbox=sandbox,
        network=cast("NetworkChoice", network),
        infra_tries=infra_tries,
    )
    filters = make_filters(split, languages=language, repos=repo, difficulties=difficulty, max_lines=max_lines)
    ids = () if task == ["all"] else tuple(task)
    choice = TaskChoice(source=source, format=format, ids=ids, filters=filters, quarantine=quarantine)
    tasks = choice.load(include_quarantined=include_quarantined)
    if not tasks:
        raise ConfigError("No task is left after the filters.")
    folder = EvalFolder.open(out_dir, config)
    report = _evaluate(config, tasks, folder, n, _key(api_key_env), concurrency)
    if json_output:
        print_json({"folder": str(folder.path), **msgspec.to_builtins(report)})
    else:
        sys.stdout.write(f"{headline(report)}\n")
        for k, made in report.pass_at.items():
            sys.stdout.write(f"pass@{k}  {interval(made)}  {made.tasks} tasks, {made.method}\n")
        out.print(f"report: {folder.path}/report.html (.md, .json)", markup=False, highlight=False, soft_wrap=True)
    if report.infra_errors:
        raise typer.Exit(1)


def _key(variable: str) -> str:
    if not variable:
        return ""
    key = os.environ.get(variable, "")
    if not key:
        raise ConfigError(f"The environment variable {variable} is not set.", fix="Set it to the endpoint's key.")
    return key


def _evaluate(
    config: EvalConfig, tasks: Sequence[SweTask], folder: EvalFolder, n: int, key: str, concurrency: int
) -> EvalReport:
    try:
        attempts = asyncio.run(
            evaluate(
                config,
                tasks,
                folder,
                n=n,
                api_key=key,
                concurrency=concurrency,
                tell=tell,
                on_done=_progress(len(tasks) * n, folder),
            )
        )
    except BaseException:
        if folder.path.exists():
            tell(f"what finished is in {folder.path}; go on with --out {folder.path}")
        raise
    report = make_report(config, tasks, attempts)
    write_reports(folder, report)
    return report


def write_reports(folder: EvalFolder, report: EvalReport) -> None:
    """``report.json``, ``report.md`` and ``report.html``."""
    data = msgspec.json.format(msgspec.json.encode(report), indent=2)
    (folder.path / "report.json").write_bytes(data + b"\n")
    (folder.path / "report.md").write_text(markdown(report), encoding="utf-8")
    (folder.path / "report.html").write_text(page(report), encoding="utf-8")


def _progress(total: int, folder: EvalFolder) -> Callable[[Attempt], None]:
    """One line per attempt: how it ended, the share so far, and how long the rest may take."""
    started, earlier = time.monotonic(), [a for a in folder.attempts().values() if a.counts]
    done, graded, resolved = len(earlier), len(earlier), sum(a.status == "resolved" for a in earlier)
    finished = 0

    def say(attempt: Attempt) -> None:
        nonlocal done, graded, resolved, finished
        done, finished = done + 1, finished + 1
        graded += attempt.counts
        resolved += attempt.status == "resolved"
        left = (time.monotonic() - started) / finished * max(0, total - done)
        why = attempt.detail if attempt.status == "infra_error" else attempt.reason
        line = f"[{done}/{total}] {attempt.task_id} #{attempt.index}: {attempt.status} ({why[:120]}), "
        share = f"{resolved}/{graded} resolved so far" if graded else "none graded so far"
        tell(f"{line}{attempt.seconds:.0f} s; {share}, {left / 60:.0f} min left")

    return say
