"""How turns are closed, per family: stop tokens once, headers once, cut turns closed, unknown endings refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from drivetrain.cli.main import app
from drivetrain.engines.models import ModelDir
from drivetrain.errors import ConfigError
from drivetrain.messages import Message, ToolCall
from drivetrain.tokens import check as check_module
from drivetrain.tokens.boundary import detect_boundary
from drivetrain.tokens.check import TemplateCheck, cached_check, check_template
from drivetrain.tokens.codec import TokenCodec
from drivetrain.tokens.shapes import PROBE_TOOLS
from drivetrain.tokens.template import ChatTemplate
from tests.tokens.corpus import NAMES, check_of, templates, tokenizer

with_corpus = pytest.mark.skipif(not NAMES, reason="TRL, whose templates are the corpus, is not installed")
CALL = ToolCall("call00001", "read_file", '{"path": "a.py"}')
RESULT = Message("tool", "text of a", tool_call_id="call00001")
USER = Message("user", "next")


def written(body: str, generation: str) -> ChatTemplate:
    """A template that writes each message as ``body`` says."""
    loop = "{% for m in messages %}" + body + "{% endfor %}"
    return ChatTemplate(loop + "{% if add_generation_prompt %}" + generation + "{% endif %}")


KIMI_START = "<|im_assistant|>assistant<|im_middle|>"
KIMI = written("<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>{{ m.content }}<|im_end|>", KIMI_START)
MISTRAL = written(
    "{% if m.role == 'assistant' %} {{ m.content }}</s>{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}"
    "[/TOOL_RESULTS]{% else %}[INST] {{ m.content }}[/INST]{% endif %}",
    "",
)
MINIMAX = written("]~b]{{ 'ai' if m.role == 'assistant' else m.role }}\n{{ m.content }}[e~[\n", "]~b]ai\n")
PHI4 = written("<|{{ m.role }}|>{{ m.content }}<|end|>", "<|assistant|>")


def codec_of(name: str, **options: object) -> TokenCodec:
    return TokenCodec(tokenizer(), templates()[name], check=check_of(name), **options)  # type: ignore[arg-type]


def continued(codec: TokenCodec, said: str, *tail: Message, calls: tuple[ToolCall, ...] = ()) -> str | None:
    delta = codec.continuation(tokenizer().encode(said), tail, PROBE_TOOLS, calls)
    return None if delta is None else tokenizer().decode(delta)


@pytest.mark.parametrize(
    ("template", "family", "ended", "delta"),
    [
        (KIMI, "kimi", "ok<|im_end|>", f"<|im_user|>user<|im_middle|>next<|im_end|>{KIMI_START}"),
        (MISTRAL, "mistral", "ok</s>", "[INST] next[/INST]"),
        (MINIMAX, "minimax", "ok[e~[", "\n]~b]user\nnext[e~[\n]~b]ai\n"),
        (PHI4, "phi4", "ok<|end|>", "<|user|>next<|end|><|assistant|>"),
    ],
)  # fmt: skip
def test_families_outside_the_corpus(template: ChatTemplate, family: str, ended: str, delta: str) -> None:
    codec = TokenCodec(tokenizer(), template)
    assert codec.boundary.family.name == family
    assert continued(codec, ended, USER) == delta
    close = codec.boundary.family.close_token
    assert continued(codec, ended.removesuffix(close), USER) == close + delta, "a cut turn is closed as context"
    assert codec.check.finding("user").verdict == "append_only"


@pytest.mark.parametrize("closing", ["[/end]", "<|im_end|>\n\n", "<|eot_id|>\n", "", "<|unheard_of|>"])
def test_unknown_closings_are_refused(closing: str) -> None:
    template = written("[{{ m.role }}]{{ m.content }}" + closing, "[assistant]")
    with pytest.raises(ConfigError, match="no known template family"):
        detect_boundary(template, tokenizer())


def test_a_closing_the_tokenizer_does_not_know_is_refused(codec: TokenCodec) -> None:
    with pytest.raises(ConfigError, match="no special token"):
        detect_boundary(MISTRAL, codec.tokenizer)


@pytest.mark.case("A12")
@with_corpus
def test_glm_stop_token_is_the_next_header_once() -> None:
    codec = codec_of("glm4moe")
    tool = "<|observation|>\n<tool_response>\ntext of a\n</tool_response><|assistant|>"
    assert continued(codec, "x<|observation|>", RESULT, calls=(CALL,)) == tool.removeprefix("<|observation|>")
    assert continued(codec, "x<|user|>", USER) == "\nnext<|assistant|>"
    assert continued(codec, "x<|user|>", RESULT, calls=(CALL,)) == tool, "another header: bridged"
    assert continued(codec, "x<|observation|>", USER) == "<|user|>\nnext<|assistant|>"
    assert continued(codec, "cut", USER) == "<|user|>\nnext<|assistant|>"
    assert {tokenizer().token_id(t) for t in ("<|user|>", "<|observation|>")} <= set(codec.stop_ids)
    assert tokenizer().token_id("<|assistant|>") not in codec.stop_ids


@pytest.mark.case("A12")
@with_corpus
def test_harmony_keeps_its_return_token_or_forks() -> None:
    said = "<|channel|>final<|message|>ok<|return|>"
    behind = "<|start|>user<|message|>next<|end|><|start|>assistant"
    assert continued(codec_of("gptoss"), said, USER) == behind
    assert continued(codec_of("gptoss", reasoning="template"), said, USER) is None
    assert continued(codec_of("gptoss"), "<|channel|>final<|message|>o", USER) == "<|end|>" + behind
    called = '<|channel|>commentary to=functions.read_file<|message|>{"path": "a.py"}<|call|>'
    result = (
        '<|start|>functions.read_file to=assistant<|channel|>commentary<|message|>"text of a"<|end|><|start|>assistant'
    )
    assert continued(codec_of("gptoss"), called, RESULT, calls=(CALL,)) == result, "the name of the call that was made"
    stops = [tokenizer().token_id(t) for t in ("<|return|>", "<|call|>", "<|end|>")]
    assert [stop in codec_of("gptoss").stop_ids for stop in stops] == [True, True, False]


@with_corpus
def test_renamed_call_ids_keep_their_names() -> None:
    """Case row "renames tool-call ids": the result's header carries the name, found by order."""
    renamed = Message("tool", "text of a", tool_call_id="other0001")
    for name in ("gptoss", "muse_glimmer", "gemma4"):
        codec = codec_of(name)
        ended = {"gptoss": "<|call|>", "muse_glimmer": "<|eot|>", "gemma4": "<|tool_response>"}[name]
        delta = continued(codec, f"x{ended}", renamed, calls=(CALL,))
        assert delta is not None and "read_file" in delta
        assert delta == continued(codec, f"x{ended}", RESULT, calls=(CALL,))


@with_corpus
def test_gemma4_result_continues_the_open_turn() -> None:
    delta = continued(codec_of("gemma4"), "x<|tool_response>", RESULT, calls=(CALL,))
    assert delta is not None and delta.startswith("response:read_file{") and "<|turn>model" not in delta


@with_corpus
def test_cohere_completes_a_cut_answer() -> None:
    codec = codec_of("cohere2")
    cut = continued(codec, "half", USER)
    assert cut is not None and cut.startswith("<|END_RESPONSE|><|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|>")
    assert continued(codec, "all<|END_RESPONSE|>", USER) == cut.removeprefix("<|END_RESPONSE|>")


@with_corpus
def test_llama_other_end_is_kept() -> None:
    codec = codec_of("llama3_1")
    assert continued(codec, "x<|eom_id|>", USER) == continued(codec, "x<|eot_id|>", USER)


@pytest.mark.case("A9", "A13")
@with_corpus
@pytest.mark.parametrize(("name", "keeps"), [("qwen3", True), ("qwen3_6", True), ("qwen3_8", True)])
def test_reasoning_policy(name: str, keeps: bool) -> None:
    """`keep` continues where the template would strip reasoning at a later user turn; `template` forks there."""
    said = "<think>\nhm\n</think>\n\nok<|im_end|>"
    assert (continued(codec_of(name), said, USER) is not None) is keeps
    strips = check_of(name).finding("think_user").verdict == "forks"
    assert (continued(codec_of(name, reasoning="template"), said, USER) is None) is strips


@with_corpus
def test_forking_shapes_are_not_continued() -> None:
    """DeepSeek's template gathers system messages at the top; its R1 variant never closes a single call."""
    reminder = Message("system", "Be kind.")
    assert continued(codec_of("deepseekv3"), "ok<｜end▁of▁sentence｜>", reminder, USER) is None
    assert continued(codec_of("deepseek_r1_distill"), "x<｜end▁of▁sentence｜>", RESULT, calls=(CALL,)) is None


def test_check_is_remembered(tmp_path: Path, codec: TokenCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cached_check(codec.template, codec.tokenizer, codec.boundary, tmp_path)
    assert first == check_template(codec.template, codec.tokenizer)

    def never(*_: object) -> TemplateCheck:
        raise AssertionError("checked again")

    monkeypatch.setattr(check_module, "check_template", never)
    assert cached_check(codec.template, codec.tokenizer, codec.boundary, tmp_path) == first
    with pytest.raises(AssertionError, match="checked again"):
        cached_check(KIMI, tokenizer(), detect_boundary(KIMI, tokenizer()), tmp_path)


def test_command(tiny_model: ModelDir, tmp_path: Path) -> None:
    run = CliRunner().invoke
    shown = run(app, ["template-check", str(tiny_model.path), "--json"])
    assert shown.exit_code == 0
    found = msgspec.json.decode(shown.stdout, type=TemplateCheck)
    assert found.family == "chatml" and found.finding("tool").keep == "append_only"
    assert "append_only" in run(app, ["template-check", str(tiny_model.path)]).stdout
    odd = tmp_path / "odd.jinja"
    odd.write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }}[/end]{% endfor %}")
    refused = run(app, ["template-check", str(tiny_model.path), "--template", str(odd), "--json"])
    assert refused.exit_code == 1 and '"family": null' in refused.stdout
