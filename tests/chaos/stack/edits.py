"""Wrongs done to a recorded run, one at a time, each with the code under which the checker must find it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.chaos.stack.ledger import StoredTurn, read_ledger
from tests.chaos.stack.witness import read_witness

Edit = Callable[["Record"], None]


class Record:
    """The files of a run that ended well, to be spoilt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = folder / "run" / "journal.sqlite"
        self.ledger = read_ledger(self.journal)
        self.rows: list[Any] = [json.loads(line) for line in (folder / "rows.jsonl").read_bytes().splitlines()]
        witness = read_witness(folder / "diaries", folder / "relayed.jsonl")
        marks = {call.seen["reply"][-24:] for call in witness.calls.values() if call.seen}
        turns = [turn for session in self.ledger.values() for turn in session.turns]
        trained = {
            (row["metadata"]["session_id"], turn) for row in self.rows for turn in row["metadata"]["trained_turns"]
        }
        self.good = [t for t in turns if t.reply["id"] in marks and (t.session, t.id) in trained]
        """Turns that were seen and are trained."""
        self.leaf = next(t for t in self.good if all(o.parent != t.id for o in self.ledger[t.session].turns))
        self.inner = next(t for t in self.good if any(o.parent == t.id for o in self.ledger[t.session].turns))

    def child(self, turn: StoredTurn) -> StoredTurn:
        return next(other for other in self.ledger[turn.session].turns if other.parent == turn.id)

    def sql(self, statement: str, *values: Any) -> None:
        with closing(sqlite3.connect(self.journal)) as db, db:
            db.execute(statement, values)

    def change(self, turn: StoredTurn, **record: Any) -> None:
        """Other values in a turn's record."""
        text = json.dumps({**turn.record, **record}).encode()
        self.sql("UPDATE turns SET record = ? WHERE session_id = ? AND turn_id = ?", text, turn.session, turn.id)

    def row_of(self, turn: StoredTurn) -> Any:
        """The row that trains a turn."""
        return next(
            row
            for row in self.rows
            if row["metadata"]["session_id"] == turn.session and turn.id in row["metadata"]["trained_turns"]
        )

    def start(self, turn: StoredTurn) -> int:
        """Where a turn's sample begins in its row's response."""
        session, row = self.ledger[turn.session], self.row_of(turn)
        return len(session.prompt(turn)) - len(row["prompt_ids"])

    def save_rows(self) -> None:
        (self.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        (self.folder / "live.jsonl").unlink()  # the checker compares both

    def diary_of(self, turn: StoredTurn) -> tuple[Path, list[Any]]:
        """The diary in which a turn's session is, and its lines."""
        for path in self.folder.glob("diaries/*.jsonl"):
            lines = [json.loads(line) for line in path.read_bytes().splitlines()]
            if any(line.get("session") == turn.session for line in lines):
                return path, lines
        raise LookupError(turn.session)


def drop_a_commit(record: Record) -> None:
    turn = record.leaf
    record.sql("DELETE FROM turns WHERE session_id = ? AND turn_id = ?", turn.session, turn.id)


def drop_a_commit_in_the_middle(record: Record) -> None:
    turn = record.inner
    record.sql("DELETE FROM turns WHERE session_id = ? AND turn_id = ?", turn.session, turn.id)


def train_what_was_not_delivered(record: Record) -> None:
    turn = record.leaf
    record.sql("UPDATE turns SET delivered = 0 WHERE session_id = ? AND turn_id = ?", turn.session, turn.id)


def train_what_nobody_saw(record: Record) -> None:
    """As if the client had been told that the call failed."""
    path, lines = record.diary_of(record.leaf)
    for line in lines:
        if line["kind"] == "seen" and line["reply"].endswith(record.leaf.reply["id"]):
            line.update(kind="control", text="")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def duplicate_a_turn(record: Record) -> None:
    """The same call, committed and delivered a second time with a reply of its own."""
    _copy(record, record.leaf, {**record.leaf.reply, "id": "f" * 24})


def duplicate_a_reply(record: Record) -> None:
    _copy(record, record.leaf, record.leaf.reply)


def _copy(record: Record, turn: StoredTurn, reply: Any) -> None:
    """Whatever columns the table has, all but three are the turn's own."""
    turns = record.ledger[turn.session].turns
    new = max(other.id for other in turns) + 1
    text = json.dumps({**turn.record, "id": new, "reply": reply}).encode()
    with closing(sqlite3.connect(record.journal)) as db, db:
        db.row_factory = sqlite3.Row
        found = db.execute("SELECT * FROM turns WHERE session_id = ? AND turn_id = ?", (turn.session, turn.id))
        row = {**dict(found.fetchone()), "turn_id": new, "seq": len(turns), "record": text}
        holes = ", ".join("?" for _ in row)
        db.execute(f"INSERT INTO turns ({', '.join(row)}) VALUES ({holes})", list(row.values()))


def swap_two_commits(record: Record) -> None:
    first, second = record.inner, record.child(record.inner)
    query = "UPDATE turns SET seq = ? WHERE session_id = ? AND turn_id = ?"
    record.sql(query, -1, first.session, first.id)  # numbers are unique
    record.sql(query, first.seq, second.session, second.id)
    record.sql(query, second.seq, first.session, first.id)


def leave_a_gap(record: Record) -> None:
    turn = record.leaf
    record.sql("UPDATE turns SET seq = seq + 1000 WHERE session_id = ? AND turn_id = ?", turn.session, turn.id)


def say_something_else(record: Record) -> None:
    record.change(record.leaf, reply={**record.leaf.reply, "content": "something else"})


def give_the_reply_to_another(record: Record) -> None:
    other = next(turn for turn in record.good if turn.session != record.leaf.session)
    record.change(record.leaf, messages=other.record["messages"])


def hang_it_elsewhere(record: Record) -> None:
    child = record.child(record.inner)
    record.change(child, parent=None)


def exceed_the_budget(record: Record) -> None:
    path, lines = record.diary_of(record.inner)
    for line in lines:
        if line["kind"] == "open" and line["session"] == record.inner.session:
            line["max_turns"] = len(record.ledger[record.inner.session].turns) - 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def change_a_stored_token(record: Record) -> None:
    turn = record.inner
    ids = turn.sampled[::-1]
    packed = b"".join(number.to_bytes(4, "little") for number in ids)
    record.sql("UPDATE turns SET sampled_ids = ? WHERE session_id = ? AND turn_id = ?", packed, turn.session, turn.id)


def shift_a_mask(record: Record) -> None:
    row, at = record.row_of(record.inner), record.start(record.inner)
    row["loss_mask"][at + len(record.inner.sampled)] = 1
    row["loss_mask"][at] = 0
    row["response_logprobs"][at] = 0.0
    record.save_rows()


def train_the_environment(record: Record) -> None:
    row, at = record.row_of(record.inner), record.start(record.inner)
    row["loss_mask"][at + len(record.inner.sampled)] = 1
    record.save_rows()


def change_a_logprob(record: Record) -> None:
    record.row_of(record.leaf)["response_logprobs"][record.start(record.leaf)] -= 0.25
    record.save_rows()


def lose_a_logprob(record: Record) -> None:
    record.row_of(record.leaf)["response_logprobs"].pop()
    record.save_rows()


def change_a_row_token(record: Record) -> None:
    record.row_of(record.leaf)["response_ids"][record.start(record.leaf)] += 1
    record.save_rows()


def train_twice(record: Record) -> None:
    record.rows.append(record.row_of(record.leaf))
    record.save_rows()


def forget_a_row(record: Record) -> None:
    record.rows.remove(record.row_of(record.leaf))
    record.save_rows()


def differ_from_the_running_gateway(record: Record) -> None:
    path = record.folder / "live.jsonl"
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    next(line for line in lines if line["rows"])["rows"][0]["reward"] = 1.0
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def silence_the_relay(record: Record) -> None:
    (record.folder / "relayed.jsonl").write_text("")


EDITS: dict[str, list[Edit]] = {
    "lost": [drop_a_commit, drop_a_commit_in_the_middle],
    "undelivered_trained": [train_what_was_not_delivered, train_what_nobody_saw],
    "duplicated": [duplicate_a_turn, duplicate_a_reply],
    "reordered": [swap_two_commits, leave_a_gap],
    "altered": [say_something_else],
    "foreign": [give_the_reply_to_another],
    "chain_broken": [hang_it_elsewhere],
    "over_budget": [exceed_the_budget],
    "prompt_broken": [change_a_stored_token],
    "mask_off": [shift_a_mask, train_the_environment],
    "logprobs_off": [change_a_logprob, lose_a_logprob],
    "row_ids": [change_a_row_token, differ_from_the_running_gateway],
    "trained_twice": [train_twice],
    "untrained": [forget_a_row],
    "relay_blind": [silence_the_relay],
}
"""What the checker must find of each."""
