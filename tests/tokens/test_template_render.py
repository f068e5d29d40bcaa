"""Rendering: whole prompts, tails, and what a template may not do."""

from __future__ import annotations

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.errors import ConfigError
from drivetrain.messages import Message, ToolCall, ToolSpec
from drivetrain.tokens.boundary import detect_boundary
from drivetrain.tokens.codec import TokenCodec, ToolsDropped
from drivetrain.tokens.template import ChatTemplate, TemplateRefused

PLAIN_CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
REWRITING = (  # drops every assistant text but the last message: the shape of reasoning templates
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + "
    "('' if m['role'] == 'assistant' and not loop.last else m['content']) + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BASH = ToolSpec("bash", "run a command", {"type": "object", "properties": {"command": {"type": "string"}}})
text = st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=40).filter(lambda t: "<|" not in t)
tails = st.lists(
    st.one_of(
        st.builds(lambda c: Message("tool", c, tool_call_id="x"), text),
        st.builds(lambda c: Message("user", c), text),
    ),
    min_size=1,
    max_size=4,
)


def test_plain_template_drops_tools_and_is_refused(codec: TokenCodec) -> None:
    template = ChatTemplate(PLAIN_CHATML)
    assert not template.renders_tools
    with pytest.raises(ToolsDropped, match="renders no tools"):
        TokenCodec(codec.tokenizer, template).first_prompt([Message("user", "hi")], [BASH])


def test_tools_reach_the_prompt(codec: TokenCodec) -> None:
    prompt = codec.tokenizer.decode(codec.first_prompt([Message("user", "hi")], [BASH]))
    assert '"name": "bash"' in prompt and "run a command" in prompt


@given(history=text, sampled=text, tail=tails)
def test_tail_is_what_a_full_render_appends(codec: TokenCodec, history: str, sampled: str, tail: list[Message]) -> None:
    """Stored ids + delta spell the same text as a full rendering, for tails of tool and user messages."""
    head = [Message("user", history)]
    calls = tuple(ToolCall(f"c{i}", "bash", "{}") for i, m in enumerate(tail) if m.role == "tool")
    said = Message("assistant", sampled, tool_calls=calls)
    whole = codec.template.render([*head, said, *tail], [BASH])
    prompt = codec.template.render(head, [BASH])
    stored = whole[len(prompt) : whole.index("<|im_end|>", len(prompt)) + len("<|im_end|>")]
    delta = codec.continuation(codec.tokenizer.encode(stored), tail, [BASH], calls)
    assert delta is not None
    assert prompt + stored + codec.tokenizer.decode(delta) == whole


@given(sampled=st.lists(st.integers(3, 400), max_size=20), stopped=st.booleans(), tail=tails)
def test_continuation_closes_the_turn_exactly_once(
    codec: TokenCodec, sampled: list[int], stopped: bool, tail: list[Message]
) -> None:
    close = codec.boundary.close_id
    ids = [*sampled, close] if stopped else sampled
    delta = codec.continuation(ids, tail, [BASH])
    assert delta is not None
    joined = [*ids, *delta][len(sampled) :]
    assert joined[0] == close
    assert joined[1:2] != [close]
    assert codec.tokenizer.decode(joined[1:]).startswith("\n<|im_start|>")


def test_rewriting_template_is_not_continued(codec: TokenCodec) -> None:
    rewriting = TokenCodec(codec.tokenizer, ChatTemplate(REWRITING))
    assert rewriting.continuation([5, rewriting.boundary.close_id], [Message("user", "next")], ()) is None


def test_template_errors_are_typed() -> None:
    with pytest.raises(ConfigError, match="does not compile"):
        ChatTemplate("{% if %}")
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(TemplateRefused, match="roles must alternate"):
        template.render([Message("user", "x")])


def test_unknown_family_is_refused(codec: TokenCodec) -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}[/end]{% endfor %}")
    with pytest.raises(ConfigError, match="no known template family"):
        detect_boundary(template, codec.tokenizer)


def test_transformers_extensions_render() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m['content'] | tojson }}{% endgeneration %}{% endfor %}"
    )
    assert template.render([Message("user", "é<&"), Message("user", "no")]) == '"é<&"'


def test_sandbox_blocks_attribute_tricks() -> None:
    template = ChatTemplate("{{ messages.__class__.__mro__ }}")
    with pytest.raises((TemplateRefused, jinja2.exceptions.SecurityError)):
        template.render([Message("user", "x")])


def test_arguments_are_decoded_before_rendering(codec: TokenCodec) -> None:
    call = ToolCall("c", "bash", '{"command":"echo \\u00e9"}')
    rendered = codec.template.render([Message("user", "q"), Message("assistant", "", tool_calls=(call,))], [BASH])
    assert '"arguments": {"command": "echo é"}' in rendered
