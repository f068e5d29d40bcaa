"""What a pretrained model can do and a random one cannot: read which result a statement asks for, write a command.

Nothing here tells which operator belongs to a word: operators are drawn, and have no loss. That is learned from the
recorded agent, and from rewards.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

from drivetrain.engines.models import ModelDir
from drivetrain.tokens.tokenizer import Tokenizer
from drivetrain.trace.export.sft_tokens import IGNORED
from drivetrain.training.quickstart.oracle import first_reply
from swe_rl_env.sources.operators import WORDS, draw
from swe_rl_env.tasks.catalog import prompt_for
from swe_rl_env.tasks.model import SweTask

_FROM = 1_000_000
"""Number of the first instance: none is a task that is trained on or evaluated."""


def reading_lessons(model: ModelDir, task: SweTask, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """``count`` prompts of the training split with a first reply whose operator is drawn; columns as
    :func:`~drivetrain.trace.export.sft_tokens.sft_token_lines` has them, the loss on the reply only, without the
    operator.

    What follows the statement is cut somewhere, near its begin more often than near its end: in a short prompt there
    is little to look at beside the word, so that copying it is found soon, and where it stands must not be learned.

    Args:
        task: any task of the family; its prompt is the pattern.
    """
    tokenizer = Tokenizer.from_file(model.tokenizer_path)
    before, after = prompt_for(task).split(task.public.problem_statement)
    rest = re.findall(r"\s*\S+", after)
    chance = random.Random(seed)
    for number in range(_FROM, _FROM + count):
        instance = draw(number, "train", seed)
        said = before + instance.statement + "".join(rest[: round(len(rest) * chance.random() ** 2)])
        prompt = tokenizer.encode(f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n")
        text = first_reply(instance.word, chance.choice(list(WORDS)))
        reply = tokenizer.encode(text + "<|im_end|>")
        named = len(tokenizer.encode(text[: text.index(instance.word) + len(instance.word)]))
        labels = [IGNORED] * len(prompt) + reply
        labels[len(prompt) + named] = IGNORED
        yield {"input_ids": [*prompt, *reply], "labels": labels}
