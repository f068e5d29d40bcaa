"""The response templates TRL ships, read by transformers, as an oracle for our parsers.

transformers takes a completion apart by a declarative ``response_template``. For each one that TRL ships, the parser
we choose for the same chat template must give the same reasoning, content and calls. Where it does not, the reason is
listed here and the difference is asserted, so that the list cannot outlive it.
"""

from __future__ import annotations

import ast
import functools
import json
from typing import Any

import pytest

from drivetrain.messages import Message, ToolCall, ToolSpec
from drivetrain.tokens.parse import Parsed, get_parser
from drivetrain.tokens.template import TemplateRefused, shared_start, tool_to_template
from tests.tokens.test_parsers_templates import CHOSEN, CLOSE, FOLDER, needs_trl, template

pytestmark = needs_trl

TOOL = ToolSpec(
    "write_file",
    "Write a file.",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "n": {"type": "integer"},
            "flag": {"type": "boolean"},
            "ratio": {"type": "number"},
            "items": {"type": "array", "items": {"type": "integer"}},
            "o": {"type": "object"},
        },
    },
)


def _call(index: int = 0, **arguments: Any) -> ToolCall:
    return ToolCall(f"call{index:05d}", TOOL.name, json.dumps(arguments))


ANSWERS = {
    "text": Message("assistant", "Just an answer.\n\nIn two parts: é 🙂."),
    "think_text": Message("assistant", "So.", "Let me see.\nYes."),
    "call": Message("assistant", "", "", (_call(path="a.py", n=3),)),
    "text_call": Message("assistant", "I look.", "", (_call(path="é b/c.py", flag=True),)),
    "think_call": Message("assistant", "", "Hm.", (_call(path="x", ratio=1.5, items=[1, 2], o={"k": "v"}),)),
    "calls": Message("assistant", "", "", (_call(0, path="a"), _call(1, path="75001", n=7))),
    "no_arguments": Message("assistant", "", "", (_call(),)),
    "odd": Message("assistant", "", "", (_call(path="say \"hi\"\n'x' {1}, [2] \\ end"),)),
}
USES = {
    "deepseek_r1_distill_template": ["deepseek_r1_distill"],
    "gemma4_template": ["gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5"],
    "glm4moe_template": ["glm4moe"],
    "gptoss_template": ["gptoss"],
    "lfm2_2_5_template": ["lfm2_v2", "lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl"],
    "llama3_template": ["llama3_1", "llama3_2"],
    "nemotron_3_template": ["nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra", "nemotron_3_5_lightning"],
    "qwen3_5_template": ["qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8"],
    "qwen3_template": ["qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_vl"],
}
"""Which chat templates TRL reads by which response template (trl.chat_template_utils.add_response_schema)."""

PAIRS = [(name, stem) for name, stems in USES.items() for stem in stems]
_ESCAPES = "the template escapes quotes in a string; transformers ends the string at the first of them"
DIFFERS = {("lfm2_v2", "odd"): _ESCAPES, ("lfm2_2_5_vl", "odd"): _ESCAPES}
"""Well-formed answers that the two read differently, and why ours is kept."""
UNREADABLE = {("lfm2_2_5", "odd"), ("lfm2_2_5_v2", "odd")}
"""Renderings that nobody can read back: the template writes a string between quotes without escaping it."""


@functools.cache
def response_templates() -> dict[str, dict[str, Any]]:
    """The ``*_template`` dicts of TRL, by name. Importing TRL takes half a minute, so only these lines are run."""
    assert FOLDER is not None
    wanted = ast.Module([], [])
    for node in ast.parse((FOLDER.parent / "chat_template_utils.py").read_text("utf-8")).body:
        names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        is_part = all(name == "_" or name.startswith(("_LFM2", "_XML")) for name in names)
        is_template = (
            isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and names[0].endswith("_template")
        )
        if names and isinstance(node, ast.Assign | ast.For) and (is_part or is_template):
            wanted.body.append(node)
    found: dict[str, Any] = {"_SUPPORTS_PARSE_RESPONSE_TOOLS": True}
    exec(compile(wanted, "trl", "exec"), found)
    return {name: value for name, value in found.items() if name.endswith("_template")}


def spoken(stem: str, answer: Message) -> tuple[str, str] | None:
    """Prompt and completion (with its end) of an answer; None when the template cannot say it."""
    if stem == "deepseek_r1_distill":  # its prompt opens the reasoning, which its rendering of a past turn drops
        prompt = template(stem).render([Message("user", "question")])
        said = f"{answer.reasoning}\n</think>\n\n{answer.content}<｜end▁of▁sentence｜>"
        return None if answer.tool_calls else (prompt, said)
    chat, user = template(stem), [Message("user", "question")]
    try:
        prompt = chat.render(user, [TOOL])
        whole = chat.render([*user, answer], [TOOL], add_generation_prompt=False)
    except TemplateRefused:
        return None
    shared = len(shared_start(prompt, whole))
    return whole[:shared], whole[shared:]


Reading = tuple[str, str, list[tuple[str, Any]]]
"""Reasoning, content and calls; white space around the first two does not count."""


def ours(stem: str, prompt: str, text: str) -> tuple[Reading, Parsed]:
    parser = get_parser(CHOSEN[stem])
    parsed = parser(CLOSE.sub("", text), [TOOL], opened=parser.opened_by(prompt))
    calls = [(call.name, json.loads(call.arguments)) for call in parsed.calls]
    return (parsed.reasoning.strip(), parsed.content.strip(), calls), parsed


def theirs(name: str, prompt: str, text: str) -> Reading | None:
    """What transformers reads; None when it raises (TRL then takes the whole text as content)."""
    from transformers.utils.chat_parsing import parse_response

    try:
        read = parse_response(text, response_templates()[name], prefix=prompt, tools=[tool_to_template(TOOL)])
    except ValueError:
        return None
    calls = [call["function"] for call in read.get("tool_calls") or []]
    reasoning = read.get("reasoning_content") or read.get("thinking") or ""
    return reasoning.strip(), (read.get("content") or "").strip(), [(c.get("name"), c.get("arguments")) for c in calls]


def test_all_response_templates_are_tried() -> None:
    assert sorted(USES) == sorted(response_templates())
    tried = [spoken(stem, answer) for _, stem in PAIRS for answer in ANSWERS.values()]
    assert sum(text is not None for text in tried) >= 180


@pytest.mark.parametrize(("name", "stem"), PAIRS)
def test_well_formed_answers_are_read_alike(name: str, stem: str) -> None:
    for kind, answer in ANSWERS.items():
        found = spoken(stem, answer)
        if found is None or (stem, kind) in UNREADABLE:
            continue
        mine, parsed = ours(stem, *found)
        assert not any(note.endswith("tool_call") for note in parsed.notes), (kind, found)
        assert (mine == theirs(name, *found)) is ((stem, kind) not in DIFFERS), (
            kind,
            found[1],
            mine,
            theirs(name, *found),
        )


@pytest.mark.parametrize(("name", "stem"), PAIRS)
def test_malformed_answers_stay_whole(name: str, stem: str) -> None:
    """Cut or broken calls: transformers raises, drops the text or returns half a call; ours is text and says so."""
    for kind, answer in ANSWERS.items():
        found = spoken(stem, answer)
        if found is None or not answer.tool_calls or TOOL.name not in found[1]:
            continue
        bare = CLOSE.sub("", found[1])
        for broken in (bare[:-14], found[1].replace('"path": "', '"path" "', 1)):
            mine, parsed = ours(stem, found[0], broken)
            if broken == found[1] or mine == theirs(name, found[0], broken):
                continue
            assert any(note.endswith("tool_call") for note in parsed.notes), (kind, broken, mine)
            left = CLOSE.sub("", broken).rstrip()
            assert left.endswith(mine[1].splitlines()[-1].strip()) if mine[1] else mine[2], (kind, broken, mine)
            assert all(call in [(c.name, json.loads(c.arguments)) for c in answer.tool_calls] for call in mine[2])
