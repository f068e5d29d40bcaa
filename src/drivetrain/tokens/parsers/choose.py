"""Which parser reads the output of a model: decided by markers in its chat template, and explained."""

from __future__ import annotations

import re

import msgspec


class Choice(msgspec.Struct, frozen=True):
    """A parser name and the marker that decided it; ``known`` is False where the template shows no call format."""

    parser: str
    reason: str
    known: bool = True


_JSON_ARGUMENTS = r"\\?\"arguments\\?\""
_FORMATS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("muse", (r"<atem:function_calls>",)),
    ("harmony", (r"<\|start\|>", r"<\|channel\|>", r"<\|message\|>")),
    ("gemma4", (r"<\|tool_call>call:", r"<tool_call\|>")),
    ("functiongemma", (r"<start_function_call>",)),
    ("minimax", (r"<minimax:tool_call>",)),
    ("kimi_k2", (r"<\|tool_calls_section_begin\|>",)),
    ("deepseek", (r"<｜tool▁calls▁begin｜>",)),
    ("lfm2", (r"<\|tool_call_start\|>|<\|tool_list_start\|>",)),
    ("mistral", (r"\[TOOL_CALLS\]",)),
    ("cohere", (r"<\|START_ACTION\|>|<\|START_RESPONSE\|>|Action:\s*(?:\\n)?```json",)),
    ("qwen_xml", (r"<tool_call>", r"<function=")),
    ("glm", (r"<tool_call>", r"<arg_key>")),
    ("hermes", (r"<tool_call>", _JSON_ARGUMENTS)),
    ("llama_json", (r"<\|eot_id\|>|<\|eom_id\|>", r"\{\\?\"name\\?\": ", r"\\?\"parameters\\?\": ")),
    ("llama_pythonic", (r"<\|eot\w*\|>", r"\[func_name1\(params_name1=")),
)
_STYLES: tuple[tuple[str, str], ...] = (
    ("gemma_channel", r"<\|channel>thought"),
    ("cohere_thinking", r"<\|START_THINKING\|>"),
    ("mistral_think", r"\[THINK\]"),
    ("think", r"</?think>"),
)
_WHOLE = {"muse", "harmony"}
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)


def choose_parser(template: str) -> str:
    """Name of the parser for a model with this chat template; see :func:`explain_choice`."""
    return explain_choice(template).parser


def explain_choice(template: str) -> Choice:
    """The first format all of whose markers the template holds, behind the reasoning style it mentions.

    A template without any is read as plain text, and the choice says so.
    """
    template = _COMMENT.sub("", template)
    found = next((f for f in _FORMATS if all(re.search(marker, template) for marker in f[1])), None)
    style = next(((name, marker) for name, marker in _STYLES if re.search(marker, template)), None)
    markers = [] if found is None else [_shown(marker, template) for marker in found[1]]
    name = "text" if found is None else found[0]
    if name not in _WHOLE and style is not None:
        style_name = "kimi_think" if name == "kimi_k2" and style[0] == "think" else style[0]
        name = f"{style_name}+{name}"
        markers.append(_shown(style[1], template))
    if found is None:
        reason = "the chat template shows no known tool-call format, so that calls would be served as text"
        return Choice(name, reason, known=False)
    return Choice(name, f"the chat template holds {', '.join(markers)}")


def _shown(marker: str, template: str) -> str:
    match = re.search(marker, template)
    return repr(match[0]) if match else ""
