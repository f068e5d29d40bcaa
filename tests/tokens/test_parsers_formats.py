"""Every call format: what is rendered is read back; what is cut or broken stays text; nothing raises or vanishes."""

from __future__ import annotations

import itertools
import json
import keyword
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.messages import ToolSpec
from drivetrain.tokens.parse import Parsed, get_parser
from drivetrain.tokens.parsers.reasoning import STYLES
from drivetrain.tokens.parsers.registry import DIALECTS, SCANS, TYPED_SCANS

Calls = list[tuple[str, dict[str, Any]]]
Render = Callable[[Calls], str]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _tags(calls: Calls, block: str, invoke: str, parameter: str) -> str:
    out = []
    for name, arguments in calls:
        inner = "".join(parameter.format(key=key, value=_bare(value)) for key, value in arguments.items())
        out.append(invoke.format(name=name, inner=inner))
    return block.format(calls="\n".join(out))


def hermes(calls: Calls) -> str:
    blocks = [_json({"name": name, "arguments": arguments}) for name, arguments in calls]
    return "\n".join(f"<tool_call>\n{block}\n</tool_call>" for block in blocks)


def qwen_xml(calls: Calls) -> str:
    parameter = "<parameter={key}>\n{value}\n</parameter>\n"
    block = "<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"
    return _tags(calls, "{calls}", block, parameter)


def minimax(calls: Calls) -> str:
    parameter = '<parameter name="{key}">{value}</parameter>\n'
    block = "<minimax:tool_call>\n{calls}\n</minimax:tool_call>"
    return _tags(calls, block, '<invoke name="{name}">\n{inner}</invoke>', parameter)


def glm(calls: Calls) -> str:
    parameter = "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
    return _tags(calls, "{calls}", "<tool_call>{name}\n{inner}</tool_call>", parameter)


def llama_json(calls: Calls) -> str:
    return "; ".join(_json({"name": name, "parameters": arguments}) for name, arguments in calls)


def llama_python_tag(calls: Calls) -> str:
    return "<|python_tag|>" + llama_json(calls)


def llama_pythonic(calls: Calls) -> str:
    pairs = [(name, ", ".join(f"{key}={value!r}" for key, value in arguments.items())) for name, arguments in calls]
    return "[" + ", ".join(f"{name}({arguments})" for name, arguments in pairs) + "]"


def lfm2(calls: Calls) -> str:
    return f"<|tool_call_start|>{llama_pythonic(calls)}<|tool_call_end|>"


def mistral_list(calls: Calls) -> str:
    return "[TOOL_CALLS]" + _json([{"name": n, "arguments": a, "id": "abcdefghi"} for n, a in calls])


def mistral_args(calls: Calls) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{_json(arguments)}" for name, arguments in calls)


def mistral_call_id(calls: Calls) -> str:
    return "".join(f"[TOOL_CALLS]{name}[CALL_ID]abc123def[ARGS]{_json(arguments)}" for name, arguments in calls)


def _section(begin: str, end: str, calls: list[str]) -> str:
    return begin + "\n".join(calls) + end


def deepseek_v3(calls: Calls) -> str:
    body = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
    return _section("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", [body.format(n, _json(a)) for n, a in calls])


def deepseek_v31(calls: Calls) -> str:
    body = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    return _section("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", [body.format(n, _json(a)) for n, a in calls])


def kimi_k2(calls: Calls) -> str:
    body = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
    inner = [body.format(n, i, _json(a)) for i, (n, a) in enumerate(calls)]
    return _section("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", inner)


def _gemma(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return quote + value + quote
    if isinstance(value, list):
        return "[" + ",".join(_gemma(item, quote) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_gemma(item, quote)}" for key, item in value.items()) + "}"
    return _json(value)


def gemma4(calls: Calls) -> str:
    quote = '<|"|>'
    return "".join(f"<|tool_call>call:{name}{_gemma(arguments, quote)}<tool_call|>" for name, arguments in calls)


def functiongemma(calls: Calls) -> str:
    blocks = [f"call:{name}{_gemma(arguments, '<escape>')}" for name, arguments in calls]
    return "".join(f"<start_function_call>{block}<end_function_call>" for block in blocks)


def cohere_action(calls: Calls) -> str:
    items = [{"tool_call_id": str(i), "tool_name": n, "parameters": a} for i, (n, a) in enumerate(calls)]
    return f"<|START_ACTION|>{_json(items)}<|END_ACTION|>"


def cohere_fence(calls: Calls) -> str:
    return f"Action: ```json\n{_json([{'tool_name': n, 'parameters': a} for n, a in calls])}\n```"


def harmony(calls: Calls) -> str:
    head = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}<|call|>"
    return "<|start|>assistant".join(head.format(name, _json(arguments)) for name, arguments in calls)


def harmony_role(calls: Calls) -> str:
    head = " to=functions.{}<|channel|>commentary json<|message|>{}<|call|>"
    return "<|start|>assistant".join(head.format(name, _json(arguments)) for name, arguments in calls)


def muse(calls: Calls) -> str:
    parameter = '<atem:parameter name="{key}">{value}</atem:parameter>\n'
    invoke = '<atem:invoke name="{name}">\n{inner}</atem:invoke>'
    block = "<atem:function_calls>\n{calls}\n</atem:function_calls>"
    messages = [f" to={name}<|message|>{_tags([(name, a)], block, invoke, parameter)}<|eom|>" for name, a in calls]
    return "<|start|>assistant".join(messages)


JSON_FORMATS: dict[str, tuple[str, Render]] = {
    "hermes": ("hermes", hermes),
    "llama_json": ("llama_json", llama_json),
    "llama_python_tag": ("llama_json", llama_python_tag),
    "mistral_list": ("mistral", mistral_list),
    "mistral_args": ("mistral", mistral_args),
    "mistral_call_id": ("mistral", mistral_call_id),
    "deepseek_v3": ("deepseek", deepseek_v3),
    "deepseek_v31": ("deepseek", deepseek_v31),
    "kimi_k2": ("kimi_k2", kimi_k2),
    "cohere_action": ("cohere", cohere_action),
    "cohere_fence": ("cohere", cohere_fence),
    "harmony": ("harmony", harmony),
    "harmony_role": ("harmony", harmony_role),
}
BARE_FORMATS: dict[str, tuple[str, Render]] = {
    "qwen_xml": ("qwen_xml", qwen_xml),
    "minimax": ("minimax", minimax),
    "glm": ("glm", glm),
    "gemma4": ("gemma4", gemma4),
    "functiongemma": ("functiongemma", functiongemma),
    "muse": ("muse", muse),
}
PYTHON_FORMATS: dict[str, tuple[str, Render]] = {
    "llama_pythonic": ("llama_pythonic", llama_pythonic),
    "lfm2": ("lfm2", lfm2),
}
FORMATS = JSON_FORMATS | BARE_FORMATS | PYTHON_FORMATS

SNIPPETS = [
    *("</tool_call>", "<tool_call>", "</parameter>", "</function>", "<parameter=x>", "</arg_value>", "<|call|>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁calls▁begin｜>", "<|tool_call_end|>", "[TOOL_CALLS]", "[ARGS]", "```", "<|end|>"),
    *("<tool_call|>", "<end_function_call>", "</invoke>", "<minimax:tool_call>", "<|eom|>", "<think>", "</think>"),
    *("<|END_ACTION|>", "<|start|>", "null", "True", "5", *"}{][)\"'\\\n é漢🙂<>,:"),
]
nasty = st.lists(st.sampled_from(SNIPPETS) | st.text(max_size=4), max_size=6).map("".join)
identifiers = st.from_regex(r"[a-z_][a-zA-Z0-9_]{0,9}", fullmatch=True).filter(lambda s: not _is_keyword(s))
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none()


def _is_keyword(name: str) -> bool:
    return keyword.iskeyword(name) or keyword.issoftkeyword(name)


def _values(strings: st.SearchStrategy[str], keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        numbers | strings,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=5,
    )


def _calls(strings: st.SearchStrategy[str], keys: st.SearchStrategy[str]) -> st.SearchStrategy[Calls]:
    arguments = st.dictionaries(keys, _values(strings, keys), max_size=3)
    return st.lists(st.tuples(identifiers, arguments), min_size=1, max_size=3)


# A bare string cannot hold what ends it: the format has no escape for that.
_ENDS = re.compile(r"</parameter>|</arg_value>|</atem:parameter>|<\|\"\|>|<escape>")
_bare_strings = nasty.filter(lambda text: not _ENDS.search(text))


def schema_of(calls: Calls) -> list[ToolSpec]:
    """Tools whose schemas declare the type of each value (a name used twice: a type per key may then be a union)."""
    properties: dict[str, dict[str, list[str]]] = {}
    for name, arguments in calls:
        tool = properties.setdefault(name, {})
        for key, value in arguments.items():
            kinds = tool.setdefault(key, [])
            if _kind(value) not in kinds:
                kinds.append(_kind(value))
    return [
        ToolSpec(name, "", {"type": "object", "properties": {k: {"type": t} for k, t in tool.items()}})
        for name, tool in properties.items()
    ]


def _kind(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def read(parsed: Parsed) -> Calls:
    return [(call.name, json.loads(call.arguments)) for call in parsed.calls]


@pytest.mark.parametrize("name", JSON_FORMATS)
@settings(max_examples=15, deadline=None)
@given(calls=_calls(nasty, nasty))
def test_json_formats_are_read_back_as_spelled(name: str, calls: Calls) -> None:
    parser, render = FORMATS[name]
    parsed = get_parser(parser)(render(calls))
    assert [(call.name, call.arguments) for call in parsed.calls] == [(n, _json(a)) for n, a in calls]
    assert (parsed.content, parsed.notes) == ("", ())


@pytest.mark.parametrize("name", BARE_FORMATS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_bare_values_are_read_back_by_schema(name: str, data: st.DataObject) -> None:
    calls = data.draw(_calls(_bare_strings, identifiers))
    if len({call[0] for call in calls}) < len(calls):
        return
    parser, render = FORMATS[name]
    parsed = get_parser(parser)(render(calls), schema_of(calls))
    assert read(parsed) == calls
    assert (parsed.content, parsed.notes) == ("", ())


@pytest.mark.parametrize("name", PYTHON_FORMATS)
@settings(max_examples=15, deadline=None)
@given(calls=_calls(nasty, identifiers))
def test_pythonic_formats_are_read_back(name: str, calls: Calls) -> None:
    parser, render = FORMATS[name]
    parsed = get_parser(parser)(render(calls))
    assert read(parsed) == calls
    assert (parsed.content, parsed.notes) == ("", ())


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("llama_json", "llama_pythonic")])
def test_text_before_calls_is_content_and_call_spans_hold_the_name(name: str) -> None:
    parser, render = FORMATS[name]
    calls: Calls = [("look", {"path": "é/ü"}), ("run", {"n": 5})]
    text = "Let me see 🙂.\n" + render(calls)
    if parser in DIALECTS:
        text = f"<|channel|>final<|message|>Let me see 🙂.<|end|><|start|>assistant{render(calls)}"
    if parser == "muse":
        text = f" to=user<|message|>Let me see 🙂.<|eom|><|start|>assistant{render(calls)}"
    parsed = get_parser(parser)(text, schema_of(calls))
    assert parsed.content == "Let me see 🙂."
    assert read(parsed) == calls
    for call in parsed.calls:
        assert call.name in text[slice(*call.span)]


_LEFT_OUT = re.compile(
    r"</?(?:tool_call|minimax:tool_call|think)>|<｜tool▁calls▁(?:begin|end)｜>|<\|tool_calls_section_(?:begin|end)\|>"
    r"|<\|tool_call_(?:start|end)\|>|\[/?THINK\]|\[TOOL_CALLS\]|<\|(?:START|END)_(?:ACTION|THINKING|RESPONSE)\|>"
    r"|<\|python_tag\|>|<\|channel>thought|<channel\|>|Action:\s*```json|```|<atem:function_calls>"
    r"|</atem:function_calls>|<\|(?:call|end|return|eom|eot)\|>|[;,\[\]\s]"
)
# Headers of messages are read, not text; everything in them but the channel and the recipient is fixed.
_HEADERS = re.compile(r"(?:<\|start\|>assistant)?[^<]*(?:<\|channel\|>[^<]*(?:<\|constrain\|>[^<]*)?)?<\|message\|>")


def assert_nothing_vanished(text: str, parsed: Parsed) -> None:
    """Every character is reasoning, content, part of a call, or one of the tags around these."""
    spans = [*parsed.reasoning_spans, *parsed.content_spans, *(call.span for call in parsed.calls)]
    spans.sort()
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans)), spans
    left, at = [], 0
    for start, end in [*spans, (len(text), len(text))]:
        left.append(text[at:start])
        at = end
    for piece in left:
        assert not _LEFT_OUT.sub("", _HEADERS.sub("", piece)), piece
    pieces = [text[a:b] for a, b in parsed.content_spans]
    assert parsed.content in ("".join(pieces), "\n".join(pieces))
    assert parsed.reasoning == "\n".join(text[a:b] for a, b in parsed.reasoning_spans)


@pytest.mark.parametrize("name", FORMATS)
def test_a_cut_completion_never_changes_a_call(name: str) -> None:
    parser_name, render = FORMATS[name]
    calls: Calls = [
        ("write_file", {"text": 'é {"a": [1]} </tool_call> "q"\n', "n": 12.5, "o": {"k": [True, None]}}),
        ("done", {}),
        ("run", {"cmd": "ls 🙂", "count": 30}),
    ]
    text, tools, parser = render(calls), schema_of(calls), get_parser(parser_name)
    assert read(parser(text, tools)) == calls
    for cut in range(len(text)):
        parsed = parser(text[:cut], tools)
        assert read(parsed) == calls[: len(parsed.calls)]
        assert_nothing_vanished(text[:cut], parsed)
        assert parsed.calls or parsed.notes or cut <= text.index("é")


BROKEN = [
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
    ("hermes", "<tool_call></tool_call>"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}}}</tool_call>'),
    ("qwen_xml", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</function>\n</tool_call>"),
    ("qwen_xml", '<tool_call>{"name": "f", "arguments": {}}</tool_call>'),
    ("glm", "<tool_call>f\n<arg_key>a</arg_key>\n</tool_call>"),
    ("minimax", '<minimax:tool_call><invoke name="f">text</invoke></minimax:tool_call>'),
    ("llama_json", '{"name": "f", "parameters": 3}'),
    ("llama_json", '<|python_tag|>{"title": "f"}'),
    ("llama_json", '<|python_tag|>search.call(query="x")'),
    ("llama_pythonic", "[f(1)]"),
    ("llama_pythonic", "[f(a=__import__('os'))]"),
    ("llama_pythonic", "[f(a=1, a=2)]"),
    ("llama_pythonic", "[f(**{})]"),
    ("lfm2", "<|tool_call_start|>[f(a=1 + 1)]<|tool_call_end|>"),
    ("lfm2", "<|tool_call_start|>[f(a='it's')]<|tool_call_end|>"),
    ("mistral", '[TOOL_CALLS][{"name": "f"}]'),
    ("mistral", "[TOOL_CALLS] as I said"),
    ("mistral", "[TOOL_CALLS]f[ARGS]{a: 1} more"),
    (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{x}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"),
    ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_end|><|tool_calls_section_end|>"),
    ("gemma4", "<|tool_call>call:f{a:hello}<tool_call|>"),
    ("cohere", '<|START_ACTION|>[{"name": "f"}]<|END_ACTION|>'),
    ("harmony", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{x}<|call|>"),
    ("harmony", "<|channel|>commentary to=python<|message|>print()<|call|>"),
    ("muse", " to=f<|message|>hello<|eom|>"),
]


@pytest.mark.parametrize(("parser", "text"), BROKEN)
def test_a_malformed_call_is_text_with_a_note(parser: str, text: str) -> None:
    parsed = get_parser(parser)(text, [ToolSpec("f")])
    assert parsed.calls == ()
    assert parsed.content == text
    assert parsed.notes == ("malformed_tool_call",)


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_without_its_last_characters_is_truncated_text(name: str) -> None:
    parser, render = FORMATS[name]
    text = render([("run", {"cmd": "xyz"})])
    end = text.index("xyz") + 1
    parsed = get_parser(parser)(text[:end], [ToolSpec("run")])
    assert (parsed.calls, parsed.content, parsed.notes) == ((), text[:end], ("truncated_tool_call",))


def test_good_calls_beside_a_bad_one_in_a_section() -> None:
    text = (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{x}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    )
    parsed = get_parser("deepseek")(text)
    assert [call.name for call in parsed.calls] == ["f"]
    assert "g<｜tool▁sep｜>{x}" in parsed.content
    assert parsed.notes == ("malformed_tool_call",)


def test_equal_keys_keep_their_spelling_and_the_last_object_counts() -> None:
    text = '<tool_call>{"arguments": {"b": 1}, "name": "f", "arguments": {"a": 1, "a": 2}}</tool_call>'
    assert get_parser("hermes")(text).calls[0].arguments == '{"a": 1, "a": 2}'


@pytest.mark.parametrize(
    ("schema", "raw", "value"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "string"}, '{"a": 1}', '{"a": 1}'),
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, "five", "five"),
        ({"type": "boolean"}, "True", True),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "5", "5"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5", 5),
        ({"$ref": "#/$defs/T"}, "5", "5"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({}, "5", 5),
        ({}, '"quoted"', '"quoted"'),
        ({"type": "object"}, '{"a": 12345678901234567890}', {"a": 12345678901234567890}),
    ],
)
def test_the_schema_types_a_bare_value(schema: dict[str, Any], raw: str, value: Any) -> None:
    tool = ToolSpec("f", "", {"properties": {"x": schema}, "$defs": {"T": {"type": "string"}}})
    text = f"<tool_call>\n<function=f>\n<parameter=x>\n{raw}\n</parameter>\n</function>\n</tool_call>"
    assert read(get_parser("qwen_xml")(text, [tool])) == [("f", {"x": value})]


def test_a_bare_value_may_hold_the_tags() -> None:
    value = "</parameter> </tool_call>\n</function>\n<tool_call>"
    text = f"<tool_call>\n<function=f>\n<parameter=x>\n{value}\n</parameter>\n</function>\n</tool_call>"
    assert read(get_parser("qwen_xml")(text)) == [("f", {"x": value})]


ALL = [*SCANS, *TYPED_SCANS, *DIALECTS, *(f"{style}+{name}" for style in STYLES for name in ("hermes", "kimi_k2"))]
_MARKED = sorted(
    {tag for name in FORMATS for tag in re.findall(r"<[^<>\s]{2,40}>|\[[A-Z_]+\]", FORMATS[name][1]([("f", {"a": 1})]))}
    | {
        "<think>",
        "</think>",
        "<|message|>",
        "<|channel|>analysis",
        "[f(a=1)]",
        '{"name": "f", "parameters": {}}',
        "call:f{",
    }
)


@settings(max_examples=400, deadline=None)
@given(
    name=st.sampled_from(ALL),
    pieces=st.lists(st.sampled_from(_MARKED + SNIPPETS) | st.text(max_size=6), max_size=10),
    opened=st.booleans(),
)
def test_random_text_never_raises_and_never_vanishes(name: str, pieces: list[str], opened: bool) -> None:
    text = "".join(pieces)
    parser = get_parser(name)
    for calls in (True, False):
        parsed = parser(text, [ToolSpec("f")], opened=opened, calls=calls)
        assert_nothing_vanished(text, parsed)
        assert calls or not parsed.calls


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(ALL),
    text=st.text(alphabet=st.characters(exclude_characters="<[{`", exclude_categories=("Cs",))),
)
def test_text_without_markers_is_content(name: str, text: str) -> None:
    assert get_parser(name)(text) == get_parser("text")(text)
    assert get_parser(name)(text).content == text


@pytest.mark.parametrize("text", ["[" * 20000, "[f(a=" + "[" * 5000, '{"name":' * 5000, "[f(a=" + "-" * 9000 + "1)]"])
def test_deep_nesting_is_text(text: str) -> None:
    for name in ALL:
        assert get_parser(name)(text).calls == ()
    for render in (hermes, mistral_list, gemma4):
        broken = render([("f", {"a": 1})]).replace("1", text)
        assert get_parser("hermes")(broken).calls == ()
        assert get_parser("gemma4")(broken).calls == ()
