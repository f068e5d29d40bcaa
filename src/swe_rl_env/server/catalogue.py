"""Which tasks a server has, and which one an episode is about."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any

import msgspec

from drivetrain.errors import ConfigError
from swe_rl_env.server.errors import EpisodeError, explained, plain
from swe_rl_env.server.settings import Settings
from swe_rl_env.tasks.catalog import find_task, without_quarantined
from swe_rl_env.tasks.loading import load_source, parse_source
from swe_rl_env.tasks.model import SweTask
from swe_rl_env.tasks.select import SPLITS, split_of

ALL = "all"
"""The split that holds every task."""


class ResetOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which task an episode is about, by the first of these that is given: an id (``task``, or ``instance_id``, or
    ``task_id``), a position (``index``) in a ``split``, a choice made by ``seed``, any."""

    task: str | None = None
    instance_id: str | None = None
    task_id: str | None = None
    split: str | None = None
    index: Annotated[int, msgspec.Meta(ge=0)] | None = None
    seed: int | None = None
    episode_id: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None

    @classmethod
    def of(cls, **given: Any) -> ResetOptions:
        """Checked.

        Raises:
            EpisodeError: an option that is none, or with a value that cannot be one.
        """
        given = {name: value for name, value in given.items() if value is not None}
        try:
            if any(isinstance(value, str) and value != plain(value) for value in given.values()):
                raise TypeError("text that is no Unicode")
            return msgspec.convert(given, cls)
        except (msgspec.ValidationError, TypeError) as error:
            known = ", ".join(cls.__struct_fields__)
            raise EpisodeError(
                "bad_request", f"reset takes something else: {error}.", fix=f"It takes {known}."
            ) from error

    @property
    def id(self) -> str | None:
        """The one task id among the three names for it.

        Raises:
            EpisodeError: they differ.
        """
        names = {name for name in (self.task, self.instance_id, self.task_id) if name is not None}
        if len(names) > 1:
            raise EpisodeError("bad_request", f"reset names several tasks: {', '.join(sorted(names))}.")
        return next(iter(names), None)


class Catalogue:
    """The tasks of a server.

    Args:
        settings: name the source.
        tasks: instead of it.
    """

    def __init__(self, settings: Settings, tasks: Sequence[SweTask] | None = None) -> None:
        self._settings = settings
        self._given = tuple(tasks) if tasks is not None else None

    @cached_property
    def tasks(self) -> tuple[SweTask, ...]:
        """What is served, in the order of the source. The first look reads it (blocking).

        Raises:
            EpisodeError: the source cannot be read, or an id in the settings is not in it.
        """
        with explained("The tasks cannot be read"):
            found = self._given
            if found is None:
                found = load_source(parse_source(self._settings.source)).tasks
            if self._settings.tasks:
                return tuple(find_task(name, found) for name in dict.fromkeys(self._settings.tasks))
            return tuple(without_quarantined(found)[0])

    def splits(self) -> list[str]:
        """:data:`ALL`, and those of train, validation and test that have a task."""
        there = {split_of(task) for task in self.tasks}
        return [ALL, *(name for name, _ in SPLITS if name in there)]

    def split(self, name: str) -> list[SweTask]:
        """The tasks of a split.

        Raises:
            EpisodeError: there is no such split.
        """
        if name not in self.splits():
            raise EpisodeError(
                "bad_request", f"There is no split {name!r}.", fix=f"There are {', '.join(self.splits())}."
            )
        return [task for task in self.tasks if name == ALL or split_of(task) == name]

    def choose(self, options: ResetOptions) -> SweTask:
        """The task that the options mean (blocking on the first look at the tasks).

        Raises:
            EpisodeError: an unknown id, an index past the end of its split, or no tasks at all.
        """
        if options.id is not None:
            try:
                return find_task(options.id, self.tasks)
            except ConfigError as error:
                raise EpisodeError("unknown_task", error.what, fix=error.fix) from error
        among = self.split(options.split or ALL)
        if options.index is not None:
            if options.index >= len(among):
                raise EpisodeError("unknown_task", f"There is no task {options.index} among {len(among)}.")
            return among[options.index]
        if not among:
            raise EpisodeError("misconfigured", "The source holds no task.")
        return random.Random(options.seed).choice(among)
