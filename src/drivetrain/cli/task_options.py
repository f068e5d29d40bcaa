"""Options of every command that takes a set of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import typer

from drivetrain.cli.console import tell
from drivetrain.errors import ConfigError
from swe_rl_env.tasks.adapters import FORMATS
from swe_rl_env.tasks.catalog import find_task, without_quarantined
from swe_rl_env.tasks.loading import Loaded, Purpose, load_source, parse_source
from swe_rl_env.tasks.model import SweTask
from swe_rl_env.tasks.select import SPLITS, Filters, read_pass_rates, select

SOURCE = typer.Option(
    None,
    "--source",
    help="Where tasks come from: a .jsonl or .parquet file, a folder of them, or hub:owner/name[@revision][#split]. "
    "Default: the tasks of this package.",
)
FORMAT = typer.Option(None, "--format", help=f"Format of the rows, when the columns do not tell: {', '.join(FORMATS)}.")
LANGUAGE = typer.Option([], "--language", "-l", help="Only this language (python, js, go, ...); may be repeated.")
REPO = typer.Option([], "--repo", help="Only this repository; may be repeated.")
DIFFICULTY = typer.Option([], "--difficulty", help="Only this difficulty; may be repeated.")
MIN_LINES = typer.Option(None, "--min-lines", help="Smallest size of the reference fix, in changed lines.")
MAX_LINES = typer.Option(None, "--max-lines", help="Largest size of the reference fix, in changed lines.")
RATES = typer.Option(None, "--rates", help="Report of `tasks validate` or `eval` that --min/--max-pass-rate read.")
MIN_RATE = typer.Option(None, "--min-pass-rate", help="Lowest pass rate, 0 to 1.")
MAX_RATE = typer.Option(None, "--max-pass-rate", help="Highest pass rate, 0 to 1.")
TEXT = typer.Option("", "--text", help="Only tasks with this text in id, repository or statement.")
SPLIT = typer.Option(None, "--split", help="Only this split: train, validation or test. A repository is in one only.")
QUARANTINED = typer.Option(False, "--include-quarantined", help="Keep tasks that `tasks validate` found unfit here.")
QUARANTINE = typer.Option(
    None, "--quarantine", help="Quarantine file; default $DRIVETRAIN_QUARANTINE, else in the cache folder."
)
ALLOW_BENCHMARKS = typer.Option(
    False, "--allow-benchmarks", help="Take tasks of a public benchmark; no later result on it means anything then."
)
JSON = typer.Option(False, "--json", help="Print as JSON.")


class TaskChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A source, filters and names, as given on the command line.

    ``purpose`` is what the tasks are for: tasks of public benchmarks are refused as training data, unless
    ``allow_benchmarks``.
    """

    source: str | None = None
    format: str | None = None
    ids: tuple[str, ...] = ()
    filters: Filters = Filters()
    rates: Path | None = None
    quarantine: Path | None = None
    purpose: Purpose = "evaluate"
    allow_benchmarks: bool = False

    def read(self) -> Loaded:
        """Every row of the source.

        Raises:
            ConfigError, MissingDependency, InfrastructureError: see :func:`~swe_rl_env.tasks.loading.load_source`.
        """
        if self.format is not None and self.format not in FORMATS:
            raise ConfigError(f"There is no task format {self.format!r}.", fix=f"Known: {', '.join(FORMATS)}.")
        source = parse_source(self.source)
        return load_source(source, purpose=self.purpose, force=self.allow_benchmarks, fmt=self.format)

    def load(self, *, include_quarantined: bool = False) -> list[SweTask]:
        """The chosen tasks. Says on stderr how many rows are no tasks and how many tasks are in quarantine.

        A task named by its id is taken even from quarantine.
        """
        loaded = self.read()
        if loaded.rejected:
            first = loaded.rejected[0]
            tell(f"{len(loaded.rejected)} rows are no tasks; {first.where}: {first.reason} (see `tasks ls --rejected`)")
        tasks: Sequence[SweTask] = loaded.tasks
        if self.ids:
            return [find_task(name, tasks) for name in dict.fromkeys(self.ids)]
        if not include_quarantined:
            tasks, held = without_quarantined(tasks, self.quarantine)
            if held:
                tell(f"{len(held)} tasks are in quarantine, e.g. {next(iter(held))} (--include-quarantined keeps them)")
        rates = read_pass_rates(self.rates) if self.rates is not None else None
        return select(tasks, self.filters, rates)


def make_filters(split: str | None, **values: Any) -> Filters:
    """Filters from options; lists become tuples.

    Raises:
        ConfigError: no such split.
    """
    names = [name for name, _ in SPLITS]
    if split is not None and split not in names:
        raise ConfigError(f"There is no split {split!r}.", fix=f"Choose one of: {', '.join(names)}.")
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return msgspec.convert({"split": split, **fields}, Filters)
