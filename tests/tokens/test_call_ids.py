"""Tool-call ids in the prompt: in the model's own form, and the sampled one first of all."""

from __future__ import annotations

import re

import pytest

from drivetrain.messages import Message, ToolCall
from drivetrain.tokens.call_ids import in_style
from drivetrain.tokens.codec import TokenCodec
from drivetrain.tokens.parse import get_parser
from drivetrain.tokens.shapes import PROBE_TOOLS
from drivetrain.tokens.template import ChatTemplate
from tests.tokens.corpus import tokenizer
from tests.tokens.test_boundary import written

CALLS = "{% for c in m.tool_calls %}"
NINE = "{% if c.id|length != 9 %}{{ raise_exception('ids have length 9') }}{% endif %}"
MISTRAL = written(
    "{% if m.tool_calls %}" + CALLS + NINE + "[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]"
    "{{ c.function.arguments|tojson }}{% endfor %}</s>"
    "{% elif m.role == 'tool' %}{% if m.tool_call_id|length != 9 %}{{ raise_exception('length 9') }}{% endif %}"
    "[TOOL_RESULTS]{{ m.tool_call_id }}[TOOL_CONTENT]{{ m.content }}[/TOOL_RESULTS]"
    "{% elif m.role == 'assistant' %}{{ m.content }}</s>{% else %}[INST]{{ m.content }}[/INST]{% endif %}",
    "",
)
KIMI = written(
    "<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>{% if m.tool_calls %}<|tool_calls_section_begin|>" + CALLS +
    "<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments|tojson }}<|tool_call_end|>"
    "{% endfor %}<|tool_calls_section_end|>{% elif m.role == 'tool' %}## Return of {{ m.tool_call_id }}\n{% endif %}"
    "{{ m.content }}<|im_end|>",
    "<|im_assistant|>assistant<|im_middle|>",
)  # fmt: skip
OURS = "call_0123abcdt0001c00"
SERVED = ToolCall(OURS, "read_file", '{"path": "a"}')
ASK = Message("user", "read a")
TURN = Message("assistant", "", tool_calls=(SERVED,))
RESULT = Message("tool", "text of a", tool_call_id=OURS)


def continued(chat: ChatTemplate, parser: str, said: str, result: Message = RESULT) -> str:
    codec = TokenCodec(tokenizer(), chat, parser=parser)
    delta = codec.continuation(tokenizer().encode(said), [result], PROBE_TOOLS, [SERVED])
    assert delta is not None
    return tokenizer().decode(delta)


def test_mistral_refuses_our_ids_so_they_are_written_in_nine() -> None:
    assert (MISTRAL.wire.call_ids, ChatTemplate("{{ messages }}").wire.call_ids) == ("nine", "any")
    text = MISTRAL.render([ASK, TURN, RESULT], PROBE_TOOLS)
    ids = re.findall(r"\[CALL_ID\](\w+)|\[TOOL_RESULTS\](\w+)", text)
    assert ids[0][0] == ids[1][1] and re.fullmatch(r"[A-Za-z0-9]{9}", ids[0][0])
    assert OURS not in text


def test_a_result_answers_the_id_that_was_sampled() -> None:
    said = '[TOOL_CALLS]read_file[CALL_ID]AbC123xyz[ARGS]{"path": "a"}</s>'
    assert continued(MISTRAL, "mistral", said) == "[TOOL_RESULTS]AbC123xyz[TOOL_CONTENT]text of a[/TOOL_RESULTS]"
    listed = '[TOOL_CALLS][{"name": "read_file", "arguments": {"path": "a"}, "id": "Zz9Zz9Zz9"}]</s>'
    assert "[TOOL_RESULTS]Zz9Zz9Zz9[" in continued(MISTRAL, "mistral", listed)
    renamed = Message("tool", "text of a", tool_call_id="toolu_1")
    assert "[TOOL_RESULTS]AbC123xyz[" in continued(MISTRAL, "mistral", said, renamed)
    broken = continued(MISTRAL, "mistral", "[TOOL_CALLS]read_file[ARGS]{oops</s>")
    assert re.search(r"\[TOOL_RESULTS\]\w{9}\[", broken), "no id was sampled: one of the right form"
    kimi = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.read_file:7<|tool_call_argument_begin|>"
        '{"path": "a"}<|tool_call_end|><|tool_calls_section_end|><|im_end|>'
    )
    assert "## Return of functions.read_file:7\ntext of a<|im_end|>" in continued(KIMI, "kimi_k2", kimi)


def test_kimi_counts_calls_over_the_conversation() -> None:
    again = Message("assistant", "", tool_calls=(ToolCall("call_0123abcdt0002c00", "write_file", "{}"),))
    text = KIMI.render([ASK, TURN, RESULT, again], PROBE_TOOLS)
    assert re.findall(r"functions\.\w+:\d+", text) == ["functions.read_file:0"] * 2 + ["functions.write_file:1"]


@pytest.mark.parametrize(
    ("parser", "text", "own"),
    [
        ("mistral", '[TOOL_CALLS]f[CALL_ID]AbC123xyz[ARGS]{"x": 1}', "AbC123xyz"),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"x": 1}', ""),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "123456789"}]', "123456789"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool_call>', ""),
        (
            "kimi_k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
            "<|tool_call_end|><|tool_calls_section_end|>",
            "functions.f:0",
        ),
    ],
)
def test_parsers_return_the_sampled_id(parser: str, text: str, own: str) -> None:
    parsed = get_parser(parser)(text, PROBE_TOOLS)
    assert [(call.name, call.id) for call in parsed.calls] == [("f", own)]


def test_ids_that_have_the_form_stay() -> None:
    call = ToolCall("AbC123xyz", "f", "{}")
    messages = [Message("assistant", tool_calls=(call,)), Message("tool", "r", tool_call_id="AbC123xyz")]
    assert list(in_style(messages, "nine")) == messages
    assert in_style(messages, "any") is messages


def test_a_template_that_writes_its_generation_prompt_unasked() -> None:
    """Command R7B: the family is found all the same, and turns continue."""
    unasked = ChatTemplate(
        "{% for m in messages %}<|START_OF_TURN_TOKEN|>{{ m.role }}|{{ m.content }}"
        "{% if m.role == 'assistant' %}<|END_RESPONSE|>{% endif %}<|END_OF_TURN_TOKEN|>{% endfor %}"
        "<|START_OF_TURN_TOKEN|>assistant|"
    )
    codec = TokenCodec(tokenizer(), unasked)
    assert codec.boundary.family.name == "cohere2"
    said = tokenizer().encode("ok<|END_RESPONSE|><|END_OF_TURN_TOKEN|>")
    delta = codec.continuation(said, [Message("user", "next")], ())
    assert delta is not None
    assert (
        tokenizer().decode(delta)
        == "<|START_OF_TURN_TOKEN|>user|next<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|>assistant|"
    )
