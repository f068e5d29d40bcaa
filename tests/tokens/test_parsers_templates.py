"""The chat templates TRL ships: which parser each gets, and that it reads what the template writes."""

from __future__ import annotations

import functools
import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from drivetrain.messages import Message, ToolCall, ToolSpec
from drivetrain.tokens.parse import choose_parser, explain_choice, get_parser
from drivetrain.tokens.template import ChatTemplate, TemplateRefused

_TRL = find_spec("trl")
FOLDER = Path(_TRL.origin).parent / "chat_templates" if _TRL and _TRL.origin else None
needs_trl = pytest.mark.skipif(FOLDER is None or not FOLDER.is_dir(), reason="TRL's chat templates are not installed")

CHOSEN = {
    "cohere": "text",
    "cohere2": "cohere",
    "deepseek_r1_distill": "think+deepseek",
    "deepseekv3": "think+deepseek",
    "diffusion_gemma": "gemma_channel+gemma4",
    "gemma": "text",
    "gemma3": "text",
    "gemma4": "gemma_channel+gemma4",
    "gemma4_v2": "gemma4",
    "gemma4_v3": "gemma_channel+gemma4",
    "gemma4_v4": "gemma_channel+gemma4",
    "gemma4_v5": "gemma_channel+gemma4",
    "glm4moe": "think+glm",
    "gptoss": "harmony",
    "idefics3": "text",
    "lfm2": "lfm2",
    "lfm2_2_5": "think+lfm2",
    "lfm2_2_5_v2": "think+lfm2",
    "lfm2_2_5_vl": "think+lfm2",
    "lfm2_v2": "lfm2",
    "llama3": "text",
    "llama3_1": "llama_json",
    "llama3_2": "llama_json",
    "llava_next": "text",
    "muse_glimmer": "muse",
    "nemotron_3_5_lightning": "think+qwen_xml",
    "nemotron_3_nano": "think+qwen_xml",
    "nemotron_3_super": "think+qwen_xml",
    "nemotron_3_ultra": "think+qwen_xml",
    "phi3": "text",
    "phi3_5": "text",
    "qwen2_5": "hermes",
    "qwen2_5_vl": "text",
    "qwen3": "think+hermes",
    "qwen3_5_nothink": "think+qwen_xml",
    "qwen3_5_think": "think+qwen_xml",
    "qwen3_6": "think+qwen_xml",
    "qwen3_8": "think+qwen_xml",
    "qwen3_instruct_2507": "hermes",
    "qwen3_vl": "hermes",
    "smolvlm": "text",
}
"""Parser per template; a training variant gets that of its original."""

STEMS = sorted(path.stem for path in FOLDER.glob("*.jinja")) if FOLDER else []
RENDERS_CALLS = [s for s in STEMS if CHOSEN.get(s.removesuffix("_training"), "text") not in ("text", "cohere")]
NO_CALLS = {"lfm2", "deepseek_r1_distill"}  # they declare the format (tool list, role) and drop an assistant's calls
REFUSES = {"deepseekv3"}  # its original concatenates arguments as text; the training variant takes them as a mapping
ONE_CALL = {"llama3_1", "llama3_2", "gptoss"}
UNESCAPED = {"lfm2_2_5", "lfm2_2_5_v2"}  # they write a string between quotes without escaping it
NO_REASONING = {"qwen2_5", "qwen3_instruct_2507", "qwen3_vl", "lfm2_v2", "llama3_1", "llama3_2", "gptoss", "gemma4_v2"}
NO_REASONING |= {"deepseekv3", "lfm2_2_5"}
ANSWER_LEFT_OUT = {"llama3_1", "llama3_2", "muse_glimmer"}  # they render the calls of a message only
ANSWER_AS_ANALYSIS = {"gptoss"}

TOOLS = [
    ToolSpec(
        "write_file",
        "Write a file.",
        {
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "where"},
                "n": {"type": "integer", "description": "how many"},
                "flag": {"type": "boolean", "description": "whether"},
                "nothing": {"type": "null", "description": "nothing"},
                "ratio": {"type": "number", "description": "a number"},
                "items": {"type": "array", "items": {"type": "number"}, "description": "numbers"},
                "o": {"type": "object", "description": "anything", "properties": {"k": {"type": "string"}}},
            },
            "required": ["path"],
        },
    )
]
CLOSE = re.compile(
    r"(?:<\|im_end\|>|<\|eot_id\|>|<\|eom_id\|>|<｜end▁of▁sentence｜>|<\|observation\|>|<\|call\|>|<\|return\|>"
    r"|<\|tool_response>|<end_of_turn>|<\|end\|>\s*<eos>|<turn\|>|<\|eot\|>|<\|END_OF_TURN_TOKEN\|>)\s*\Z"
)


@functools.cache
def template(name: str) -> ChatTemplate:
    assert FOLDER is not None
    source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, special_tokens={"bos_token": "<bos>", "eos_token": "<eos>"})


def sampled(chat: ChatTemplate, answer: Message, ask: str = "question") -> tuple[str, str]:
    """Prompt and completion of an assistant message, as if a policy had sampled what the template writes."""
    user = [Message("user", ask)]
    prompt = chat.render(user, TOOLS, add_generation_prompt=True)
    whole = chat.render([*user, answer], TOOLS, add_generation_prompt=False)
    pairs = enumerate(zip(prompt, whole, strict=False))
    shared = next((i for i, (a, b) in pairs if a != b), len(prompt))
    return whole[:shared], CLOSE.sub("", whole[shared:])


@needs_trl
def test_the_parser_of_every_template() -> None:
    assert FOLDER is not None
    found = {path.stem: choose_parser(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.jinja")}
    expected = {name: CHOSEN.get(name.removesuffix("_training"), "?") for name in found}
    assert found == expected
    assert {name for name in CHOSEN if name not in found} == set()


@needs_trl
@pytest.mark.parametrize("stem", RENDERS_CALLS)
def test_what_a_template_writes_is_read_back(stem: str) -> None:
    assert FOLDER is not None
    name, chat = stem.removesuffix("_training"), template(stem)
    path = "a/b.py" if name in UNESCAPED else "é/'ü' \"q\" </tool_call>\n  x 🙂\\"
    arguments = {
        "path": path, "n": 12, "flag": True, "nothing": None, "ratio": 1.5,
        "items": [1, 2.5, []], "o": {"k": path, "b": [True, {"z": "y"}]},
    }  # fmt: skip
    calls = [ToolCall("call00001", "write_file", json.dumps(arguments)), ToolCall("call00002", "write_file", "{}")]
    if name in ONE_CALL:
        calls.pop()
    answer = Message("assistant", "Let me see.", "I reason.", tuple(calls))
    try:
        prompt, text = sampled(chat, answer)
    except TemplateRefused:
        assert stem in REFUSES
        return
    parser = get_parser(choose_parser((FOLDER / f"{stem}.jinja").read_text(encoding="utf-8")))
    parsed = parser(text, TOOLS, opened=parser.opened_by(prompt))
    if name in NO_CALLS:
        assert "write_file" not in text
        return
    assert [(call.name, json.loads(call.arguments)) for call in parsed.calls] == [
        (call.name, json.loads(call.arguments)) for call in calls
    ]
    reasoning = "" if name in NO_REASONING else "I reason."
    said = "" if name in ANSWER_LEFT_OUT | ANSWER_AS_ANALYSIS else "Let me see."
    if name in ANSWER_AS_ANALYSIS:
        reasoning = "Let me see."
    assert (parsed.reasoning, parsed.content, parsed.notes) == (reasoning, said, ())


@needs_trl
@pytest.mark.parametrize("name", sorted({*CHOSEN} - {"idefics3", "llava_next", "smolvlm"}))
def test_a_plain_answer_is_content(name: str) -> None:
    assert FOLDER is not None
    chat = template(name)
    prompt, text = sampled(chat, Message("assistant", "Just an answer."))
    parser = get_parser(CHOSEN[name])
    parsed = parser(text, TOOLS, opened=parser.opened_by(prompt))
    if parser.opened_by(prompt) and "</think>" not in text:
        assert name in ("deepseekv3", "deepseek_r1_distill")  # they drop the tags of an earlier turn's reasoning
        return
    assert parsed.content.strip() == "Just an answer."
    assert (parsed.calls, parsed.notes) == ((), ())


def test_hermes_needs_its_json_and_the_fallback_says_so() -> None:
    assert choose_parser('<tool_call>\n{"name": <n>, "arguments": <a>}\n</tool_call>') == "hermes"
    assert choose_parser("{{ '<tool_call>' }}") == "text"
    choice = explain_choice("{{ messages[0].content }}")
    assert (choice.parser, choice.known) == ("text", False)
    assert "served as text" in choice.reason


def test_a_comment_decides_nothing() -> None:
    assert choose_parser("{# unlike <tool_call><function=f> #}{{ '<tool_call>' + '\"arguments\"' }}") == "hermes"


@pytest.mark.parametrize(
    ("template_text", "parser"),
    [
        ("[TOOL_CALLS] [THINK]", "mistral_think+mistral"),
        ("<|tool_calls_section_begin|> <think>", "kimi_think+kimi_k2"),
        ("<minimax:tool_call> <think>", "think+minimax"),
        ("<start_function_call>", "functiongemma"),
        ("<|START_ACTION|> <|START_THINKING|>", "cohere_thinking+cohere"),
        ("<|eot|> [func_name1(params_name1=params_value1)]", "llama_pythonic"),
        ("<tool_call> <function= <think>", "think+qwen_xml"),
    ],
)
def test_markers_of_templates_outside_the_corpus(template_text: str, parser: str) -> None:
    assert choose_parser(template_text) == parser
    assert get_parser(parser).name == parser
