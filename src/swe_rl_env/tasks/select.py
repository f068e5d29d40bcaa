"""Choose tasks: filters, deterministic splits, and counts of what is there."""

from __future__ import annotations

import difflib
import hashlib
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from drivetrain.errors import ConfigError
from swe_rl_env.tasks.model import SweTask

Split = Literal["train", "validation", "test"]
SPLITS: tuple[tuple[Split, float], ...] = (("train", 0.8), ("validation", 0.1), ("test", 0.1))
"""Shares of the repositories, in the order in which hashes are dealt out."""


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """All that are set must hold. Several values of one filter are alternatives.

    ``repos`` are ``owner/name``, or ``name`` alone. Sizes are added plus removed lines of the reference fix. Pass rates
    (0 to 1) are read from the file of a validation or evaluation; a task it does not know has none, and is left out
    when a rate is asked for. ``text`` is looked for in id, repository and statement, whatever its case.
    """

    languages: tuple[str, ...] = ()
    repos: tuple[str, ...] = ()
    difficulties: tuple[str, ...] = ()
    min_lines: int | None = None
    max_lines: int | None = None
    min_pass_rate: float | None = None
    max_pass_rate: float | None = None
    text: str = ""
    split: Split | None = None

    @property
    def needs_rates(self) -> bool:
        """Whether a pass rate is asked for."""
        return self.min_pass_rate is not None or self.max_pass_rate is not None


def select(tasks: Sequence[SweTask], filters: Filters, rates: Mapping[str, float] | None = None) -> list[SweTask]:
    """The tasks that pass, in their order.

    Args:
        rates: pass rates by task id, see :func:`read_pass_rates`.

    Raises:
        ConfigError: a pass rate is asked for and none are known, or a language, repository or difficulty that no task
            has (a typing error would otherwise look like an empty set).
    """
    if filters.needs_rates and rates is None:
        raise ConfigError(
            "A pass rate needs the results it is read from.", fix="Name a report of `tasks validate` or `eval`."
        )
    _known("language", filters.languages, {t.public.language for t in tasks})
    _known("repository", filters.repos, {n for t in tasks for n in _names(t)})
    _known("difficulty", filters.difficulties, {t.difficulty for t in tasks if t.difficulty})
    return [task for task in tasks if _passes(task, filters, rates or {})]


def _names(task: SweTask) -> tuple[str, str]:
    repo = task.public.repo.lower()
    return repo, repo.rsplit("/", 1)[-1]


def _known(what: str, asked: Sequence[str], there: set[str]) -> None:
    for value in asked:
        if value.lower() not in {known.lower() for known in there}:
            close = difflib.get_close_matches(value.lower(), sorted(there), n=3)
            hint = f"Did you mean: {', '.join(close)}?" if close else f"There are: {', '.join(sorted(there)[:20])}."
            raise ConfigError(f"No task has the {what} {value!r}.", fix=hint)


def _passes(task: SweTask, f: Filters, rates: Mapping[str, float]) -> bool:
    lowered = [value.lower() for value in f.repos]
    if f.languages and task.public.language not in {value.lower() for value in f.languages}:
        return False
    if lowered and not set(lowered) & set(_names(task)):
        return False
    if f.difficulties and (task.difficulty or "").lower() not in {value.lower() for value in f.difficulties}:
        return False
    if not _between(task.patch_lines, f.min_lines, f.max_lines):
        return False
    if not _between(rates.get(task.instance_id), f.min_pass_rate, f.max_pass_rate):
        return False
    if f.split is not None and split_of(task) != f.split:
        return False
    haystack = f"{task.instance_id}\n{task.public.repo}\n{task.public.problem_statement}".lower()
    return f.text.lower() in haystack


def _between(value: float | None, low: float | None, high: float | None) -> bool:
    if low is None and high is None:
        return True
    return value is not None and (low is None or value >= low) and (high is None or value <= high)


def split_of(task: SweTask, *, shares: Sequence[tuple[Split, float]] = SPLITS, salt: str = "drivetrain") -> Split:
    """The split of a task: by a hash of its repository, so that no repository is in two splits.

    It depends on nothing else: adding tasks moves none. Tasks of one package from different sets stay together as far
    as their repository has the same name.
    """
    digest = hashlib.sha256(f"{salt}\0{task.public.repo.lower()}".encode()).digest()
    point = int.from_bytes(digest[:8]) / 2**64
    for name, share in shares:
        if point < share:
            return name
        point -= share
    return shares[-1][0]


def read_pass_rates(path: Path) -> dict[str, float]:
    """Pass rates by task id, from ``report.json`` of ``tasks validate`` or ``eval`` (or from the folder it lies in).

    Raises:
        ConfigError: no such file, or no pass rates in it.
    """
    file = path / "report.json" if path.is_dir() else path
    try:
        report: Any = msgspec.json.decode(file.read_bytes())
        rates = report["pass_rate"]
        return {str(name): float(rate) for name, rate in rates.items() if rate is not None}
    except (OSError, msgspec.DecodeError, KeyError, TypeError, AttributeError, ValueError) as e:
        raise ConfigError(
            f"{file} holds no pass rates ({type(e).__name__}: {e}).",
            fix="Name the report.json that `drivetrain tasks validate` or `drivetrain eval` wrote.",
        ) from e


def stats(tasks: Sequence[SweTask]) -> dict[str, Any]:
    """Counts, JSON-ready: by language, repository, difficulty, split, data set; sizes and numbers of tests."""

    def counted(values: Sequence[str]) -> dict[str, int]:
        return dict(sorted(Counter(values).items(), key=lambda item: (-item[1], item[0])))

    return {
        "tasks": len(tasks),
        "repositories": len({t.public.repo for t in tasks}),
        "language": counted([t.public.language for t in tasks]),
        "difficulty": counted([t.difficulty or "unknown" for t in tasks]),
        "split": counted([split_of(t) for t in tasks]),
        "dataset": counted([t.dataset for t in tasks]),
        "log_parser": counted([t.install.log_parser for t in tasks]),
        "repo": counted([t.public.repo for t in tasks]),
        "patch_lines": _spread([t.patch_lines for t in tasks if t.patch_lines is not None]),
        "fail_to_pass": _spread([len(t.private.fail_to_pass) for t in tasks]),
        "pass_to_pass": _spread([len(t.private.pass_to_pass) for t in tasks]),
    }


def _spread(values: Sequence[int]) -> dict[str, float]:
    if not values:
        return {}
    return {"min": min(values), "median": statistics.median(values), "max": max(values), "sum": sum(values)}
