"""Documents to look at: sessions played on the graph, and one of any size."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from drivetrain.messages import Message
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.labels import infer_labels
from drivetrain.trace.sample import TRAINED_LABELS, HarnessTrace, rows_of
from drivetrain.trace.validate import check_graph, check_rows
from drivetrain.viewer.build import trace_document
from drivetrain.viewer.document import TokenTable, TrainedSpan, ViewDocument, ViewTurn
from drivetrain.viewer.spelling import _byte_alphabet
from tests.trace.play import END, START, TASK, Bytes, Play, results, system, user

OPENING = [system("You fix bugs.\nBe brief."), user("Please fix the whitespace bug in the parser.")]
NASTY = (
    "</script><script>document.title='owned'</script><!-- <img src=x onerror=alert(1)> \u2028 \u202egnp.exe \x1b[31m é"
)
_CHAR_OF = {byte: char for char, byte in _byte_alphabet().items()}


class ByteSpeller(Bytes):
    """Token i is byte i, spelled as byte-level BPE does."""

    special_tokens = {"<|start|>": START, "<|end|>": END}

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [{START: "<|start|>", END: "<|end|>"}.get(i) or _CHAR_OF[i] for i in ids]


def document_of(graph: TraceGraph, rows: Sequence[HarnessTrace] | None = None, **about: Any) -> ViewDocument:
    rows = rows_of(graph) if rows is None else rows
    return trace_document(
        graph,
        rows,
        labels=infer_labels(graph),
        trained_labels=TRAINED_LABELS,
        speller=ByteSpeller(),
        findings=[*check_graph(graph), *check_rows(graph, rows)],
        **{"rollout_id": "task.agent.0", **about},
    )


def eventful() -> Play:
    """A title call, a chain, a sub-agent, a rewritten history, a lost reply, a second continuation, odd text."""
    play = Play()
    play.ask([user("Give this a title, please.")], "Whitespace", tools=())
    history, turns = play.work(OPENING, 3)
    spawn = play.ask(history, "", [("task", {"prompt": "Count the files in the folder."})])
    play.ask([system("You are a helper."), user("Count the files in the folder.")], "There are 3.", tools=(TASK,))
    answer = Message("tool", NASTY, tool_call_id=spawn.reply.tool_calls[0].id)
    play.ask([*history, *results(spawn)[:1], answer], f"I saw {NASTY}")
    changed = [system("You fix bugs.\nBe quick."), *history[1:]]
    play.ask(changed, "I go on.", delivered=False)
    play.ask([*OPENING, *results(turns[0], "another file")], "The other way.")
    return play


def large(turns: int = 200, tokens: int = 200_000, *, seed: int = 1) -> ViewDocument:
    """One chain of many turns; a token is four characters on average."""
    draw = random.Random(seed)
    letters = "etaoinshrdlucmfgypwbvk"
    words = [" " * draw.randrange(2) + "".join(draw.choices(letters, k=draw.randint(1, 6))) for _ in range(4999)]
    words.append("\n")
    each = tokens // turns
    made: list[ViewTurn] = []
    length = trained = 0
    for number in range(turns):
        delta = [draw.randrange(5000) for _ in range(each * 3 // 4)]
        sampled = [draw.randrange(5000) for _ in range(each - len(delta))]
        turn = ViewTurn(
            id=number,
            parent=number - 1 if number else None,
            source=number - 1 if number else None,
            keep=length,
            keep_messages=2 * number,
            start=length,
            link="linear" if number else "root",
            prompt_len=length + len(delta),
            delta=delta,
            sampled=sampled,
            logprobs=[-round(draw.expovariate(1.2), 4) for _ in sampled],
            trained=[TrainedSpan(0, len(sampled), 0)],
            messages=[Message("tool" if number else "user", "".join(words[i] for i in delta))],
            reply=Message("assistant", "".join(words[i] for i in sampled)),
            finish_reason="stop",
            delivered=True,
            policy_versions=[0, 0, 0],
            times={name: number + at for name, at in (("received", 0.0), ("dispatched", 0.1), ("completed", 0.9))},
        )
        length += len(delta) + len(sampled)
        trained += len(sampled)
        made.append(turn)
    made[-1].messages.append(Message("user", "the needle in the haystack"))
    table = TokenTable(ids=list(range(5000)), texts=words)
    return ViewDocument(
        rollout_id="large.agent.0",
        turns=made,
        tokens=table,
        trained_tokens=trained,
        sampled_tokens=trained,
        status="ok",
    )
