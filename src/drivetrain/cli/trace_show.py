"""``drivetrain trace show --json``: the turns of a rollout as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drivetrain.cli.runs import run_tokenizer
from drivetrain.journal.reader import StoredEvent, StoredSession
from drivetrain.rollout.run_dir import RunDir
from drivetrain.trace.labels import LabelInfo
from drivetrain.trace.turn import Turn


def shown(
    run: RunDir,
    session: StoredSession,
    turns: Sequence[Turn],
    labels: Mapping[int, LabelInfo],
    events: Sequence[StoredEvent],
    *,
    text: bool,
) -> dict[str, Any]:
    """One document: the session, its turns in order, its events.

    Lengths are in tokens, times in seconds. ``text`` adds to each turn what it was told and what it said.
    """
    tokenizer = run_tokenizer(run) if text else None
    found = []
    for turn in turns:
        line = _turn(turn, labels[turn.id])
        if text:
            said = tokenizer.decode(turn.sampled_ids.tolist()) if tokenizer else turn.reply.content
            messages = [{"role": message.role, "content": message.content} for message in turn.messages]
            line |= {"messages": messages, "said": said}
        found.append(line)
    return {
        "rollout": session.labels.get("rollout", ""),
        "session": session.id,
        "state": session.state,
        "turns": found,
        "events": [{"kind": event.kind, "detail": event.detail, "at": event.at} for event in events],
    }


def _turn(turn: Turn, label: LabelInfo) -> dict[str, Any]:
    return {
        "turn": turn.id,
        "parent": turn.parent,
        "link": turn.link,
        "prompt_tokens": turn.prompt_len,
        "new_tokens": len(turn.delta_ids),
        "sampled_tokens": len(turn.sampled_ids),
        "finish_reason": turn.finish_reason,
        "label": label.label,
        "label_reason": label.reason,
        "fork_reason": turn.fork_reason,
        "fork_detail": turn.fork_detail,
        "policy_version_start": turn.policy_version_start,
        "policy_version_end": turn.policy_version_end,
        "seconds": turn.completed_at - turn.started_at,
        "notes": list(turn.notes),
        "delivered": turn.delivered,
    }
