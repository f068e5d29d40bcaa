"""What each turn was for (case rows C1, C3, C4, C6, C8, C15; drift row "compacts")."""

from __future__ import annotations

from typing import Any

import pytest

from drivetrain.trace.labels import LabelRule, infer_labels, relabelled
from drivetrain.trace.origin import read_origin
from drivetrain.trace.sample import rows_of, sampled_by_reason
from drivetrain.trace.turn import Turn
from drivetrain.trace.validate import check_graph, check_rows
from tests.trace.play import BASH, TASK, Play, results, system, user

OPENING = [system("You fix bugs."), user("Please fix the whitespace bug in the parser.")]
SUMMARY = "So far the parser was read; the fault is in strip_whitespace, line 40."


def labels(play: Play, **options: Any) -> list[str]:
    inferred = infer_labels(play.graph, **options)
    assert all(info.reason for info in inferred.values())
    again = infer_labels(relabelled(play.graph, **options))
    assert [(i.label, i.parent_call, i.continues) for i in again.values()] == [
        (i.label, i.parent_call, i.continues) for i in inferred.values()
    ]
    return [inferred[turn.id].label for turn in play.graph]


def assert_sound(play: Play) -> None:
    assert check_graph(play.graph) == []
    assert check_rows(play.graph, rows_of(play.graph)) == []


def trained(play: Play) -> list[int]:
    return [turn for row in rows_of(play.graph) for turn in row.metadata["trained_turns"]]


@pytest.mark.case("C1")
@pytest.mark.parametrize("first", [True, False])
def test_title_call_is_kept_and_not_trained(first: bool) -> None:
    """C1: OpenCode's title call, sent first or while the agent works."""
    play = Play()
    titling = [system("You make titles."), user(f"Title for: {OPENING[1].content}")]
    if first:
        title = play.ask(titling, "Fix whitespace bug", tools=())
    _, turns = play.work(OPENING, 2)
    if not first:
        title = play.ask(titling, "Fix whitespace bug", tools=())
    inferred = infer_labels(play.graph)
    assert inferred[title.id].label == "title"
    assert {inferred[turn.id].label for turn in turns} == {"agent"}
    assert trained(play) == [turn.id for turn in turns]
    counts = sampled_by_reason(play.graph)
    assert counts["label:title"] == len(title.sampled_ids)
    assert_sound(play)
    everything = frozenset({"agent", "title"})
    assert title.id in [t for row in rows_of(play.graph, labels=everything) for t in row.metadata["trained_turns"]]


def test_a_title_that_quotes_the_task_is_no_summary() -> None:
    play = Play()
    play.ask([user("Title, please")], "whitespace bug in the parser", tools=())
    play.work(OPENING)
    assert labels(play) == ["title", "agent", "agent", "agent"]


def test_tool_less_session_is_an_agent() -> None:
    """aider edits through text: without any tool in the session, a missing tool list proves nothing."""
    play = Play()
    first = play.ask(OPENING, "edit one", tools=())
    play.ask([*OPENING, *results(first), user("go on")], "edit two", tools=())
    play.ask([system("Commit messages"), user("diff")], "Fix bug", tools=())
    assert labels(play) == ["agent"] * 3


def spawn(play: Play, *prompts: str, tool: str = "task") -> tuple[list[Any], Turn]:
    """An agent that starts one sub-agent per prompt, in one turn."""
    calls = [(tool, {"description": "look", "prompt": prompt}) for prompt in prompts]
    turn = play.ask(OPENING, "I delegate.", calls, tools=(BASH, TASK))
    return list(OPENING), turn


@pytest.mark.case("C3", "C4")
def test_twin_sub_agents_stay_siblings_and_are_trained() -> None:
    """C3, C4: the same prompt twice; one twin stops after one call and looks like a discarded retry."""
    play = Play()
    history, parent = spawn(play, "Read the parser.", "Read the parser.")
    opening = [system("You explore."), user("Read the parser.")]
    one = play.ask(opening, "", [("bash", {"command": "cat a"})], start=2, end=4)
    two = play.ask(opening, "Nothing to see.", start=2.5, end=3)
    three = play.ask([*opening, *results(one)], "It strips.", start=5)
    last = play.ask([*history, *results(parent)], "Done.", tools=(BASH, TASK))
    inferred = infer_labels(play.graph)
    for turn in (one, two, three):
        assert (inferred[turn.id].label, inferred[turn.id].parent_call) == ("subagent", parent.id), turn.id
    assert inferred[parent.id].label == inferred[last.id].label == "agent"
    assert sorted(trained(play)) == [turn.id for turn in play.graph]
    rows = rows_of(play.graph)
    assert [(row.metadata["label"], row.metadata["parent_call"]) for row in rows] == [
        ("agent", None),
        ("subagent", parent.id),
        ("subagent", parent.id),
    ]
    assert_sound(play)


@pytest.mark.case("C4")
def test_twin_that_stops_early_and_answers_later_is_no_retry() -> None:
    """C4: even one after the other, a delivered answer that said something was not discarded."""
    play = Play()
    _, parent = spawn(play, "Read the parser.", "Read the parser.")
    opening = [system("You explore."), user("Read the parser.")]
    for _ in range(2):
        play.ask(opening, "Nothing to see.")
    assert labels(play) == ["agent", "subagent", "subagent"]
    assert infer_labels(play.graph)[2].parent_call == parent.id


def test_sub_agent_is_known_by_the_running_call_alone() -> None:
    """A tool with an unknown name that starts an agent and passes on something else than its arguments."""
    play = Play()
    parent = play.ask(OPENING, "", [("helper", {"id": 7})])
    child = play.ask([system("You help."), user("Number seven, please.")], "Seven.")
    assert infer_labels(play.graph)[child.id].label == "agent"  # so far nothing proves it
    play.ask([*OPENING, *results(parent)], "Done.")
    info = infer_labels(play.graph)[child.id]
    assert (info.label, info.parent_call) == ("subagent", parent.id)
    assert "running" in info.reason


@pytest.mark.parametrize(
    "header", ["x-parent-session-id", "x-claude-code-agent-id", "x-codex-parent-thread-id", "x-openai-subagent"]
)
def test_sub_agent_is_known_by_its_header(header: str) -> None:
    play = Play()
    play.ask(OPENING, "Done.")
    play.ask([system("You explore."), user("Look")], "Seen.", origin={header: "a1"})
    assert labels(play) == ["agent", "subagent"]
    assert header in infer_labels(play.graph)[1].reason


def test_origin_never_holds_the_key() -> None:
    headers = {"authorization": "Bearer dt-secret", "x-session-id": "s1", "x-claude-code-agent-id": "dt-secret"}
    assert read_origin(headers, secret="dt-secret") == {"x-session-id": "s1"}
    assert read_origin({}) == {}


def compact(play: Play, style: str) -> tuple[Turn, Turn, Turn]:
    """One compaction as each harness does it: (last turn before, summary, first turn after)."""
    history, turns = play.work(OPENING, 4)
    if style == "claude":
        summary = play.ask([*history, user("Summarise what happened.")], f"<summary>\n{SUMMARY}\n</summary>")
        after = [OPENING[0], user(f"Earlier work:\n{SUMMARY}\nGo on.")]
    elif style == "codex":
        summary = play.ask([*history, user("Summarise what happened.")], SUMMARY, tools=())
        after = [*OPENING, user(f"Another model wrote: {SUMMARY}"), user("Go on.")]
    elif style == "opencode":
        told = "\n".join(message.content for message in history)
        summary = play.ask([system("You summarise."), user(told)], SUMMARY, tools=())
        after = [OPENING[0], user("What did we do so far?"), results(summary)[0], user("Continue.")]
    else:  # Pi: recent turns are kept behind the summary
        told = "\n".join(message.content for message in history)
        summary = play.ask([system("You summarise."), user(told)], SUMMARY, tools=())
        after = [OPENING[0], user(f"Summary: {SUMMARY}"), *history[-2:]]
    return turns[-1], summary, play.ask(after, "Now I fix it.", [("bash", {"command": "fix"})])


@pytest.mark.case("C6")
@pytest.mark.parametrize("style", ["claude", "codex", "opencode", "pi"])
def test_compaction(style: str) -> None:
    """C6, drift row "compacts": the summary belongs to the old chain, the new root is its continuation."""
    play = Play()
    before, summary, after = compact(play, style)
    inferred = infer_labels(play.graph)
    assert (inferred[summary.id].label, inferred[summary.id].continues) == ("compaction", 0)
    assert (inferred[after.id].label, inferred[after.id].continues) == ("agent", 0)
    assert inferred[before.id].label == "agent"
    if style == "claude":
        assert summary.parent == before.id
    assert after.parent is None
    rows = rows_of(play.graph)
    assert rows[-1].metadata["continues"] == 0
    assert summary.id in trained(play)
    without = rows_of(play.graph, labels=frozenset({"agent"}))
    assert all(summary.id not in row.metadata["trained_turns"] for row in without)
    assert_sound(play)


def test_second_compaction_continues_the_first() -> None:
    play = Play()
    _, _, after = compact(play, "claude")
    history = [*play.graph.request(after), *results(after, "a long output " * 20)]
    more = "Then the fault was repaired and a test was added for it."
    summary = play.ask([*history, user("Summarise again.")], more)
    last = play.ask([OPENING[0], user(f"Earlier work: {more}")], "Done.")
    inferred = infer_labels(play.graph)
    assert [inferred[turn.id].continues for turn in (after, summary, last)] == [0, after.id, after.id]


def test_summary_that_nobody_reads_is_not_trained() -> None:
    play = Play()
    history, _ = play.work(OPENING)
    play.ask([*history, user("Summarise.")], SUMMARY, tools=())
    assert labels(play) == ["agent"] * 3 + ["summary"]


def test_sub_agents_answer_in_the_next_prompt_is_no_compaction() -> None:
    play = Play()
    history, parent = spawn(play, "Read the parser.")
    opening = [system("You explore."), user("Read the parser.")]
    one = play.ask(opening, "", [("bash", {"command": "cat a"})])
    two = play.ask([*opening, *results(one), user("Answer now.")], "The fault is in strip_whitespace.")
    second = f"Repair this: {two.reply.content}"
    again = play.ask([*history, *results(parent)], "", [("task", {"prompt": second})], tools=(BASH, TASK))
    play.ask([system("You repair."), user(second)], "Repaired.")
    assert labels(play) == ["agent", "subagent", "subagent", "agent", "subagent"]
    assert infer_labels(play.graph)[4].parent_call == again.id


@pytest.mark.case("C8")
def test_several_agent_roots_are_all_trained() -> None:
    """C8: the system prompt changes in the middle; each root is the agent."""
    play = Play()
    history, _ = play.work(OPENING, 2)
    for number in range(2):
        history[0] = system(f"You fix bugs, mode {number}.")
        turn = play.ask(history, f"Mode {number} it is.", [("bash", {"command": "ls"})])
        assert turn.parent is None and turn.fork_reason == "system_changed"
        history += results(turn)
    assert labels(play) == ["agent"] * 4
    assert sorted(trained(play)) == [0, 1, 2, 3]
    assert "re-sends the history" in infer_labels(play.graph)[3].reason


def test_sub_agent_with_a_clock_stays_a_sub_agent() -> None:
    play = Play()
    _, parent = spawn(play, "Read the parser.")
    history = [system("You explore."), user("Read the parser.")]
    for number in range(3):
        history[0] = system(f"You explore at {number} o'clock.")
        history += results(play.ask(history, f"Look {number}.", [("bash", {"command": "ls"})]))
    inferred = infer_labels(play.graph)
    assert [inferred[i].label for i in range(1, 4)] == ["subagent"] * 3
    assert [inferred[i].parent_call for i in range(1, 4)] == [parent.id] * 3


@pytest.mark.case("C15")
def test_interleaved_agents_give_one_row_each() -> None:
    """C15: A, B, A, B is two chains, not a fork at each switch."""
    play = Play()
    histories = [[system("You explore."), user(f"Read file {name} please.")] for name in "AB"]
    _, parent = spawn(play, *(history[1].content for history in histories))
    for number in range(3):
        for history in histories:
            turn = play.ask(history, f"Step {number}.", [("bash", {"command": "ls"})])
            history += results(turn)
    rows = rows_of(play.graph)
    assert [row.metadata["trained_turns"] for row in rows] == [[0], [1, 3, 5], [2, 4, 6]]
    assert [row.metadata["parent_call"] for row in rows] == [None, parent.id, parent.id]
    assert_sound(play)


def test_probe() -> None:
    play = Play()
    play.ask([user("quota")], "x", tools=(), max_tokens=1)
    history, _ = play.work(OPENING, 2)
    play.ask(history, "y", max_tokens=1)  # how Claude Code counts tokens
    play.ask(history, "I see.")
    assert labels(play) == ["probe", "agent", "agent", "probe", "agent"]


def test_a_shrinking_limit_is_no_probe() -> None:
    """Pi's limit shrinks to 1 as the context fills (harnesses.md section 3)."""
    play = Play()
    history, _ = play.work(OPENING, 2)
    play.ask(history, "I", max_tokens=1)
    assert labels(play) == ["agent"] * 3


@pytest.mark.case("C4")
@pytest.mark.parametrize(
    ("text", "fields"),
    [("", {}), ("Hello?", {"delivered": False}), ("<tool_call>{", {"notes": ("malformed_tool_call",)})],
)
def test_retry_needs_evidence(text: str, fields: dict[str, Any]) -> None:
    """The discarded attempt is the retry's victim; the attempt that counts stays what it is."""
    play = Play()
    history, _ = play.work(OPENING, 1)
    lost = play.ask(history, text, **fields)
    again = play.ask(history, "There it is.")
    assert labels(play) == ["agent", "retry", "agent"]
    assert str(again.id) in infer_labels(play.graph)[lost.id].reason
    assert trained(play) == [0, again.id]
    assert_sound(play)


def test_concurrent_samples_are_no_retry() -> None:
    play = Play()
    history, _ = play.work(OPENING, 1)
    play.ask(history, "", start=5, end=9)
    play.ask(history, "There it is.", start=6, end=7)
    assert labels(play) == ["agent"] * 3


def test_qwens_memory_call() -> None:
    play = Play()
    final = play.ask(OPENING, "The bug is fixed.", tools=(BASH, TASK))
    play.ask([*OPENING, *results(final), user("What is worth remembering?")], "Nothing.", tools=(BASH,))
    assert labels(play) == ["agent", "summary"]


def test_preset_rule_wins() -> None:
    play = Play()
    play.work(OPENING, 1)
    play.ask([system("You judge."), user("Judge this.")], "Good.")
    rule = LabelRule(label="summary", system_contains="You judge")
    assert labels(play) == ["agent", "agent"]
    assert labels(play, hints=[rule]) == ["agent", "summary"]
    assert [row.metadata["turns"] for row in rows_of(play.graph, hints=[rule])] == [[0]]
    assert labels(play, hints=[LabelRule(label="title", without_tools=True)]) == ["agent", "agent"]


def test_policy_spans() -> None:
    play = Play()
    history, first = play.work(OPENING, 2)
    last = play.ask(history, "Done.", policy_version_end=1)
    (row,) = rows_of(play.graph)
    (start, end, *old), (begin, stop, *new) = row.metadata["policy_spans"]
    assert (old, new) == ([0, 0], [0, 1])
    assert (start, stop) == (0, len(row.response_ids))
    assert row.response_ids[begin:stop] == last.sampled_ids.tolist()
    assert row.response_ids[:end][-len(first[1].sampled_ids) :] == first[1].sampled_ids.tolist()


def test_a_user_who_goes_on_with_more_tools_is_no_memory_call() -> None:
    play = Play()
    final = play.ask(OPENING, "The bug is fixed.")
    play.ask([*OPENING, *results(final), user("Now write a test, please.")], "Done.", tools=(BASH, TASK))
    assert labels(play) == ["agent", "agent"]


def test_a_side_call_that_repeats_the_task_is_no_compaction() -> None:
    """The next root holds the words because the task does, not because the side call said them."""
    play = Play()
    history, _ = play.work(OPENING, 2)
    play.ask([user(f"What is asked? {history[3].content} {OPENING[1].content}")], OPENING[1].content, tools=())
    play.ask([system("You fix bugs, mode 2."), *history[1:]], "I go on.")
    assert labels(play) == ["agent", "agent", "title", "agent"]


def test_a_shrunken_limit_after_a_changed_system_text_is_no_probe() -> None:
    play = Play()
    history, _ = play.work(OPENING, 2)
    play.ask([system("You fix bugs, mode 2."), *history[1:]], "I", max_tokens=1)
    assert labels(play) == ["agent"] * 3


def test_same_task_under_another_system_text_is_no_sub_agent() -> None:
    play = Play()
    first = play.ask(OPENING, "", [("bash", {"command": "ls"})])
    play.ask([system("You fix bugs, mode 2."), OPENING[1]], "I start again.")
    play.ask([*OPENING, *results(first)], "Done.")
    assert labels(play) == ["agent"] * 3


def test_a_call_starts_nothing_before_it_is_made() -> None:
    play = Play()
    play.ask(OPENING, "", [("task", {"prompt": "Read the parser."})], tools=(BASH, TASK), start=0, end=5)
    play.ask([system("You explore."), user("Read the parser.")], "Seen.", start=3, end=9)
    assert labels(play) == ["agent", "agent"]
