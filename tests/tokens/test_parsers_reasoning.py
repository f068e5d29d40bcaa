"""Reasoning is split off in front of the calls, whoever wrote its open tag."""

from __future__ import annotations

import pytest

from drivetrain.messages import ToolSpec
from drivetrain.tokens.codec import TokenCodec
from drivetrain.tokens.parse import get_parser
from drivetrain.tokens.parsers.reasoning import STYLES

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


@pytest.mark.parametrize("style", STYLES)
def test_sampled_tags(style: str) -> None:
    tags = STYLES[style]
    text = f"{tags.open}\nso: 🙂\n{tags.close}\n\n  Go.\n{CALL}"
    parsed = get_parser(f"{style}+hermes")(text)
    assert (parsed.reasoning, parsed.content) == ("so: 🙂", "Go.")
    assert [call.name for call in parsed.calls] == ["f"]
    assert text[slice(*parsed.reasoning_spans[0])] == "so: 🙂"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("gap", ["", "\n"])
def test_the_open_tag_stood_in_the_prompt(style: str, gap: str) -> None:
    tags, parser = STYLES[style], get_parser(f"{style}+hermes")
    assert parser.opened_by(f"user: hi\nassistant: {tags.open}{gap}")
    assert not parser.opened_by(f"{tags.open}\n\n{tags.close}\n\n")
    assert not parser.opened_by(f"say {tags.open}\nassistant: ")
    parsed = parser(f"so\n{tags.close}\n\nGo.", opened=True)
    assert (parsed.reasoning, parsed.content, parsed.notes) == ("so", "Go.", ())
    assert parser(f"{tags.open}so{tags.close}Go.", opened=True).reasoning == "so"


def test_what_is_not_closed_is_reasoning_to_its_end() -> None:
    parser = get_parser("think+hermes")
    for text, opened in ((f"<think>plan {CALL}", False), (f"plan {CALL}", True)):
        parsed = parser(text, opened=opened)
        assert (parsed.content, parsed.calls, parsed.notes) == ("", (), ("truncated_reasoning",))
        assert parsed.reasoning == f"plan {CALL}"


def test_reasoning_cut_anywhere_loses_nothing() -> None:
    parser, text = get_parser("think+hermes"), f"<think>\na\nb\n</think>\n\nGo.\n{CALL}"
    for cut in range(len(text)):
        parsed = parser(text[:cut])
        assert not parsed.calls
        kept = parsed.reasoning + parsed.content
        dropped = text[:cut].removeprefix("<think>") if cut >= len("<think>") else text[:cut]
        assert kept.replace("\n", "") == dropped.replace("</think>", "").replace("\n", "")


@pytest.mark.parametrize("text", ["Go. <think>later</think>", "no tags </think> here", "<thinking>x</thinking>"])
def test_tags_elsewhere_are_content(text: str) -> None:
    assert get_parser("think+hermes")(text).content == text


def test_without_tools_reasoning_is_still_split_and_calls_are_content() -> None:
    parsed = get_parser("think+hermes")(f"<think>so</think>{CALL}", calls=False)
    assert (parsed.reasoning, parsed.content, parsed.calls, parsed.notes) == ("so", CALL, (), ())


def test_a_model_without_reasoning_keeps_its_tags() -> None:
    assert get_parser("hermes")("<think>so</think>Go.").content == "<think>so</think>Go."


def test_kimi_may_begin_its_calls_while_it_reasons() -> None:
    call = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    section = f"<|tool_calls_section_begin|>{call}<|tool_calls_section_end|>"
    parsed = get_parser("kimi_think+kimi_k2")(f"so {section}", opened=True)
    assert (parsed.reasoning, parsed.content, [c.name for c in parsed.calls]) == ("so ", "", ["f"])


def test_harmony_channels() -> None:
    text = (
        "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"
    )
    parsed = get_parser("harmony")(text)
    assert (parsed.reasoning, parsed.content, parsed.notes) == ("so", "I look.", ())
    assert [(call.name, call.arguments) for call in parsed.calls] == [("f", "{}")]
    cut = get_parser("harmony")("<|channel|>analysis<|message|>so")
    assert (cut.reasoning, cut.content, cut.notes) == ("so", "", ("truncated_reasoning",))
    assert get_parser("harmony")(text, calls=False).calls == ()


def test_cohere_response_tags_are_no_content() -> None:
    parsed = get_parser("cohere_thinking+cohere")(
        "<|START_THINKING|>so<|END_THINKING|><|START_RESPONSE|>Go.<|END_RESPONSE|>"
    )
    assert (parsed.reasoning, parsed.content) == ("so", "Go.")
    assert get_parser("cohere")("Go.<|END_RESPONSE|>", calls=False).content == "Go."


def test_the_codec_sees_the_end_of_the_prompt(codec: TokenCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "parser", get_parser("think+hermes"))
    ids = codec.tokenizer.encode("so\n</think>\n\nGo.")
    prompt = codec.tokenizer.encode("<|im_start|>assistant\n<think>\n")
    assert codec.parse(ids, tools=(), prompt=prompt).reasoning == "so"
    assert codec.parse(ids, tools=[ToolSpec("f")]).reasoning == ""
