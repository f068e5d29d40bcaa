"""What the clients say: their diaries as calls in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tests.chaos.stack.diary import read


class ClientCall(msgspec.Struct):
    """One logical call, however often it was tried. ``seen`` is the diary's line of the reply, None when none came.

    ``ended``: the client knows how it ended (a reply, a budget stop, a refusal, or it hung up); otherwise it died.
    """

    mark: str
    session: str
    conversation: int
    sent_at: float
    seen: dict[str, Any] | None = None
    ended: str = ""
    refused: str = ""


class Witness(msgspec.Struct):
    """``calls`` in the order in which they were sent first, by mark. ``talks`` are calls of one conversation.
    ``relayed`` are sessions whose agent is behind the relay, ``passed`` the marks that the relay saw in replies."""

    calls: dict[str, ClientCall]
    talks: dict[tuple[str, int], list[ClientCall]]
    sessions: dict[str, int]
    """Turns that the runner allowed each session."""
    agents: int
    retried: int
    again: list[str]
    """Marks whose reply came twice to one client."""
    relayed: set[str]
    passed: set[str]


def read_witness(diaries: Path, relayed: Path) -> Witness:
    """All diaries of a folder, and the relay's testimony."""
    found = Witness({}, {}, {}, 0, 0, [], set(), {line["mark"] for line in read(relayed)})
    for path in sorted([*diaries.glob("*.jsonl"), *diaries.glob("*/diary.jsonl")]):
        found.agents += 1
        for line in read(path):
            _take(found, line)
    return found


def _take(found: Witness, line: dict[str, Any]) -> None:
    kind = line["kind"]
    if kind == "open":
        found.sessions[line["session"]] = line["max_turns"]
        if line["relayed"]:
            found.relayed.add(line["session"])
    elif kind == "send":
        call = ClientCall(line["mark"], line["session"], line["conversation"], line["t"])
        found.calls[call.mark] = call
        found.talks.setdefault((call.session, call.conversation), []).append(call)
    elif kind == "fail":
        found.retried += 1
    elif kind in ("seen", "control", "refused", "gave_up"):
        call = found.calls[line["mark"]]
        if call.ended:
            found.again.append(call.mark)
        call.ended = kind
        if kind == "seen":
            call.seen = line
        elif kind == "refused":
            call.refused = line["why"]
