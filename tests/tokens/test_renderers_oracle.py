"""``renderers`` (hand-written renderers of model families) as an oracle for first prompts and continuations.

Both sides get the same chat template (TRL ships it), the same toy tokenizer and the same conversations; no network. A
raw rendering of the template is the judge where they differ: test_template_corpus.py holds ours against it, and what
the other side does is listed here with its reason. Families without an offline template or vocabulary are listed too.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from drivetrain.messages import Message, ToolSpec
from drivetrain.tokens.codec import TokenCodec
from drivetrain.tokens.shapes import PROBE_TOOLS, SHAPES, Shape
from drivetrain.tokens.template import ChatTemplate, TemplateRefused, shared_start, tool_to_template
from drivetrain.tokens.tokenizer import Tokenizer
from tests.tokens.test_parsers_templates import FOLDER, needs_trl

renderers = pytest.importorskip("renderers")
pytestmark = needs_trl

PAIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3", {}),
    "qwen3_vl": ("qwen3-vl", {}),
    "qwen3_5_think": ("qwen3.5", {}),
    "qwen3_5_nothink": ("qwen3.5", {"enable_thinking": False}),
    "qwen3_6": ("qwen3.6", {}),
    "qwen3_8": ("qwen3.8", {}),
    "gemma4": ("gemma4", {}),
    "gemma4_v3": ("gemma4", {}),
    "gemma4_v5": ("gemma4", {}),
    "glm4moe": ("glm-4.5", {}),
    "llama3_1": ("llama-3", {}),
    "nemotron_3_nano": ("nemotron-3", {}),
    "nemotron_3_super": ("nemotron-3", {}),
    "nemotron_3_ultra": ("nemotron-3-ultra", {}),
    "nemotron_3_5_lightning": ("nemotron-3.5", {}),
    "deepseekv3": ("deepseek-r1", {}),
}
"""Chat template -> renderer and its options."""

NOT_OFFLINE = {
    "gpt-oss": "builds its ids with OpenAI's encoding, whose vocabulary is downloaded",
    "kimi-k2, kimi-k2.5, minimax-m2, glm-5, deepseek-v4, hy3, laguna, inkling": "no installed package has the template",
    "deepseek-v3": "TRL ships the template of the reasoning model only",
}
_NAMED = ["<s>", "</s>", "<unk>", "<bos>", "<eos>", "<pad>", "<sop>", "[gMASK]", "<|endoftext|>"]
_NAMED += ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>"]
_DEEPSEEK = [f"<｜{name}｜>" for name in (
    "begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant", "tool▁calls▁begin", "tool▁calls▁end",
    "tool▁call▁begin", "tool▁call▁end", "tool▁sep", "tool▁outputs▁begin", "tool▁outputs▁end", "tool▁output▁begin",
    "tool▁output▁end",
)]  # fmt: skip


class OpenTokenizer:
    """The tokenizer that ``renderers`` asks for: every special token it names exists, text is bytes."""

    name_or_path = "toy"

    def __init__(self) -> None:
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        self.backend = tokenizers.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
        self.backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.backend.decoder = decoders.ByteLevel()
        self._add([*_NAMED, *_DEEPSEEK])
        self.unk_token_id = self.backend.token_to_id("<unk>")
        self.eos_token_id = self.backend.token_to_id("</s>")

    def _add(self, names: list[str]) -> None:
        self.backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Any, *_: Any, **__: Any) -> str:
        return str(self.backend.decode(list(ids), skip_special_tokens=False))

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, list):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        if self.backend.token_to_id(tokens) is None:
            self._add([tokens])
        return self.backend.token_to_id(tokens)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.backend.get_vocab())


@functools.cache
def sides(stem: str) -> tuple[TokenCodec, Any]:
    """Our codec and their renderer over one tokenizer; both leave earlier reasoning in place."""
    assert FOLDER is not None
    family, options = PAIRS[stem]
    source = (FOLDER / f"{stem}.jinja").read_text("utf-8")
    tokenizer = OpenTokenizer()
    config = type(renderers.config_from_name(family))(thinking_retention="all", **options)
    tokenizer.chat_template = source  # type: ignore[attr-defined]
    other = renderers.create_renderer(tokenizer, config)
    bos = {"gemma4": "<bos>", "llama-3": "<|begin_of_text|>", "deepseek-r1": _DEEPSEEK[0]}.get(family, "<s>")
    eos = _DEEPSEEK[1] if family.startswith("deepseek") else "</s>"
    chat = ChatTemplate(source, special_tokens={"bos_token": bos, "eos_token": eos})
    return TokenCodec(Tokenizer(tokenizer.backend), chat), other


def wire(message: Message) -> dict[str, Any]:
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        out["reasoning_content"] = message.reasoning
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.loads(c.arguments)}}
            for c in message.tool_calls
        ]
    if message.role == "tool":
        out["tool_call_id"] = message.tool_call_id
    return out


def tools_of(tools: tuple[ToolSpec, ...]) -> list[dict[str, Any]] | None:
    return [tool_to_template(tool) for tool in tools] or None


TRIED = [shape for shape in SHAPES if shape.name not in ("tool_odd_args", "cut_user", "empty")]
FIRST_DIFFERS: dict[tuple[str, str], str] = dict.fromkeys(
    [("deepseekv3", name) for name in ("tool_again", "think_tools", "think_tool_user")],
    "they open reasoning behind tool results, the template does not",
)
_REMINDER = "the template leaves out a system message in mid-conversation, they write it"
NEXT_DIFFERS: dict[tuple[str, str], str] = dict.fromkeys(
    [("qwen3_vl", name) for name in ("tool_system", "system", "system_new")], _REMINDER
)
"""Where the two differ and a raw rendering of the template says that ours is right."""


def prompt_of(codec: TokenCodec, shape: Shape, tools: tuple[ToolSpec, ...]) -> str | None:
    try:
        return codec.template.render(shape.history[:-1], tools)
    except TemplateRefused:
        return None


def turn_of(codec: TokenCodec, shape: Shape, prompt: str) -> str:
    """The shape's last turn as a policy would have sampled it, its end included.

    Raises:
        TemplateRefused: the template does not write such a turn (two calls at once).
    """
    spoken = codec.template.render(shape.history, PROBE_TOOLS, add_generation_prompt=False)
    text = spoken[len(shared_start(prompt, spoken)) :]
    found = codec.boundary.cut(text)
    return text + codec.boundary.family.close_token if found is None else found.before + found.close.token


@pytest.mark.parametrize("stem", PAIRS)
def test_first_prompts(stem: str) -> None:
    codec, other = sides(stem)
    equal = 0
    for shape in TRIED:
        for tools in ((), PROBE_TOOLS):
            prompt = prompt_of(codec, shape, tools)
            if prompt is None:
                continue
            mine = codec.tokenizer.encode(prompt)
            messages = [wire(message) for message in shape.history[:-1]]
            theirs = other.render_ids(messages, tools=tools_of(tools), add_generation_prompt=True)
            assert (mine == list(theirs)) is ((stem, shape.name) not in FIRST_DIFFERS), shape.name
            equal += mine == list(theirs)
    assert equal >= 30


@pytest.mark.parametrize("stem", PAIRS)
def test_continuations(stem: str) -> None:
    """Where both continue, the ids are equal; either may decline (and render anew) where it cannot promise that."""
    codec, other = sides(stem)
    equal = 0
    for shape in TRIED:
        prompt = prompt_of(codec, shape, PROBE_TOOLS)
        if prompt is None:
            continue
        stored = codec.tokenizer.encode(prompt)
        try:
            sampled = codec.tokenizer.encode(turn_of(codec, shape, prompt))
        except TemplateRefused:
            continue
        mine = codec.continuation(sampled, shape.tail, PROBE_TOOLS, shape.history[-1].tool_calls)
        tail = [wire(message) for message in shape.tail]
        theirs = other.bridge_to_next_turn(stored, sampled, tail, tools=tools_of(PROBE_TOOLS))
        if mine is None or theirs is None:
            continue
        same = [*stored, *sampled, *mine] == list(getattr(theirs, "token_ids", theirs))
        assert same is ((stem, shape.name) not in NEXT_DIFFERS), shape.name
        equal += same
    assert equal >= (1 if stem == "deepseekv3" else 9)  # whose tools are refused anyway: it renders none
