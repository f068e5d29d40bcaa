"""A rollout's trace page, made when it is asked for. Blocking: not for the event loop."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.gateway.sessions import session_tag
from drivetrain.journal.reader import JournalReader
from drivetrain.rollout.run_dir import RunDir
from drivetrain.tokens.tokenizer import Tokenizer
from drivetrain.trace.labels import infer_labels
from drivetrain.trace.sample import TRAINED_LABELS, rows_of
from drivetrain.trace.validate import check_graph, check_rows
from drivetrain.viewer.build import trace_document
from drivetrain.viewer.find import rollout_names
from drivetrain.viewer.load import load_document
from drivetrain.viewer.page import render_page


class Traces(Protocol):
    """Makes pages."""

    def page(self, rollout_id: str) -> bytes:
        """The page of a rollout by its exact id, UTF-8.

        Raises:
            ConfigError: there is no such rollout, or its record cannot be read.
        """


class RunTraces:
    """Of a run folder, also while it is being written.

    Args:
        run: the folder.
        tokenizer: spells tokens; None shows ids.
    """

    def __init__(self, run: RunDir, tokenizer: Tokenizer | None) -> None:
        self._run = run
        self._tokenizer = tokenizer

    def page(self, rollout_id: str) -> bytes:
        """See :class:`Traces`."""
        name = rollout_names(self._run).get(rollout_id)
        if name is None:
            raise ConfigError(f"there is no rollout {rollout_id!r} in this run.")
        return render_page(load_document(self._run, name, self._tokenizer))


class JournalTraces:
    """Of the sessions of a journal, where there is no run folder around it.

    Args:
        journal: the file, also while it is being written.
        tokenizer: spells tokens.
    """

    def __init__(self, journal: Path, tokenizer: Tokenizer | None) -> None:
        self._journal = journal
        self._tokenizer = tokenizer

    def page(self, rollout_id: str) -> bytes:
        """See :class:`Traces`; a rollout is a session here."""
        reader = JournalReader(self._journal)
        session = reader.session(rollout_id)
        if session is None:
            raise ConfigError(f"there is no session {rollout_id!r} in the journal.")
        graph = reader.graph(session.id, session_tag(session.id))
        rows = rows_of(graph, session_id=session.id)
        origin = reader.provenance(session.id)
        group = session.labels.get("group", "")
        document = trace_document(
            graph,
            rows,
            labels=infer_labels(graph),
            trained_labels=TRAINED_LABELS,
            speller=self._tokenizer,
            findings=[*check_graph(graph), *check_rows(graph, rows)],
            rollout_id=session.labels.get("rollout", session.id),
            session_id=session.id,
            task_id=session.labels.get("task", ""),
            agent=session.labels.get("agent", ""),
            group=int(group) if group.isdecimal() else None,
            provenance=msgspec.to_builtins(origin.records),
            config_sha256=origin.config_sha256,
        )
        return render_page(document)
