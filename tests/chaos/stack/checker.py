"""What each client saw, compared with the journal and the rows. Nothing of drivetrain takes part in the judgment.

What is checked is what design section 3 promises: a delivered turn is committed, once, in order, as it was seen
(invariants 1, 5); what is trained was delivered, and once (3, 5); rows are the recorded tokens (4).
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import msgspec

from tests.chaos.stack.ledger import StoredSession, StoredTurn, digest, read_ledger
from tests.chaos.stack.witness import ClientCall, Witness, read_witness

_REPLY_ID = 24
"""Hex digits that end a reply's id on every wire."""


class Finding(msgspec.Struct, frozen=True):
    """``code`` says what is wrong:

    lost: a client saw a reply that the journal does not hold. duplicated: a delivered call is there twice. altered: the
    journal holds other words than the client saw. foreign: somebody else's. reordered, chain_broken: not in the order,
    or not the continuation, that the client saw. prompt_broken: stored ids do not give the recorded prompt.
    undelivered_trained, untrained, trained_twice. row_ids, mask_off, logprobs_off: a row is not what was recorded.
    over_budget. refused: a client was told for good that it may not. unreadable: the journal's reader cannot rebuild a
    session. relay_blind: the witness is no good. shutdown. leaked.
    """

    code: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.code}: {self.where}: {self.what}"


class Report(msgspec.Struct):
    """Findings, and counts for a summary."""

    findings: list[Finding]
    counts: Counter[str]

    def of(self, code: str) -> int:
        return sum(finding.code == code for finding in self.findings)


class _Case:
    """One run, read once."""

    def __init__(self, folder: Path) -> None:
        self.ledger = read_ledger(folder / "run" / "journal.sqlite")
        self.witness = read_witness(folder / "diaries", folder / "relayed.jsonl")
        self.rows = _lines(folder / "rows.jsonl")
        self.live = _lines(folder / "live.jsonl")
        self.disturbed = _disturbances(_lines(folder / "faults.jsonl"))
        self.report = Report([], Counter())
        self.by_mark: dict[str, list[StoredTurn]] = defaultdict(list)
        self.by_reply: dict[str, list[StoredTurn]] = defaultdict(list)
        for session in self.ledger.values():
            for turn in session.turns:
                self.by_mark[turn.mark].append(turn)
                self.by_reply[turn.reply["id"]].append(turn)
        self.trained: Counter[str] = Counter()
        """Turns by name: in how many rows they are trained."""

    def find(self, code: str, where: str, what: str) -> None:
        self.report.findings.append(Finding(code, where, what))


def check(folder: Path) -> Report:
    """Everything about the run in a folder. A journal or rows that cannot be read raise."""
    case = _Case(folder)
    for session in case.ledger.values():
        _check_session(case, session)
    for row in case.rows:
        _check_row(case, row)
    _check_live(case)
    for call in case.witness.calls.values():
        _check_call(case, call)
    for calls in case.witness.talks.values():
        _check_talk(case, calls)
    for mark in case.witness.again:
        case.find("duplicated", mark, "the client saw two replies to one call")
    _check_trained(case)
    _count(case)
    return case.report


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


_MARKS_LOST_BY = (
    "gateway_kill",
    "disk_full",
    "slow_disk",
    "relay_cut",
    "relay_swallow",
    "harness_crash",
    "sandbox_death",
)
"""Faults in which the gateway does not get to write down that a reply was sent, or has reason to think it was not: its
connection was reset."""


def _disturbances(faults: list[dict[str, Any]]) -> list[float]:
    """When each of these faults was over."""
    return [fault["t"] for fault in faults if fault["kind"] in _MARKS_LOST_BY and fault["what"] == "end"]


def _check_session(case: _Case, session: StoredSession) -> None:
    allowed = min(session.max_turns, case.witness.sessions.get(session.id, session.max_turns))
    if len(session.turns) > allowed:
        case.find("over_budget", session.id, f"{len(session.turns)} turns of {allowed}")
    if [turn.seq for turn in session.turns] != list(range(len(session.turns))):
        case.find("reordered", session.id, f"commits are numbered {[turn.seq for turn in session.turns]}")
    for turn in session.turns:
        if len(turn.sampled) != len(turn.logprobs) or not all(-math.inf < value <= 0 for value in turn.logprobs):
            case.find("logprobs_off", turn.name, "log-probs do not fit the sampled ids")
        try:
            prompt = session.prompt(turn)
        except KeyError as missing:
            case.find("prompt_broken", turn.name, f"turn {missing} is not there")
            continue
        if len(prompt) != turn.record["prompt_len"] or digest(prompt) != turn.record["prompt_sha256"]:
            case.find("prompt_broken", turn.name, "stored ids do not give the prompt that was sent")
        if turn.mark not in case.witness.calls:
            case.find("foreign", turn.name, f"nobody sent {turn.mark!r}")
        elif case.witness.calls[turn.mark].session != session.id:
            case.find("foreign", turn.name, f"{turn.mark} was sent in {case.witness.calls[turn.mark].session}")
    for reply, turns in case.by_reply.items():
        if len(turns) > 1 and turns[0].session == session.id:
            case.find("duplicated", turns[0].name, f"reply {reply} is there {len(turns)} times")


def _check_call(case: _Case, call: ClientCall) -> None:
    """What one client saw of one call."""
    if call.refused:
        case.find("refused", call.mark, call.refused)
    turns = case.by_mark.get(call.mark, [])
    delivered = [turn for turn in turns if turn.delivered]
    if len(delivered) > 1:
        case.find("duplicated", call.mark, f"{len(delivered)} delivered turns: {[turn.id for turn in delivered]}")
    case.report.counts["resampled"] += max(0, len(turns) - 1)
    if call.seen is None:
        return
    found = case.by_reply.get(call.seen["reply"][-_REPLY_ID:], [])
    if not found:
        case.find("lost", call.mark, f"reply {call.seen['reply']} was seen and is not in the journal")
        return
    turn = found[0]
    if turn not in turns:
        case.find("foreign", call.mark, f"the reply seen is that of {turn.mark!r} ({turn.name})")
    if not _says_the_same(turn.reply, call.seen):
        case.find("altered", turn.name, f"the client saw {call.seen['text']!r} {call.seen['calls']}")
    said = call.seen["text"] + json.dumps(call.seen["calls"])
    if call.session in case.witness.relayed and call.mark not in case.witness.passed:
        case.find("relay_blind", call.mark, "the relay did not notice a reply that its client saw")
    if call.mark not in said:
        case.find("foreign", call.mark, f"the policy answered somebody else: {said!r}")


def _says_the_same(reply: dict[str, Any], seen: dict[str, Any]) -> bool:
    calls = [(call["id"], call["name"], json.loads(call["arguments"])) for call in reply["tool_calls"]]
    saw = [(name, tool, json.loads(arguments)) for name, tool, arguments in seen["calls"]]
    return calls == saw and str(reply["content"]).strip() == str(seen["text"]).strip()


def _check_talk(case: _Case, calls: list[ClientCall]) -> None:
    """One conversation: each turn after the one before, and its continuation."""
    before: StoredTurn | None = None
    for call in calls:
        turns = case.by_reply.get(call.seen["reply"][-_REPLY_ID:], []) if call.seen else []
        if not turns:
            continue
        turn = turns[0]
        if before is not None and (turn.seq <= before.seq or turn.id <= before.id):
            case.find("reordered", turn.name, f"it was seen after turn {before.id}")
        if before is not None and turn.parent != before.id:
            case.find("chain_broken", turn.name, f"it continues turn {turn.parent}, the client continued {before.id}")
        if before is None and turn.parent is not None:
            case.find("chain_broken", turn.name, f"it continues turn {turn.parent}, the client continued nothing")
        before = turn


def _check_row(case: _Case, row: dict[str, Any]) -> None:
    """A row is the recorded ids of one chain; its mask covers whole samples; log-probs are those recorded."""
    metadata = row["metadata"]
    session = case.ledger.get(metadata["session_id"])
    where = f"{metadata['session_id']} row {metadata['chain']}"
    ids, mask, logprobs = row["response_ids"], row["loss_mask"], row["response_logprobs"]
    if not len(ids) == len(mask) == len(logprobs):
        case.find("logprobs_off", where, f"lengths {len(ids)}, {len(mask)}, {len(logprobs)}")
        return
    if session is None or any(number not in session.by_id for number in metadata["turns"]):
        case.find("row_ids", where, "it names turns that are not in the journal")
        return
    chain = [session.by_id[number] for number in metadata["turns"]]
    try:
        whole = chain == session.chain(chain[-1])
        prompt, through = session.prompt(chain[0]), session.through(chain[-1])
    except KeyError as missing:
        case.find("row_ids", where, f"turn {missing}, which it goes back to, is not in the journal")
        return
    if not whole:
        case.find("row_ids", where, f"turns {metadata['turns']} are no chain")
        return
    if row["prompt_ids"] != prompt or prompt + ids != through:
        case.find("row_ids", where, "it does not hold the recorded ids")
        return
    left = list(mask)
    for turn in chain:
        first = len(session.prompt(turn)) - len(prompt)
        span = range(first, first + len(turn.sampled))
        ones = sum(mask[at] for at in span)
        if ones not in (0, len(span)):
            case.find("mask_off", where, f"{ones} of the {len(span)} tokens of turn {turn.id}")
        if ones == len(span) and span:
            case.trained[turn.name] += 1
            if [logprobs[at] for at in span] != turn.logprobs:
                case.find("logprobs_off", where, f"turn {turn.id} was recorded with others")
        for at in span:
            left[at] = 0
    if any(left):
        case.find("mask_off", where, f"{sum(map(bool, left))} tokens outside of what was sampled")
    if any(value for value, one in zip(logprobs, mask, strict=True) if not one):
        case.find("logprobs_off", where, "a log-prob where the mask is 0")


def _check_live(case: _Case) -> None:
    """The running gateway gave the rows that the journal gives."""
    exported: dict[str, list[Any]] = defaultdict(list)
    for row in case.rows:
        exported[row["metadata"]["session_id"]].append(row)
    for line in case.live:
        if line["rows"] != exported.get(line["session"], []):
            case.find("row_ids", line["session"], "the running gateway gave other rows than its journal")


def _check_trained(case: _Case) -> None:
    for session in case.ledger.values():
        parents = {turn.parent for turn in session.turns}
        for turn in session.turns:
            call = case.witness.calls.get(turn.mark)
            times = case.trained[turn.name]
            seen = call is not None and call.seen is not None and call.seen["reply"].endswith(turn.reply["id"])
            if times > 1:
                case.find("trained_twice", turn.name, f"in {times} rows")
            if times and not turn.delivered:
                case.find("undelivered_trained", turn.name, "the journal says that its reply did not arrive")
            elif times and not seen:
                _check_unseen(case, turn, call)
            elif seen and not times:
                if turn.delivered or turn.id in parents or not _excused(case, call):
                    case.find("untrained", turn.name, f"it was seen; delivered {turn.delivered}")
                else:
                    case.report.counts["unmarked"] += 1


def _check_unseen(case: _Case, turn: StoredTurn, call: ClientCall | None) -> None:
    """A client that died or hung up cannot say whether its kernel, or its relay, had taken the reply before. The relay
    can."""
    if call is None or call.ended not in ("", "gave_up"):
        case.find("undelivered_trained", turn.name, "the client did not see it")
    elif turn.session in case.witness.relayed and turn.mark not in case.witness.passed:
        case.find("undelivered_trained", turn.name, "the gateway never sent it")
    else:
        case.report.counts["unread"] += 1


def _excused(case: _Case, call: ClientCall | None) -> bool:
    """Whether something that loses delivery marks was still to end when the call was sent."""
    return call is not None and any(until >= call.sent_at for until in case.disturbed)


def _count(case: _Case) -> None:
    witness: Witness = case.witness
    case.report.counts.update(
        agents=witness.agents,
        sessions=len(case.ledger),
        committed=sum(len(session.turns) for session in case.ledger.values()),
        trained=sum(case.trained.values()),
        seen=sum(call.seen is not None for call in witness.calls.values()),
        control=sum(call.ended == "control" for call in witness.calls.values()),
        gave_up=sum(call.ended == "gave_up" for call in witness.calls.values()),
        unanswered=sum(not call.ended for call in witness.calls.values()),
        retried=witness.retried,
        unread=0,
        unmarked=0,
        resampled=0,
    )
