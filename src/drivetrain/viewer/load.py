"""From a run folder to the document of one rollout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.gateway.sessions import session_tag
from drivetrain.journal.errors import JournalDamaged
from drivetrain.journal.reader import JournalReader, StoredEvent, StoredSession
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.selection import Selection
from drivetrain.tokens.tokenizer import Tokenizer
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.provenance import CONFIG_EVENT, PROVENANCE_EVENT
from drivetrain.trace.validate import check_graph
from drivetrain.viewer.build import trace_document
from drivetrain.viewer.document import ViewDocument, ViewFinding, ViewGrade, turn_in

PATCH, TEST_LOG, VERDICTS = "work.patch", "tests.log", "verdicts.json"
_FILES = (PATCH, TEST_LOG, "stdout.log", "stderr.log")
_MOST_BYTES = 2_000_000
"""Of one file; the end of a log is what tells."""


def load_document(run: RunDir, rollout_id: str, tokenizer: Tokenizer | None) -> ViewDocument:
    """Read one rollout of a run, also while it is still going on.

    Args:
        run: the run folder.
        rollout_id: its exact id (:func:`drivetrain.viewer.find.find_rollouts`).
        tokenizer: spells tokens; None shows ids.

    Raises:
        ConfigError: the rollout made model calls and its journal is gone, damaged or of another version, or the
            rollout is not there.
    """
    result = next((each for each in run.results() if each.rollout_id == rollout_id), None)
    session = _session(run, rollout_id, result)
    if session is None and result is None:
        raise ConfigError(f"there is no rollout {rollout_id!r} in {run.path}.")
    if session is None:
        assert result is not None
        return _without_session(run, result)
    reader = JournalReader(run.journal)
    try:
        graph = reader.graph(session.id, session_tag(session.id))
    except JournalDamaged as error:
        raise ConfigError(
            error.what,
            fix="The journal is damaged; `drivetrain trace check` says which rollouts are whole.",
        ) from error
    return _with_session(run, reader, session, graph, rollout_id, result, tokenizer)


def _session(run: RunDir, rollout_id: str, result: RolloutResult | None) -> StoredSession | None:
    if result is not None and not result.session_id:
        return None
    if not run.journal.is_file():
        raise ConfigError(
            f"{run.path} has no journal.sqlite, so the turns of {rollout_id} are not there.",
            fix="Copy the whole run folder, journal.sqlite and journal.sqlite-wal included.",
        )
    sessions = JournalReader(run.journal).sessions()
    if result is not None:
        found = [session for session in sessions if session.id == result.session_id]
        if not found:
            raise ConfigError(
                f"session {result.session_id} of {rollout_id} is not in {run.journal}.", fix="Is it another run's?"
            )
        return found[0]
    labelled = [session for session in sessions if session.labels.get("rollout") == rollout_id]
    return next((session for session in sessions if session.id == rollout_id), labelled[0] if labelled else None)


def _with_session(
    run: RunDir,
    reader: JournalReader,
    session: StoredSession,
    graph: TraceGraph,
    rollout_id: str,
    result: RolloutResult | None,
    tokenizer: Tokenizer | None,
) -> ViewDocument:
    selection = Selection.read(run)
    agent = session.labels.get("agent", "")
    rows = selection.rows(graph, agent, reward=None, session_id=session.id) if result is None else result.rows
    origin = reader.provenance(session.id)
    events = reader.events(session.id)
    about = _about(run, rollout_id, result)
    about["more_findings"] += [_event(event) for event in events if event.kind not in (PROVENANCE_EVENT, CONFIG_EVENT)]
    about.setdefault("task_id", session.labels.get("task", ""))
    about.setdefault("agent", agent)
    group = session.labels.get("group", "")
    about.setdefault("group", int(group) if group.isdecimal() else None)
    return trace_document(
        graph,
        rows,
        labels=selection.labels(graph, agent),
        trained_labels=frozenset(selection.train_labels),
        speller=tokenizer,
        findings=[
            *check_graph(graph, vocab_size=tokenizer.vocab_size if tokenizer else None),
            *selection.check(graph, agent, rows),
        ],
        session_id=session.id,
        provenance=msgspec.to_builtins(origin.records),
        config_sha256=origin.config_sha256,
        **about,
    )


def _without_session(run: RunDir, result: RolloutResult) -> ViewDocument:
    """A rollout without a model call: a reference agent, or one that failed before the first."""
    about = _about(run, result.rollout_id, result)
    return ViewDocument(findings=about.pop("more_findings"), **about)


def _about(run: RunDir, rollout_id: str, result: RolloutResult | None) -> dict[str, Any]:
    folder = run.path / "rollouts" / rollout_id
    inside = (
        bool(rollout_id.strip(".")) and Path(rollout_id).name == rollout_id
    )  # a label may be any text; only a name has a folder of its own
    about: dict[str, Any] = {
        "rollout_id": rollout_id,
        "run": run.info(),
        "files": {name: text for name in _FILES if inside and (text := _text(folder / name)) is not None},
        "more_findings": [],
    }
    if result is None:
        return about
    about |= {
        name: getattr(result, name)
        for name in ("task_id", "agent", "group", "status", "reward", "error", "timings", "harness")
    }
    about["grade"] = ViewGrade(
        summary={name: value for name, value in result.grade.items() if name != "findings"},
        tests=_verdicts(folder / VERDICTS),
    )
    about["more_findings"] = _reported(result)
    return about


def _reported(result: RolloutResult) -> list[ViewFinding]:
    """What the comparison with the agent's log and the grading found."""
    log = [
        ViewFinding(source="log", code=f.code, where=f.where, detail=f.detail, turn=turn_in(f.where))
        for f in result.log_findings
    ]
    graded = [
        ViewFinding(source="grading", code=f.get("kind", ""), where=f.get("path", ""), detail=f.get("detail", ""))
        for f in result.grade.get("findings", ())
    ]
    return [*log, *graded]


def _event(event: StoredEvent) -> ViewFinding:
    detail = ", ".join(f"{name} {value}" for name, value in event.detail.items())
    turn = event.detail.get("turn")
    return ViewFinding(
        source="journal",
        code=event.kind,
        detail=detail,
        turn=turn if isinstance(turn, int) else None,
        at=event.at,
    )


def _verdicts(path: Path) -> dict[str, list[tuple[str, str]]]:
    """What each expected test did, in the order of the task.

    Raises:
        ConfigError: the file is not what :mod:`drivetrain.rollout.episode` writes.
    """
    if not path.is_file():
        return {}
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, str]])
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is not readable: {error}.", fix="Move it away; the page can do without.") from error
    return {kind: list(tests.items()) for kind, tests in found.items()}


def _text(path: Path) -> str | None:
    """A file's text; bytes that are no UTF-8 as ``\\xff``, and of a very long file its end."""
    if not path.is_file():
        return None
    data = path.read_bytes()
    cut = max(len(data) - _MOST_BYTES, 0)
    text = data[cut:].decode("utf-8", "backslashreplace")
    return f"[{cut} bytes before this are in {path.name}]\n{text}" if cut else text
