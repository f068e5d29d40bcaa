"""``drivetrain rollout``: agents attempt tasks; everything is recorded."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import msgspec
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from drivetrain.cli import engine_options as engines
from drivetrain.cli import ray_options as cluster
from drivetrain.cli import task_options as options
from drivetrain.cli.completion import agents as complete_agents
from drivetrain.cli.completion import tasks as complete_tasks
from drivetrain.cli.console import err, out, print_json, tell
from drivetrain.cli.dashboard import DASHBOARD, DASHBOARD_PORT, beside_run
from drivetrain.cli.task_options import TaskChoice, make_filters
from drivetrain.errors import ConfigError
from drivetrain.rollout.config import DEFAULT_TRAIN_LABELS, Dtype, EpisodeSpec, RolloutConfig, episodes_of
from drivetrain.rollout.episode import EpisodeRunner
from drivetrain.rollout.mask_guard import MaskedFractionExceeded, MaskGuard
from drivetrain.rollout.on_ray.options import RayOptions
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.resume import ResumedRun, seal_unfinished
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.runner import run_rollouts
from drivetrain.rollout.stack import open_stack
from drivetrain.trace.turn import Label
from swe_rl_env.tasks.model import SweTask


class Reasoning(enum.StrEnum):
    """Choices of ``--reasoning``."""

    keep = "keep"
    template = "template"


def rollout(
    context: typer.Context,
    agent: list[str] = typer.Option(
        [],
        "--agent",
        "-a",
        help="A name, a preset file (*.toml), oracle (applies the fix) or noop; may be repeated.",
        autocompletion=complete_agents,
    ),
    task: list[str] = typer.Option(
        [], "--task", "-t", help="Task id; may be repeated. See `drivetrain tasks ls`.", autocompletion=complete_tasks
    ),
    all_tasks: bool = typer.Option(False, "--all-tasks", help="Every task that the filters leave."),
    source: str | None = options.SOURCE,
    format: str | None = options.FORMAT,
    language: list[str] = options.LANGUAGE,
    repo: list[str] = options.REPO,
    difficulty: list[str] = options.DIFFICULTY,
    max_lines: int | None = options.MAX_LINES,
    split: str | None = options.SPLIT,
    include_quarantined: bool = options.QUARANTINED,
    quarantine: Path | None = options.QUARANTINE,
    allow_benchmarks: bool = options.ALLOW_BENCHMARKS,
    n: int = typer.Option(1, "-n", help="Rollouts per task and agent (a GRPO group)."),
    model: str = typer.Option("SmolLM2-135M-Instruct", "--model", "-m", help="Bundled model name or model directory."),
    sandbox: str = typer.Option("local", "--sandbox", help="Sandbox backend."),
    image: str | None = typer.Option(None, help="Image that its sandboxes start from; default: the backend's."),
    concurrency: int = typer.Option(2, "--concurrency", "-c", help="Rollouts in flight."),
    temperature: float = typer.Option(1.0, help="Sampling temperature; train with the same."),
    max_turns: int = typer.Option(20, help="Model calls per rollout."),
    max_tokens: int = typer.Option(512, help="Sampled tokens per model call."),
    deadline: float = typer.Option(1800.0, help="Seconds of wall time for the agent."),
    variant: str | None = typer.Option(None, help="Preset variant, e.g. 'small' for short prompts."),
    reasoning: Reasoning = typer.Option(
        Reasoning.keep, help="keep: sampled reasoning stays in context; template: fork where the template strips it."
    ),
    engine: str = engines.ENGINE,
    engine_url: list[str] = engines.URL,
    engine_api_key_env: str = engines.API_KEY_ENV,
    engine_model: str = engines.SERVED,
    engine_boot_timeout: float = engines.BOOT_TIMEOUT,
    no_probe: bool = engines.NO_PROBE,
    dtype: str = engines.DTYPE,
    threads: int | None = engines.THREADS,
    seed: int | None = typer.Option(None, help="Makes sampling reproducible."),
    train_label: list[str] = typer.Option(
        list(DEFAULT_TRAIN_LABELS), "--train-label", help="Train turns with this label; may be repeated."
    ),
    max_masked_fraction: float = typer.Option(
        0.5, help="Stop when faults (undelivered replies, missing log-probs) cost more of the sampled tokens."
    ),
    out_dir: Path | None = typer.Option(None, "--out", "-o", help="Run folder; default runs/<time>."),
    resume: Path | None = typer.Option(
        None, "--resume", metavar="RUN", help="Go on with this run, under its own settings: run what has no result."
    ),
    ray: str | None = cluster.RAY,
    ray_cpus: float = cluster.CPUS,
    ray_resource: list[str] = cluster.RESOURCE,
    ray_attempts: int = cluster.ATTEMPTS,
    dashboard: bool = DASHBOARD,
    dashboard_port: int = DASHBOARD_PORT,
    json_output: bool = typer.Option(False, "--json", help="Print the results as JSON."),
) -> None:
    """Run agents on tasks, record every model call token by token, and grade the work.

    Example: drivetrain rollout -a pi -a mini-swe-agent -t pypi__xmltodict-0.14.2 -n 2 --variant small

    A server samples with --engine vllm --engine-url http://127.0.0.1:8000 --model DIR: DIR is the model that it serves.
    It is probed first (see `drivetrain probe`), and refused when its samples cannot be trained on.

    A run that was stopped goes on with --resume RUN: finished rollouts are kept, whatever their status; one that was
    going on starts anew, in a new session, and is counted once.

    On a cluster with --ray auto: a gateway per node; what ran on a node that dies starts anew on another. The run
    folder comes out as if all had run here (docs/ray.md).

    Exits with 1 when any rollout ended in an infrastructure failure (its reward is then none, never 0), or when too
    many sampled tokens were lost to faults.
    """
    where = cluster.ray_options(ray, ray_cpus, ray_resource, ray_attempts, concurrency=concurrency)
    if where is not None and dashboard:
        raise ConfigError(
            "--dashboard does not go with --ray.", fix="Look at the run folder: drivetrain dashboard RUN."
        )
    shown = dashboard_port if dashboard else None
    if resume is not None:
        _resume(context, resume, shown, where, format=format, allow_benchmarks=allow_benchmarks, as_json=json_output)
        return
    if bool(task) == all_tasks:
        raise ConfigError("name tasks with --task, or take every one with --all-tasks (not both).")
    filters = make_filters(split, languages=language, repos=repo, difficulties=difficulty, max_lines=max_lines)
    choice = TaskChoice(
        source=source,
        format=format,
        ids=tuple(task),
        filters=filters,
        quarantine=quarantine,
        purpose="train",
        allow_benchmarks=allow_benchmarks,
    )
    tasks = choice.load(include_quarantined=include_quarantined)
    if not tasks:
        raise ConfigError("No task is left after the filters.")
    config = RolloutConfig(
        tasks=tuple(chosen.instance_id for chosen in tasks),
        agents=tuple(agent),
        n=n,
        model=model,
        sandbox=sandbox,
        image=image,
        concurrency=concurrency,
        temperature=temperature,
        max_turns=max_turns,
        max_tokens=max_tokens,
        deadline_s=deadline,
        variant=variant,
        reasoning=reasoning.value,
        engine=engines.engine_spec(engine, engine_url, engine_api_key_env, engine_model, no_probe, engine_boot_timeout),
        dtype=cast("Dtype", dtype),
        threads=threads,
        seed=seed,
        source=source,
        train_labels=cast("tuple[Label, ...]", tuple(train_label)),
        max_masked_fraction=max_masked_fraction,
    )
    run = RunDir.create(out_dir)
    results, guard = asyncio.run(_run(config, tasks, run, episodes_of(config), shown, where))
    _tell_results(results, run, guard, json_output)


_WITH_RESUME = {
    "resume",
    "format",
    "allow_benchmarks",
    "ray",
    "ray_cpus",
    "ray_resource",
    "ray_attempts",
    "dashboard",
    "dashboard_port",
    "json_output",
}


def _resume(
    context: typer.Context,
    path: Path,
    dashboard: int | None,
    where: RayOptions | None,
    *,
    format: str | None,
    allow_benchmarks: bool,
    as_json: bool,
) -> None:
    """Run what is missing.

    Raises:
        ConfigError: another setting was typed beside --resume, or the run cannot be gone on with.
    """
    for parameter in context.command.params:
        found = context.get_parameter_source(parameter.name or "")
        if found is not None and found.name == "COMMANDLINE" and parameter.name not in _WITH_RESUME:
            raise ConfigError(
                f"{parameter.opts[0]} does not go with --resume: a run is gone on with under its own settings.",
                fix="Leave it out, or start another run.",
            )
    run = ResumedRun(path)
    config, missing = run.config, run.missing()
    tell(f"{len(run.finished)} of {len(run.finished) + len(missing)} rollouts are there already")
    guard = MaskGuard(config.max_masked_fraction)
    if missing:
        wanted = TaskChoice(
            source=config.source, format=format, ids=config.tasks, purpose="train", allow_benchmarks=allow_benchmarks
        )
        _, guard = asyncio.run(_run(config, wanted.load(), run, missing, dashboard, where))
    order = {spec.rollout_id: number for number, spec in enumerate(episodes_of(config))}
    results = sorted(run.results(), key=lambda result: order.get(result.rollout_id, len(order)))
    _tell_results(results, run, guard, as_json)


def _tell_results(results: Sequence[RolloutResult], run: RunDir, guard: MaskGuard, as_json: bool) -> None:
    """Print the results, and exit with 1 when one has no reward.

    Raises:
        MaskedFractionExceeded: too many sampled tokens were lost to faults.
    """
    if as_json:
        print_json({"run": str(run.path), "results": [_brief(result) for result in results]})
    else:
        out.print(results_table(results))
        for result in results:
            if result.error:
                out.print(f"{result.rollout_id}: {result.error}", markup=False, highlight=False)
            for finding in result.log_findings:
                out.print(f"{result.rollout_id}: {finding}", markup=False, highlight=False)
        out.print(f"run: {run.path}", markup=False, highlight=False, soft_wrap=True)
    guard.check(final=True)
    if any(result.reward is None for result in results):
        raise typer.Exit(1)


async def _run(
    config: RolloutConfig,
    tasks: Sequence[SweTask],
    run: RunDir,
    specs: Sequence[EpisodeSpec],
    dashboard: int | None,
    where: RayOptions | None,
) -> tuple[list[RolloutResult], MaskGuard]:
    """Run the rollouts here, or on the cluster ``where`` names."""
    if where is not None:
        with _progress(len(specs)) as (started, finished), _kept(run):
            return await cluster.run_on_ray(config, tasks, run, specs, where, on_start=started, on_done=finished)
    async with open_stack(config, run, tell, tasks=tasks) as runner:
        await seal_unfinished(runner.gateway)
        async with beside_run(run, specs, runner, dashboard) as show:
            results = await _run_all(config, run, specs, runner, show)
    return results, runner.guard


async def _run_all(
    config: RolloutConfig,
    run: RunDir,
    specs: Sequence[EpisodeSpec],
    runner: EpisodeRunner,
    show: Callable[[RolloutResult], None],
) -> list[RolloutResult]:
    with _progress(len(specs)) as (started, finished), _kept(run):

        def ended(result: RolloutResult) -> None:
            show(result)
            finished(result)

        return await run_rollouts(runner, specs, concurrency=config.concurrency, on_start=started, on_done=ended)


@contextmanager
def _kept(run: RunDir) -> Iterator[None]:
    """Say, when the run ends early, what is left of it."""
    try:
        yield
    except MaskedFractionExceeded:
        tell(f"stopped; what finished is in {run.path}")
        raise
    except BaseException:
        if run.path.is_dir():
            tell(f"what finished is in {run.path}; go on with: drivetrain rollout --resume {run.path}")
        raise


@contextmanager
def _progress(total: int) -> Iterator[tuple[Callable[[EpisodeSpec], None], Callable[[RolloutResult], None]]]:
    """A progress bar on a terminal, one line per rollout elsewhere."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, disable=not err.is_terminal) as bar:
        job = bar.add_task("rollouts", total=total)
        running: list[str] = []

        def started(spec: EpisodeSpec) -> None:
            if spec.rollout_id not in running:  # on a cluster a rollout may start twice
                running.append(spec.rollout_id)
            bar.update(job, description=", ".join(running[:3]))

        def finished(result: RolloutResult) -> None:
            running.remove(result.rollout_id)
            bar.update(job, advance=1, description=", ".join(running[:3]) or "rollouts")
            seconds = result.timings.get("total", 0.0)
            tell(f"{result.rollout_id}: {result.status}, reward {result.reward}, {result.turns} turns, {seconds:.1f} s")

        yield started, finished


def results_table(results: Sequence[RolloutResult]) -> Table:
    """One line per rollout: turns, rows, trained tokens, fork reasons, status, reward."""
    table = Table("task", "agent", "#", "turns", "rows", "trained tokens", "forks", "status", "reward", "why")
    for result in results:
        forks = ", ".join(f"{reason} x{count}" for reason, count in sorted(result.fork_reasons.items()))
        table.add_row(
            result.task_id,
            result.agent,
            str(result.group),
            str(result.turns),
            str(len(result.rows)),
            str(trained_tokens(result)),
            forks or "-",
            result.status,
            "none" if result.reward is None else f"{result.reward:g}",
            _short(result.error) or str(result.grade.get("reason", "")),
        )
    return table


def _short(text: str, length: int = 60) -> str:
    line = text.split("\n", 1)[0]
    return line if len(line) <= length else line[: length - 1] + "…"


def trained_tokens(result: RolloutResult) -> int:
    """Sampled tokens under the mask, over all rows."""
    return sum(sum(row.loss_mask) for row in result.rows)


def _brief(result: RolloutResult) -> dict[str, object]:
    fields: dict[str, object] = msgspec.to_builtins(result)
    return {**fields, "rows": len(result.rows), "trained_tokens": trained_tokens(result)}
