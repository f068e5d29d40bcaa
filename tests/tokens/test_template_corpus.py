"""The check against the corpus: what it says is so, for random conversations too (case row A13)."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drivetrain.messages import Message, ToolCall
from drivetrain.tokens.check import Finding
from drivetrain.tokens.codec import TokenCodec
from drivetrain.tokens.shapes import BY_NAME, PROBE_TOOLS, shapes_like
from drivetrain.tokens.template import TemplateRefused
from tests.tokens.corpus import NAMES, ORIGINALS, check_of, script, templates, tokenizer

END = "ende7"
pytestmark = pytest.mark.skipif(not NAMES, reason="TRL, whose templates are the corpus, is not installed")
words = st.text(alphabet=st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="<>[]|\\"), max_size=12).map(
    lambda text: f"a{text}{END}"
)
counter = itertools.count()
ran: set[str] = set()
tried: Counter[str] = Counter()


@st.composite
def assistants(draw: st.DrawFn) -> Message:
    made = tuple(
        ToolCall(f"id{next(counter) % 10**7:07d}", PROBE_TOOLS[0].name, json.dumps({"path": draw(words)}))
        for _ in range(draw(st.sampled_from([0, 1, 1, 2])))
    )
    text = draw(words) if not made or draw(st.booleans()) else ""
    return Message("assistant", text, draw(words) if draw(st.booleans()) else "", made)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Message, list[Message]]:
    """An assistant turn and what follows it: the results of its calls, then others or nothing."""
    turn = draw(assistants())
    results = [Message("tool", draw(words), tool_call_id=call.id) for call in turn.tool_calls]
    roles = st.sampled_from(["user", "user", "system", "developer"])
    others = [Message(role, draw(words)) for role in draw(st.lists(roles, max_size=draw(st.sampled_from([0, 1, 2]))))]  # type: ignore[arg-type]
    if not results and not others:
        others = [Message("user", draw(words))]
    return turn, [*results, *others]


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[Message], Message, list[Message]]:
    history = [Message("system", draw(words))] if draw(st.booleans()) else []
    history.append(Message("user", draw(words)))
    for turn, tail in draw(st.lists(rounds(), max_size=1)):
        history += [turn, *tail]
    turn, tail = draw(rounds())
    return history, turn, tail


@pytest.mark.case("A5", "A6", "A13")
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(conversation=conversations(), cut=st.booleans())
def test_what_may_be_appended_is_what_a_full_render_appends(
    name: str, conversation: tuple[list[Message], Message, list[Message]], cut: bool
) -> None:
    """Prompt + sampled turn + delta is the full rendering, in text and ids, wherever the check promises it."""
    ran.add(name)
    history, turn, tail = conversation
    template, check = templates()[name], check_of(name)
    try:
        prompt = template.render(history, PROBE_TOOLS)
        spoken = template.render([*history, turn], PROBE_TOOLS, add_generation_prompt=False)
        full = template.render([*history, turn, *tail], PROBE_TOOLS)
    except TemplateRefused:
        return
    reasoned = any(message.reasoning for message in [*history, turn])
    shapes = set(shapes_like(tail, cut=cut, reasoning=reasoned)) - {"text_tool"}
    shapes |= {"text_tool"} if any(m.content and m.tool_calls for m in [*history, turn]) else set()
    verdicts = {check.finding(shape).verdict for shape in shapes}
    codec = TokenCodec(tokenizer(), template, check=check)
    if not verdicts <= {"append_only", "needs_rule"} or not spoken.startswith(prompt) or END not in spoken:
        return
    at = spoken.rindex(END) + len(END)
    ending = codec.boundary.cut(spoken[at:]) or codec.boundary.cut(full[at:])
    assert ending is not None
    said = spoken[len(prompt) : at] + ("" if cut else ending.before + ending.close.token)
    if cut and ending.before not in ("", codec.boundary.family.before_close):
        return  # cut inside a call: nothing completes that
    sampled = tokenizer().encode(said)
    delta = codec.continuation(sampled, tail, PROBE_TOOLS, turn.tool_calls)
    assert delta is not None
    tried[name] += 1
    assert prompt + said + tokenizer().decode(delta) == full
    assert tokenizer().encode(prompt + said) + delta == tokenizer().encode(full)


def test_the_property_was_tried() -> None:
    if len(ran) < 10:  # a selection of tests
        pytest.skip("the property test hardly ran")
    assert len(tried) > len(ran) / 2 and tried.total() > len(ran), tried


@pytest.mark.case("A13")
@pytest.mark.parametrize("name", ORIGINALS)
def test_negative_verdicts_are_real(name: str) -> None:
    for finding in check_of(name).findings:
        if finding.verdict in ("forks", "refused"):
            assert _differs(name, finding), finding


def _differs(name: str, finding: Finding) -> bool:
    """Whether a rendering by itself shows what the finding says; no boundary, no delta."""
    shape, template = BY_NAME[finding.shape], templates()[name]
    history = shape.history
    try:
        template.render([*history, *shape.tail], PROBE_TOOLS)
    except TemplateRefused:
        history = history[1:]
    try:
        prompt = template.render(history[:-1], PROBE_TOOLS)
        spoken = template.render(history, PROBE_TOOLS, add_generation_prompt=False)
        full = template.render([*history, *shape.tail], PROBE_TOOLS)
    except TemplateRefused:
        return finding.cause == "raised"
    if finding.cause == "dropped":
        return any(message.content not in full for message in shape.tail)
    turn = history[-1]
    said = [
        turn.content,
        *(call.arguments.split('"')[-2] if '"' in call.arguments else call.arguments[1:] for call in turn.tool_calls),
    ]
    hidden = not all(word in spoken for word in said)
    no_end = finding.cause == "tail" and full.startswith(prompt)
    return hidden or no_end or not spoken.startswith(prompt) or not full.startswith(spoken.rstrip())


@pytest.mark.parametrize("name", ORIGINALS)
def test_kept_text_leaves_the_environment_as_it_was(name: str) -> None:
    """Under `keep` the delta is what a full rendering ends with, whatever became of earlier words."""
    codec = TokenCodec(tokenizer(), templates()[name], check=check_of(name))
    for finding in check_of(name).findings:
        shape = BY_NAME[finding.shape]
        if finding.keep not in ("append_only", "needs_rule") or shape.name == "text_tool":
            continue  # (Gemma 4 moves the text behind the results)
        try:
            full = codec.template.render([*shape.history, *shape.tail], PROBE_TOOLS)
        except TemplateRefused:
            full = codec.template.render([*shape.history[1:], *shape.tail], PROBE_TOOLS)
        anchored = codec.template.behind_turn(shape.tail, PROBE_TOOLS, shape.history[-1].tool_calls)
        behind = codec.boundary.cut_tail(anchored) if anchored else None
        assert behind is not None
        assert full.endswith(behind.close.token + behind.rest), finding
        assert all(message.content.split()[0] in behind.rest for message in shape.tail), finding


@pytest.mark.case("A13")
def test_report_is_up_to_date() -> None:
    checks = {name: check_of(name) for name in NAMES}
    fresh: str = script().report(checks, [name for name in templates() if not templates()[name].renders_tools])
    assert script().REPORT.read_text(encoding="utf-8") == fresh, "run scripts/template-report"


def test_every_fork_of_the_corpus_has_its_reason() -> None:
    forks = {(c.family, f.shape) for c in map(check_of, NAMES) for f in c.findings if script().mark(f) == "F"}
    assert len(forks) > 10
    assert [fork for fork in sorted(forks) if not script().fork_reason(*fork)] == []


@pytest.mark.case("A13")
def test_every_template_of_the_corpus_has_a_family() -> None:
    assert {check_of(name).family for name in NAMES} >= {"chatml", "llama3", "gemma", "gemma4", "glm", "harmony", "phi"}


@pytest.mark.case("A13")
@pytest.mark.parametrize(
    ("name", "later_user"),
    [("qwen3_instruct_2507", True), ("qwen3_8", True), ("qwen3_training", True), ("qwen3", False), ("qwen3_6", False),
     ("glm4moe", False), ("gptoss", False), ("nemotron_3_nano", False)],
)  # fmt: skip
def test_a_later_user_turn_as_published(name: str, later_user: bool) -> None:
    """Column "user2" of the published comparison: which templates keep reasoning over a later user turn."""
    assert (check_of(name).finding("think_user").verdict == "append_only") is later_user
