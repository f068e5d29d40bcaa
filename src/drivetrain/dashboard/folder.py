"""Rollouts of a run folder: one that is finished, or one that another process is writing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from drivetrain.dashboard.board import Board
from drivetrain.dashboard.live import with_fates, with_result
from drivetrain.dashboard.model import RolloutView, RunView, Summary
from drivetrain.gateway.sessions import session_tag
from drivetrain.journal.errors import JournalDamaged
from drivetrain.journal.reader import JournalReader, StoredSession
from drivetrain.journal.wal import is_being_written
from drivetrain.metrics.families import size_of
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.resume import counted_sessions
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.selection import Selection
from drivetrain.trace.graph import TraceGraph

_BUDGET_S = 0.3
"""Time of one update that may go into reading turns; the rest is read in the next."""


class FolderSource:
    """Reads what is new in a run folder, in a thread. Nothing is ever written there.

    Results come first; what only the turns say (prompts, masked tokens) follows, some rollouts at a time.
    """

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._views: dict[str, RolloutView] = {}
        self._known: list[RolloutResult] = []
        self._results = _Tail(run.path / "results.jsonl")
        self._sessions: dict[str, StoredSession] = {}
        self._unread: dict[str, str] = {}  # rollout -> session whose turns are still to be read
        self._damaged: dict[str, str] = {}
        self._selection = Selection.read(run)
        self._open_next = 0
        self._left = False  # sessions that are going on were not all read the last time
        self._journal_read: tuple[int, ...] = ()

    async def update(self, board: Board, summary: Summary) -> None:
        """See :class:`~drivetrain.dashboard.source.Source`."""
        live = await asyncio.to_thread(self._read)
        for view in self._views.values():
            board.put(view)
        board.describe(msgspec.structs.replace(board.run, live=live, engine=board.run.engine))
        states = [session.state for session in self._sessions.values()]
        summary.sessions = {state: states.count(state) for state in sorted(set(states))}
        if self._run.journal.is_file():
            summary.journal_bytes = size_of(self._run.journal)
        summary.finished = not live and not self._unread

    def close(self) -> None:
        """See :class:`~drivetrain.dashboard.source.Source`."""

    def _read(self) -> bool:
        """In a thread: take in what is new; whether somebody is still writing."""
        live = self._run.journal.is_file() and is_being_written(self._run.journal)
        for line, at in self._results.lines():
            result = msgspec.json.decode(line, type=RolloutResult)
            self._known.append(result)
            known = self._views.get(result.rollout_id, RolloutView(id=result.rollout_id))
            self._views[result.rollout_id] = with_result(known, result, ended=at)
            if result.session_id:
                self._unread[result.rollout_id] = result.session_id
        state = _state_of(self._run.journal)
        if state and (state != self._journal_read or self._unread or self._left):
            self._read_journal()
            self._journal_read = state
        return live

    def _read_journal(self) -> None:
        reader = JournalReader(self._run.journal)
        counted = counted_sessions(reader.sessions(), self._known)
        self._sessions = {session.id: session for session in counted}
        done = {view.session for view in self._views.values() if view.phase == "done"}
        going = [session for session in self._sessions.values() if session.id not in done]
        until = time.monotonic() + _BUDGET_S
        self._left = False
        for number in range(len(going)):
            self._going(reader, going[(self._open_next + number) % len(going)])
            if time.monotonic() > until:
                self._open_next += number + 1
                self._left = number + 1 < len(going)
                break
        for rollout_id, session_id in list(self._unread.items()):
            if time.monotonic() > until:
                break
            del self._unread[rollout_id]
            session = self._sessions.get(session_id)
            if session is not None:
                self._views[rollout_id] = self._with_turns(reader, self._views[rollout_id], session)

    def _going(self, reader: JournalReader, session: StoredSession) -> None:
        """A session without a result."""
        name = session.labels.get("rollout", session.id)
        view = self._views.get(name)
        if view is not None and (view.phase == "done" or view.session not in ("", session.id)):
            name, view = session.id, self._views.get(session.id)  # labels are the caller's: it goes by its own id
        labels = session.labels
        group = labels.get("group", "")
        view = view or RolloutView(
            id=name,
            session=session.id,
            task=labels.get("task", ""),
            agent=labels.get("agent", ""),
            group=int(group) if group.isdecimal() else None,
            started=session.created_at,
        )
        view = self._with_turns(reader, view, session)
        view.phase = "grading" if session.state == "sealed" else "agent" if view.turns else "starting"
        self._views[name] = view

    def _with_turns(self, reader: JournalReader, view: RolloutView, session: StoredSession) -> RolloutView:
        if session.id in self._damaged:
            return view
        try:
            graph = reader.graph(session.id, session_tag(session.id))
        except JournalDamaged as error:
            self._damaged[session.id] = str(error)
            return msgspec.structs.replace(view, error=view.error or str(error))
        return self._told(view, session, graph)

    def _told(self, view: RolloutView, session: StoredSession, graph: TraceGraph) -> RolloutView:
        turns = list(graph)
        forks: dict[str, int] = {}
        for turn in turns:
            if turn.fork_reason:
                forks[turn.fork_reason] = forks.get(turn.fork_reason, 0) + 1
        changed = msgspec.structs.replace(
            view,
            turns=len(turns),
            prompt=sum(turn.prompt_len for turn in turns),
            sampled=sum(len(turn.sampled_ids) for turn in turns),
            forks=forks,
            policy=turns[-1].policy_version_end if turns else None,
            started=session.created_at,
        )
        if view.phase == "done":
            changed = with_fates(changed, self._selection.sampled(graph, view.agent))
            changed.ended = session.created_at + view.ended - view.started
        return changed


class _Tail:
    """Whole lines of a file that grows, each once, with the time at which the file was last written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def lines(self) -> Iterator[tuple[bytes, float]]:
        """Those that are new."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            written = self._path.stat().st_mtime
            for line in file:
                if not line.endswith(b"\n"):
                    return  # still being written
                self._at += len(line)
                yield line, written


def _state_of(journal: Path) -> tuple[int, ...]:
    """What differs once something was written to a journal; empty where there is none."""
    files = (journal, journal.with_name(journal.name + "-wal"))
    found = [path.stat() for path in files if path.is_file()]
    return tuple(number for each in found for number in (each.st_size, each.st_mtime_ns))


def describe_run(run: RunDir) -> RunView:
    """What ``run.json`` says of a run."""
    info = run.info()
    config: dict[str, Any] = info.get("config") or {}
    tasks, agents = config.get("tasks") or [], config.get("agents") or []
    return RunView(
        name=run.path.resolve().name,
        kind="folder",
        live=False,
        path=str(run.path),
        model=str((info.get("model") or {}).get("name") or ""),
        engine=str(info.get("engine") or ""),
        planned=len(tasks) * len(agents) * int(config.get("n") or 1),
        config=shown_config(config),
    )


def shown_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a configuration that the page shows."""
    names = ("agents", "n", "sandbox", "concurrency", "temperature", "max_turns", "max_tokens", "deadline_s", "seed")
    return {name: config[name] for name in names if config.get(name) is not None}
