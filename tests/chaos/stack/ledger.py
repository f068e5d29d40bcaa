"""The journal as the checker reads it: with SQLite and nothing of drivetrain."""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
from array import array
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from tests.chaos.stack.words import last_mark


class StoredTurn(msgspec.Struct):
    """One committed turn. ``mark`` is that of the request's last message."""

    session: str
    id: int
    seq: int
    delivered: int
    delta: list[int]
    sampled: list[int]
    logprobs: list[float]
    record: dict[str, Any]

    @property
    def parent(self) -> int | None:
        found: int | None = self.record["parent"]
        return found

    @property
    def mark(self) -> str:
        messages = self.record.get("messages") or [{}]
        return last_mark(str(messages[-1].get("content", "")))

    @property
    def reply(self) -> dict[str, Any]:
        found: dict[str, Any] = self.record["reply"]
        return found

    @property
    def name(self) -> str:
        return f"{self.session} turn {self.id}"


class StoredSession(msgspec.Struct):
    """``turns`` in commit order, also by id."""

    id: str
    state: str
    max_turns: int
    turns: list[StoredTurn]
    by_id: dict[int, StoredTurn]

    def prompt(self, turn: StoredTurn) -> list[int]:
        """What was sent to the engine, put together from what is stored.

        Raises:
            KeyError: a turn is missing.
        """
        if turn.record.get("base") is not None:
            base = self.by_id[turn.record["base"]]
            return self.prompt(base)[: turn.record["keep"]] + turn.delta
        if turn.parent is None:
            return turn.delta
        return self.through(self.by_id[turn.parent]) + turn.delta

    def through(self, turn: StoredTurn) -> list[int]:
        """Prompt and sample."""
        return self.prompt(turn) + turn.sampled

    def chain(self, turn: StoredTurn) -> list[StoredTurn]:
        """From the root down to a turn."""
        found = [turn]
        while (parent := found[-1].parent) is not None:
            found.append(self.by_id[parent])
        return found[::-1]


def digest(ids: list[int]) -> str:
    """As ``prompt_sha256`` is stored."""
    packed = array("i", ids).tobytes()
    return base64.b64encode(hashlib.sha256(packed).digest()).decode()


def read_ledger(path: Path) -> dict[str, StoredSession]:
    """Every session of a journal that nobody writes any more."""
    found: dict[str, StoredSession] = {}
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        for name, state, policy in db.execute("SELECT id, state, policy FROM sessions"):
            most = msgspec.msgpack.decode(policy).get("max_turns", 50)
            found[name] = StoredSession(name, state, most, [], {})
        query = (
            "SELECT session_id, turn_id, seq, delivered, delta_ids, sampled_ids, logprobs, record FROM turns "
            "ORDER BY session_id, seq"
        )
        for name, number, seq, delivered, delta, sampled, logprobs, record in db.execute(query):
            turn = StoredTurn(
                name,
                number,
                seq,
                delivered,
                array("i", delta).tolist(),
                array("i", sampled).tolist(),
                array("f", logprobs).tolist(),
                json.loads(record),
            )
            found[name].turns.append(turn)
            found[name].by_id[number] = turn
    return found
