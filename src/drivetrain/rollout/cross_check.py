"""The harness's own log against the recorded turns (design section 7): two accounts of one rollout that must agree.

A call in the log that was never recorded means that the agent reached a model by another way, or that the recorder lost
a turn; a recorded call that the log does not know means that something else used the session's key. Either is a
finding; neither changes a reward or a mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.labels import LabelInfo
from drivetrain.trace.turn import Turn
from swe_rl_agent.log_work import LoggedWork

LogCode = Literal[
    "log_unknown_call",
    "log_missing_call",
    "log_unknown_text",
    "log_missing_text",
    "log_token_total",
]

_QUOTE = 80


class LogFinding(msgspec.Struct, frozen=True):
    """One difference. ``where`` is ``turn N`` or ``log``."""

    code: LogCode
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.code} at {self.where}: {self.detail}"


def cross_check(
    graph: TraceGraph, labels: Mapping[int, LabelInfo], work: LoggedWork, *, served_besides: Sequence[str] = ()
) -> list[LogFinding]:
    """Differences between a log and the recorded turns; empty when they agree.

    Args:
        labels: label of every turn. Only the agent's own conversation has to be in its log whole: several harnesses
            leave titles, summaries and sub-agents out.
        work: what the log says. Where it is not ``complete`` nothing can be missing from it.
        served_besides: beginnings of texts the gateway served that are no turns (the budget's stop).
    """
    turns = list(graph)
    own = [turn for turn in turns if labels[turn.id].label == "agent" and turn.delivered]
    return [
        *_calls(turns, own, work),
        *_texts(turns, own, work, served_besides),
        *_tokens(turns, own, work),
    ]


def _calls(turns: Sequence[Turn], own: Sequence[Turn], work: LoggedWork) -> Iterator[LogFinding]:
    if work.call_ids is None:
        return
    recorded = [call.id for turn in turns for call in turn.reply.tool_calls]
    known = set(recorded)
    seen: set[str] = set()
    for logged in work.call_ids:
        mine = logged if logged in known else next((each for each in recorded if logged.endswith(each)), None)
        if mine is None:
            yield LogFinding("log_unknown_call", "log", f"tool call {logged} is in no recorded turn")
        else:
            seen.add(mine)
    if work.complete:
        for turn in own:
            for call in turn.reply.tool_calls:
                if call.id not in seen:
                    yield LogFinding("log_missing_call", f"turn {turn.id}", f"{call.name} {call.id} is not in the log")


def _texts(
    turns: Sequence[Turn], own: Sequence[Turn], work: LoggedWork, served_besides: Sequence[str]
) -> Iterator[LogFinding]:
    if work.texts is None:
        return
    recorded = {_plain(turn.reply.content) for turn in turns}
    logged = Counter(_plain(text) for text in work.texts)
    besides = [_plain(text) for text in served_besides]
    for text in logged:
        if text not in recorded and not any(text.startswith(each) for each in besides):
            yield LogFinding("log_unknown_text", "log", f"no recorded turn says {text[:_QUOTE]!r}")
    if work.complete:
        for turn in own:
            text = _plain(turn.reply.content)
            if text and not logged[text]:
                yield LogFinding("log_missing_text", f"turn {turn.id}", f"{text[:_QUOTE]!r} is not in the log")
            logged[text] -= 1


def _tokens(turns: Sequence[Turn], own: Sequence[Turn], work: LoggedWork) -> Iterator[LogFinding]:
    """Totals are compared where every turn is the agent's own: harnesses count the others in different ways."""
    if work.output_tokens is None or not work.complete or len(own) != len(turns):
        return
    total = sum(turn.reply.usage.completion_tokens for turn in own)
    if total != work.output_tokens:
        yield LogFinding("log_token_total", "log", f"{work.output_tokens} output tokens, {total} recorded")


def _plain(text: str) -> str:
    """Harnesses trim and re-wrap; the words are what counts."""
    return " ".join(text.split())
