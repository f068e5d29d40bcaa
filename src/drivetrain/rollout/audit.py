"""Check a run: derive every row again from the journal and compare."""

from __future__ import annotations

import msgspec
import numpy as np

from drivetrain.gateway.sessions import session_tag
from drivetrain.journal.errors import JournalDamaged
from drivetrain.journal.reader import JournalReader
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.selection import Selection
from drivetrain.trace.sample import HarnessTrace
from drivetrain.trace.validate import check_graph


class Audit(msgspec.Struct, kw_only=True):
    """What a check of one rollout found. ``problems`` is empty when everything holds."""

    rollout_id: str
    turns: int
    rows: int
    trained_tokens: int
    problems: list[str]


def audit_run(run: RunDir, *, vocab_size: int | None = None) -> list[Audit]:
    """Check every recorded rollout of a run against its journal.

    For each: the prompts that were sent equal stored ids + stored sampled ids + delta (by digest), the stored rows
    equal those derived again with the run's own selection of labels, lengths agree, and each trainable token is
    trained exactly once.

    Raises:
        ConfigError: the run has no readable journal although it made model calls.
        JournalDamaged: the list of its sessions is damaged; a damaged session is a problem of its rollout.
    """
    results = run.results()
    if not any(result.session_id for result in results):
        return [
            Audit(rollout_id=result.rollout_id, turns=0, rows=0, trained_tokens=0, problems=_without_session(result))
            for result in results
        ]
    reader = JournalReader(run.journal)
    known = {session.id for session in reader.sessions()}
    selection = Selection.read(run)
    return [_audit(reader, known, result, selection, vocab_size) for result in results]


def _without_session(result: RolloutResult) -> list[str]:
    return ["rows without a session"] if result.rows else []


def _audit(
    reader: JournalReader, known: set[str], result: RolloutResult, selection: Selection, vocab_size: int | None
) -> Audit:
    if not result.session_id:
        problems = _without_session(result)
        return Audit(rollout_id=result.rollout_id, turns=0, rows=0, trained_tokens=0, problems=problems)
    problems = [] if result.session_id in known else [f"session {result.session_id} is not in the journal"]
    try:
        graph = reader.graph(result.session_id, session_tag(result.session_id))
    except JournalDamaged as error:
        problems.append(str(error))
        return Audit(rollout_id=result.rollout_id, turns=0, rows=0, trained_tokens=0, problems=problems)
    problems += [str(finding) for finding in check_graph(graph, vocab_size=vocab_size)]
    problems += [str(finding) for finding in selection.check(graph, result.agent, result.rows)]
    derived = selection.rows(graph, result.agent, reward=result.reward, session_id=result.session_id)
    if len(derived) != len(result.rows):
        problems.append(f"{len(result.rows)} rows stored, {len(derived)} derived from the journal")
    problems += [
        f"row {index} differs from the one derived from the journal"
        for index, (stored, again) in enumerate(zip(result.rows, derived, strict=False))
        if not _same(stored, again)
    ]
    if len(graph) != result.turns:
        problems.append(f"{result.turns} turns reported, {len(graph)} in the journal")
    trained = sum(sum(row.loss_mask) for row in result.rows)
    return Audit(
        rollout_id=result.rollout_id,
        turns=len(graph),
        rows=len(result.rows),
        trained_tokens=trained,
        problems=problems,
    )


def _same(left: HarnessTrace, right: HarnessTrace) -> bool:
    """Equal ids, masks and rewards, and log-probs equal to the bit of a float32."""
    if (left.prompt_ids, left.response_ids, left.loss_mask) != (right.prompt_ids, right.response_ids, right.loss_mask):
        return False
    logprobs = [np.asarray(row.response_logprobs, dtype=np.float32) for row in (left, right)]
    return left.reward == right.reward and bool(np.array_equal(logprobs[0], logprobs[1]))
