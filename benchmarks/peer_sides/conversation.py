"""The conversations that every side is given, the model they are of, and what the scripted engine says.

A harness with eight tools works through one task: 6 kB of system prompt, then turns of about 160 sampled tokens
(reasoning and one tool call) and 2 kB of tool output. 50 turns end with a request of about 150 kB, 200 turns with
580 kB.

The model is SmolLM2's tokenizer with Qwen3's special tokens and chat template: Qwen3 is what verifiers can bridge, and
no Qwen tokenizer is at hand without a hub.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec

MODEL = "Qwen3-scripted"
CONTEXT = 262_144
SPECIAL = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_WORDS = """
the of and a to in is it that for was on are with as his they at be this from have or by one had not but what all
were when we there can an your which their said if do will each about how up out them then she many some so these
would other into has more her two like him see time could no make than first been its who now people my made over
did down only way find use may water long little very after words called just where most know parse value error
index buffer token match node graph file line test assert return yield class import module path read write open
close encode decode header body field name list array string number object key cache queue worker thread process
""".split()  # noqa: SIM905


class Turn(msgspec.Struct):
    """One turn: what the model says, and what the tool answers."""

    reasoning: str
    call: str
    arguments: str
    result: str


class Script(msgspec.Struct):
    """One conversation."""

    number: int
    system: str
    task: str
    tools: list[dict[str, Any]]
    turns: list[Turn]

    def start(self) -> list[dict[str, Any]]:
        """Messages of the first request."""
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.task}]


def _text(random_words: random.Random, size: int) -> str:
    """About ``size`` characters, in lines as a program's output has them."""
    lines: list[str] = []
    length = 0
    while length < size:
        line = f"{random_words.randrange(1, 900):>4}  " + " ".join(random_words.choices(_WORDS, k=11))
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines)[:size]


def _tools(words: random.Random) -> list[dict[str, Any]]:
    names = ("bash", "read", "write", "edit", "grep", "glob", "fetch", "plan")
    parameters = {
        "type": "object",
        "properties": {
            name: {"type": "string", "description": _text(words, 60).replace("\n", " ")}
            for name in ("path", "command", "pattern")
        },
        "required": ["path"],
    }
    return [
        {
            "type": "function",
            "function": {"name": name, "description": _text(words, 300).replace("\n", " "), "parameters": parameters},
        }
        for name in names
    ]


def make_script(number: int, turns: int) -> Script:
    """The conversation of this number; equal numbers give equal conversations."""
    words = random.Random(number)
    return Script(
        number=number,
        system=f"Conversation {number}.\n" + _text(words, 6000),
        task="Find the defect and mend it.\n" + _text(words, 400),
        tools=_tools(words),
        turns=[
            Turn(
                reasoning=_text(words, 380).replace("\n", " "),
                call=words.choice(("bash", "read", "grep")),
                arguments=json.dumps({"path": f"src/part{turn}.py", "command": _text(words, 150).replace("\n", " ")}),
                result=_text(words, 2000),
            )
            for turn in range(turns)
        ],
    )


def sampled_text(turn: Turn) -> str:
    """What the model samples in a turn, as Qwen3 writes it."""
    call = f'{{"name": "{turn.call}", "arguments": {turn.arguments}}}'
    return f"<think>\n{turn.reasoning}\n</think>\n\n<tool_call>\n{call}\n</tool_call><|im_end|>"


def appended_text(turn: Turn) -> str:
    """What the template puts between a turn and the next: the tool's answer and the head of the next turn."""
    return f"\n<|im_start|>user\n<tool_response>\n{turn.result}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"


def write_model(folder: Path, base: Path, template: str) -> Path:
    """A model directory without weights, made of another one's tokenizer; ``template`` is Jinja text."""
    from tokenizers import AddedToken, Tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(text, special=False, normalized=False) for text in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template)
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>",
                "model_max_length": CONTEXT,
                "chat_template": template,
            }
        )
    )
    config = {"model_type": "qwen3", "vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": CONTEXT}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class EngineScript(msgspec.Struct):
    """What the engine answers in one conversation: ids, and how they look in a chat reply."""

    number: int
    first: list[int]
    sampled: list[list[int]]
    appended: list[list[int]]
    turns: list[Turn]


def engine_script(script: Script, model: Path) -> EngineScript:
    """Tokenise a conversation for the engine. Prompts are concatenations: every next one extends the last."""
    import jinja2
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    template = environment.from_string((model / "chat_template.jinja").read_text())
    first = template.render(messages=script.start(), tools=script.tools, add_generation_prompt=True)

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    return EngineScript(
        number=script.number,
        first=ids(first),
        sampled=[ids(sampled_text(turn)) for turn in script.turns],
        appended=[ids(appended_text(turn)) for turn in script.turns],
        turns=script.turns,
    )
