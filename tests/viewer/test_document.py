"""The document against the graph and the rows it is made of."""

from __future__ import annotations

import msgspec
import pytest

from drivetrain.messages import Message
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.labels import infer_labels
from drivetrain.trace.sample import rows_of, sampled_by_reason
from drivetrain.trace.why import explain_forks
from drivetrain.viewer.document import TrainedSpan, ViewDocument, ViewTurn
from drivetrain.viewer.masks import runs_of_ones
from drivetrain.viewer.turns import NOT_IN_A_ROW
from tests.trace.play import Play
from tests.viewer.documents import OPENING, ByteSpeller, document_of, eventful


@pytest.fixture(scope="module")
def play() -> Play:
    return eventful()


@pytest.fixture(scope="module")
def document(play: Play) -> ViewDocument:
    made = document_of(play.graph)
    return msgspec.json.decode(msgspec.json.encode(made), type=ViewDocument)  # as the page gets it


def sequence(document: ViewDocument, turn: ViewTurn, count: int) -> list[int]:
    """The first ``count`` of a turn's prompt and sampled tokens, as the page puts them together."""
    by_id = {each.id: each for each in document.turns}
    parts: list[list[int]] = []
    while count > 0:
        parts.append([*turn.delta, *turn.sampled][: max(0, count - turn.keep)])
        count = min(count, turn.keep)
        if turn.source is None:
            break
        turn = by_id[turn.source]
    return [document.tokens.ids[token] for part in reversed(parts) for token in part]


def request(document: ViewDocument, turn: ViewTurn) -> list[Message]:
    by_id = {each.id: each for each in document.turns}
    found, count, node = list(turn.messages), turn.keep_messages, turn
    while count > 0 and node.source is not None:
        node = by_id[node.source]
        found = [*[*node.messages, node.reply][: max(0, count - node.keep_messages)], *found]
        count = min(count, node.keep_messages)
    return found


def test_every_prompt_and_request_is_rebuilt_from_what_is_stored_once(play: Play, document: ViewDocument) -> None:
    assert len(document.turns) == len(play.graph) == 9
    for turn in document.turns:
        stored = play.graph[turn.id]
        prompt = play.graph.prompt_ids(stored).tolist()
        assert turn.prompt_len == len(prompt)
        assert sequence(document, turn, turn.prompt_len) == prompt
        whole = turn.prompt_len + len(turn.sampled)
        assert sequence(document, turn, whole) == play.graph.ids_through(stored).tolist()
        assert request(document, turn) == play.graph.request(stored)
    kept = sum(len(turn.delta) + len(turn.sampled) for turn in document.turns)
    assert kept == sum(len(turn.delta_ids) + len(turn.sampled_ids) for turn in play.graph)


def test_trained_and_masked_are_those_of_the_rows(play: Play, document: ViewDocument) -> None:
    rows = rows_of(play.graph)
    spans = [span for turn in document.turns for span in turn.trained]
    assert (
        sum(span.stop - span.start for span in spans) == document.trained_tokens == sum(sum(r.loss_mask) for r in rows)
    )
    for number, row in enumerate(rows):
        assert sum(span.stop - span.start for span in spans if span.row == number) == sum(row.loss_mask)
        assert document.rows[number].trained_tokens == sum(row.loss_mask)
        assert document.rows[number].turns == row.metadata["turns"]
    expected = {reason: count for reason, count in sampled_by_reason(play.graph).items() if reason and count}
    assert document.masked == expected and set(expected) == {"label:title", "undelivered"}
    assert {turn.masked for turn in document.turns if turn.trained} == {""}
    assert document.sampled_tokens == document.trained_tokens + sum(document.masked.values())
    assert document.findings == []


def test_labels_forks_and_roles(play: Play, document: ViewDocument) -> None:
    infos = infer_labels(play.graph)
    for turn in document.turns:
        assert (turn.label, turn.label_reason) == (infos[turn.id].label, infos[turn.id].reason)
        assert turn.reply.role == "assistant"
    assert [turn.label for turn in document.turns].count("subagent") == 1
    forks = explain_forks(play.graph)
    assert [fork.turn for fork in document.forks] == [fork.turn for fork in forks]
    assert {turn.id for turn in document.turns if turn.fork_reason} == {fork.turn for fork in document.forks}
    by_id = {turn.id: turn for turn in document.turns}
    for fork in document.forks:
        near, turn = by_id[fork.nearest], by_id[fork.turn]
        before = sequence(document, near, near.prompt_len + len(near.sampled))
        now = sequence(document, turn, turn.prompt_len)
        at = fork.shared_tokens
        assert before[:at] == now[:at] and before[at : at + 1] != now[at : at + 1]
        assert (len(before), len(now)) == (fork.stored_tokens, fork.prompt_tokens)
    assert "system_changed" in {fork.reason for fork in document.forks}


def test_what_the_rows_lack_is_masked_and_found() -> None:
    play = Play()
    play.work(OPENING, 2)
    (row,) = rows_of(play.graph)
    cut = row.loss_mask.index(1) + 3
    short = [bit if at < cut else 0 for at, bit in enumerate(row.loss_mask)]
    logprobs = [value if bit else 0.0 for value, bit in zip(row.response_logprobs, short, strict=True)]
    document = document_of(play.graph, [msgspec.structs.replace(row, loss_mask=short, response_logprobs=logprobs)])
    first, second = document.turns
    assert first.trained == [TrainedSpan(0, 3, 0)] and second.trained == []
    assert (first.masked, second.masked) == (NOT_IN_A_ROW, NOT_IN_A_ROW)
    assert [(finding.code, finding.turn) for finding in document.findings] == [
        ("token_not_trained", 0),
        ("token_not_trained", 1),
    ]


def test_only_recorded_times_are_shown() -> None:
    play = Play()
    play.ask(OPENING, "Hello.", start=100.0, end=101.5, committed_at=101.75)
    play.ask(OPENING, "Hello.", start=102.0, end=103.0)
    first, second = document_of(play.graph).turns
    assert first.times == {"received": 0.0, "dispatched": 0.0, "completed": 1.5, "committed": 1.75}
    assert second.times == {"received": 2.0, "dispatched": 2.0, "completed": 3.0}


def test_a_session_without_turns() -> None:
    document = document_of(TraceGraph("0123abcd"))
    assert (document.turns, document.tokens.ids, document.trained_tokens) == ([], [], 0)


def test_without_a_tokenizer_tokens_are_ids(play: Play) -> None:
    from drivetrain.viewer.spelling import token_table

    table = token_table([7, 3, 7], None)
    assert (table.ids, table.texts, table.spelled) == ([3, 7], ["3", "7"], False)
    assert token_table([0x41], ByteSpeller()).texts == ["A"]


def test_runs_of_ones() -> None:
    assert runs_of_ones([1, 1, 0, 1]) == [(0, 2), (3, 4)]
    assert runs_of_ones([]) == [] and runs_of_ones([0, 0]) == []
