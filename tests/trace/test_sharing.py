"""A prompt that begins like a stored one stores what is new: memory O(new tokens), whatever the harness rewrites."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from drivetrain.messages import Message
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.labels import infer_labels
from drivetrain.trace.sample import rows_of
from drivetrain.trace.stats import stats_of
from drivetrain.trace.turn import Turn
from drivetrain.trace.validate import check_graph, check_rows
from tests.trace.play import BASH, TASK, Play, results, system, user

OPENING = [system("You fix bugs. " * 20), user("Please fix the whitespace bug in the parser.")]
Rewrite = Callable[[list[Message]], list[Message]]


def remind(history: list[Message]) -> list[Message]:
    return [*history, user(f"{len(history)} messages so far")]


def blank_old_results(history: list[Message]) -> list[Message]:
    old = [i for i, message in enumerate(history) if message.role == "tool"][:-3]
    return [Message("tool", "", tool_call_id=m.tool_call_id) if i in old else m for i, m in enumerate(history)]


def clock(history: list[Message]) -> list[Message]:
    return [system(f"{OPENING[0].content} It is {len(history)} o'clock."), *history[1:]]


def session(rewrite: Rewrite, turns: int) -> Play:
    play = Play()
    history = list(OPENING)
    for number in range(turns):
        turn = play.ask(rewrite(history), f"Part {number}.", [("bash", {"command": f"ls {number}"})])
        history += results(turn, f"a file called {number}")
    return play


def own(turns: Sequence[Turn]) -> list[int]:
    return [len(turn.delta_ids) for turn in turns]


@pytest.mark.parametrize("rewrite", [remind, blank_old_results])
def test_each_turn_stores_what_is_new(rewrite: Rewrite) -> None:
    """The hundredth turn stores as much as the tenth, and as many messages."""
    turns = list(session(rewrite, 100).graph)
    assert max(own(turns[90:])) <= max(own(turns[10:20])) + 10  # numbers get longer
    assert {len(turn.messages) for turn in turns[90:]} == {len(turn.messages) for turn in turns[10:20]}
    assert all(turn.tools is None for turn in turns[1:])


def test_a_clock_shares_what_stands_before_it() -> None:
    graph = session(clock, 5).graph
    assert [(turn.link, turn.fork_reason, turn.keep_messages) for turn in graph][1:] == [
        ("new_root", "system_changed", 0)
    ] * 4
    assert all(turn.keep > len(OPENING[0].content) for turn in list(graph)[1:])


@pytest.mark.parametrize("rewrite", [remind, blank_old_results, clock])
def test_rows_and_labels_do_not_depend_on_it(rewrite: Rewrite, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = session(rewrite, 8).graph
    monkeypatch.setattr("tests.trace.play.share_prompt", lambda *_: None)
    whole = session(rewrite, 8).graph
    assert any(turn.base is not None for turn in shared)
    assert all(turn.base is None for turn in whole)
    assert rows_of(shared) == rows_of(whole)
    assert infer_labels(shared) == infer_labels(whole)
    assert check_graph(shared) == []
    assert check_rows(shared, rows_of(shared)) == []
    kept, sent = (stats_of(g, rows_of(g), infer_labels(g), {}) for g in (shared, whole))
    assert kept.stored_tokens < sent.stored_tokens
    assert (kept.prompt_tokens, kept.row_tokens, kept.forks) == (sent.prompt_tokens, sent.row_tokens, sent.forks)


def test_sampled_ids_inside_a_shared_beginning_are_context() -> None:
    """Turn 2 goes another way behind turn 0's reply: that reply is trained once, turn 1's does not appear."""
    play = Play()
    first = play.ask(OPENING, "One.")
    long = [*OPENING, *results(first), user("And then? " * 10)]
    second = play.ask([*long, user("left")], "Two.")
    third = play.ask([*long, user("right")], "Three.")
    assert (third.parent, third.base) == (first.id, second.id)
    assert third.keep > len(play.graph.ids_through(first))
    rows = rows_of(play.graph)
    assert [row.metadata["trained_turns"] for row in rows] == [[0, 1], [2]]
    assert rows[1].metadata["masked"] == {"trained_in_earlier_row": len(first.sampled_ids)}
    assert check_rows(play.graph, rows) == []


def test_a_fork_inside_a_prompt_can_be_continued_and_shared_again() -> None:
    play = Play()
    history, _ = play.work(OPENING, 3)
    changed = [*history[:2], user("One more thing."), *history[2:]]
    inside = play.ask(changed, "I see.", [("bash", {"command": "ls"})])
    assert (inside.link, inside.parent, inside.base, inside.keep_messages) == ("fork", None, 0, 2)
    longer = [*changed, *results(inside)]
    after = play.ask(longer, "Done.")
    assert (after.link, after.parent, after.base) == ("linear", inside.id, None)
    assert play.graph.request(after) == longer
    other = play.ask([*longer[:-1], *results(inside, "other")[1:]], "Fine.")
    assert (other.link, other.fork_reason, other.parent) == ("fork", "branch", inside.id)
    assert (other.base, other.keep_messages) == (after.id, len(longer) - 1)
    assert check_graph(play.graph) == []
    assert check_rows(play.graph, rows_of(play.graph)) == []


def test_other_tools_share_nothing() -> None:
    play = Play()
    play.work(OPENING, 1)
    other = play.ask(OPENING, "Hm.", tools=(BASH, TASK))
    assert (other.base, other.tools, other.link) == (None, (BASH, TASK), "new_root")


def test_another_order_of_the_tools_is_kept() -> None:
    """The list is the same to the match; what this prompt showed is recorded as it was."""
    play = Play()
    play.ask(OPENING, "Hm.", tools=(BASH, TASK))
    other = play.ask(OPENING, "Hm.", tools=(TASK, BASH))
    assert other.base == 0
    assert play.graph.tools_of(other) == (TASK, BASH)


@pytest.mark.parametrize("keep", [{"keep": -1}, {"keep": 10_000}, {"keep": 1, "keep_messages": 99}])
def test_a_base_that_holds_less_is_refused(keep: dict[str, int]) -> None:
    play = Play()
    play.work(OPENING, 2)
    turns = list(play.graph)
    graph = TraceGraph(play.graph.session_tag)
    graph.add(turns[0])
    turns[1].base, turns[1].parent = 0, None
    for name, value in keep.items():
        setattr(turns[1], name, value)
    with pytest.raises(ValueError, match="keeps more"):
        graph.add(turns[1])
    turns[1].base = 7
    with pytest.raises(ValueError, match="unknown base"):
        graph.add(turns[1])
