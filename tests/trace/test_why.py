"""Forks are explained by message and by token; statistics say what they cost."""

from __future__ import annotations

from typing import Any

import pytest

from drivetrain.messages import Message
from drivetrain.trace.labels import infer_labels
from drivetrain.trace.sample import rows_of, sampled_by_reason
from drivetrain.trace.stats import TraceStats, stats_of, total, unique_tokens
from drivetrain.trace.why import Fork, explain_forks
from tests.trace.play import BASH, SPECIAL, TASK, Bytes, Play, results, system, user

OPENING = [system("You fix bugs.\nBe brief."), user("Please fix the whitespace bug in the parser.")]


def forks(play: Play) -> list[Fork]:
    return explain_forks(play.graph, Bytes(), special=SPECIAL)


def stats(play: Play) -> TraceStats:
    graph = play.graph
    return stats_of(graph, rows_of(graph), infer_labels(graph), sampled_by_reason(graph), special=SPECIAL)


def test_a_linear_trace_has_nothing_to_explain() -> None:
    play = Play()
    play.work(OPENING, 4)
    assert forks(play) == []
    found = stats(play)
    assert (found.transitions, found.prefix_match_rate, found.duplicated_tokens) == (3, 1.0, 0)
    assert (found.hard_drift, found.soft_drift, found.rows_per_rollout) == (0, 0, 1.0)


def test_changed_system_text() -> None:
    play = Play()
    history, turns = play.work(OPENING, 2)
    changed = [system("You fix bugs.\nBe quick."), *history[1:]]
    play.ask(changed, "I go on.")
    (fork,) = forks(play)
    assert (fork.reason, fork.drift, fork.nearest) == ("system_changed", "hard", turns[-1].id)
    assert (fork.message, fork.role_before, fork.role_now, fork.shared_messages) == (0, "system", "system", 0)
    assert "-Be brief." in fork.message_diff and "+Be quick." in fork.message_diff
    assert " You fix bugs." in fork.message_diff
    prompt = play.graph.prompt_ids(play.graph[2]).tolist()
    stored = play.graph.ids_through(turns[-1]).tolist()
    assert prompt[: fork.shared_tokens] == stored[: fork.shared_tokens]
    assert prompt[fork.shared_tokens] != stored[fork.shared_tokens]
    assert "".join(fork.tokens_before).startswith("brief") and "".join(fork.tokens_now).startswith("quick")
    found = stats(play)
    assert (found.transitions, found.extended, found.hard_drift) == (2, 1, 1)


def blank(history: list[Message]) -> list[Message]:
    return [
        Message(m.role, "", m.reasoning, m.tool_calls, m.tool_call_id) if i == 3 else m for i, m in enumerate(history)
    ]


def rename(history: list[Message]) -> list[Message]:
    """Other words, and call ids that are not ours: nothing is left to recognise the turn by."""
    return [Message(m.role, "Other words.") if i == 2 else m for i, m in enumerate(history)]


@pytest.mark.parametrize(
    ("rewrite", "index", "drift", "shows"),
    [
        (blank, 3, "hard", "-file 0"),
        (rename, 2, "soft", "+Other words."),
        (lambda history: history[:1] + history[2:], 1, "hard", f"-{OPENING[1].content}"),
    ],
)
def test_where_the_history_was_rewritten(rewrite: Any, index: int, drift: str, shows: str) -> None:
    play = Play()
    history, _ = play.work(OPENING, 3)
    play.ask(rewrite(history), "I go on.")
    (fork,) = forks(play)
    assert (fork.message, fork.drift) == (index, drift), fork
    assert shows in fork.message_diff
    assert fork.messages_before == len(history) - 1


def test_tools() -> None:
    play = Play()
    history, _ = play.work(OPENING, 2)
    other = type(BASH)("bash", "run it")
    play.ask(history, "I go on.", tools=(TASK, other))
    (fork,) = forks(play)
    assert (fork.reason, fork.drift, fork.tools) == ("tools_changed", "hard", ["+task", "~bash"])


def test_a_second_sample_is_no_drift() -> None:
    play = Play()
    history, _ = play.work(OPENING, 2)
    play.ask(history, "One.")
    play.ask(history, "Two.")
    play.ask([*history, results(play.graph[2])[0], user("And?")], "Three.")
    (fork,) = forks(play)
    assert (fork.reason, fork.drift, fork.message, fork.message_diff) == ("same_prompt", "", None, [])
    assert fork.shared_tokens == fork.prompt_tokens
    assert fork.tokens_now == [] and "".join(fork.tokens_before).startswith("One.")
    found = stats(play)
    assert found.prefix_match_rate == 1.0
    assert found.duplicated_tokens == play.graph[2].prompt_len


def test_template_that_rewrites_earlier_answers() -> None:
    play = Play()
    history, _ = play.work(OPENING, 2)
    turn = play.ask([*history, user("Again.")], "I go on.", root=True)
    turn.link, turn.fork_reason = "new_root", "template_not_append_only"
    (fork,) = forks(play)
    assert (fork.drift, fork.message) == ("soft", None)
    assert explain_forks(play.graph)[0].drift == "hard"  # without special tokens nothing says that it is harmless
    assert all(piece.isdigit() for piece in explain_forks(play.graph)[0].tokens_now)


def test_forks_of_turns_that_overtook_each_other() -> None:
    """A turn that was reserved first and committed last is explained by what was there before it."""
    play = Play()
    play.graph.reserve_id()
    first = play.ask(OPENING, "One.")
    late = play.ask([OPENING[0], user("Something else entirely.")], "Two.")
    assert [(fork.turn, fork.nearest) for fork in forks(play)] == [(late.id, first.id)]


def test_numbers_add_up() -> None:
    play = Play()
    play.ask([user("Title?")], "Fix", tools=())
    history, _ = play.work(OPENING, 2)
    play.ask(history, "Lost.", delivered=False)
    assert [fork.drift for fork in forks(play)] == [""]
    one = stats(play)
    assert one.labels == {"title": 1, "agent": 3}
    assert (one.transitions, one.hard_drift) == (2, 0)  # the agent's first call rewrites nothing of the title call
    assert one.masked_fraction.keys() == {"label:title", "undelivered"}
    both = total([one, one])
    assert (both.rollouts, both.turns, both.labels) == (2, 8, {"title": 2, "agent": 6})
    assert both.masked_fraction == one.masked_fraction
    assert both.as_dict()["trained_tokens"] == 2 * one.sampled[""]
    assert total([]).as_dict()["prefix_match_rate"] is None


def test_unique_tokens() -> None:
    assert unique_tokens([]) == 0
    assert unique_tokens([[1, 2, 3], [1, 2, 4, 5], [2], [1, 2, 3]]) == 6
