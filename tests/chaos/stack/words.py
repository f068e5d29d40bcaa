"""What is said in a chaos run: every request carries a mark that nobody else sends, and the policy answers with it."""

from __future__ import annotations

import re
import zlib

_MARK = re.compile(r"n\d+x\d+x\d+x\d+z")
BASH = "bash"
STOPPING = "Stopping here: the budget of this session"
"""How the answer beyond a budget begins (docs/wire.md)."""


def mark(harness: int, episode: int, conversation: int, turn: int) -> str:
    """The mark of one logical call, however often it is sent."""
    return f"n{harness}x{episode}x{conversation}x{turn}z"


def marks(text: str) -> set[str]:
    """All marks in a text."""
    return set(_MARK.findall(text))


def last_mark(text: str) -> str:
    """The mark a text ends with; empty when there is none."""
    found = _MARK.findall(text)
    return found[-1] if found else ""


def dice(call: str) -> int:
    """A number that depends on the mark only."""
    return zlib.crc32(call.encode())


def answer(call: str) -> str:
    """What the policy says to a request with this mark."""
    number = dice(call)
    padding = " ".join(f"word{number >> shift & 31}" for shift in range(0, 2 + number % 20, 2))
    if number % 10 < 6:
        return (
            f'Looking into {call}: {padding}.\n<tool_call>\n{{"name": "bash", '
            f'"arguments": {{"command": "run {call}"}}}}\n</tool_call>'
        )
    return f"Done with {call}: {padding}."
