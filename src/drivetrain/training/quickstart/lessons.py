"""What a pretrained model can do and a random one cannot: read which result a statement asks for, write a command.

Nothing here tells which operator belongs to a word: operators are drawn, and have no loss. That is learned from the
recorded agent, and from rewards.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
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


_USER = "<|im_start|>user\n"


def reading_lessons(
    model: ModelDir, task: SweTask, recorded: Sequence[int], count: int, seed: int
) -> Iterator[dict[str, Any]]:
    """``count`` prompts of the training split with a first reply whose operator is drawn; columns as
    :func:`~drivetrain.trace.export.sft_tokens.sft_token_lines` has them, the loss on the reply only, without the
    operator.

    What follows the statement is cut somewhere, near its begin more often than near its end: in a short prompt there
    is little to look at beside the word, so that copying it is found soon. Before half of the prompts stands a piece of
    what the harness says first, up to half as long again as all of it: at which position a reply stands must not be
    learned, held-out names are longer in tokens.

    Args:
        task: any task of the family; its prompt is the pattern.
        recorded: a prompt that the harness sent.
    """
    tokenizer = Tokenizer.from_file(model.tokenizer_path)
    before, after = prompt_for(task).split(task.public.problem_statement)
    rest = re.findall(r"\s*\S+", after)
    first = tokenizer.encode(tokenizer.decode(list(recorded)).split(_USER)[0])
    chance = random.Random(seed)
    for number in range(_FROM, _FROM + count):
        instance = draw(number, "train", seed)
        said = before + instance.statement + "".join(rest[: round(len(rest) * chance.random() ** 2)])
        ahead = max(0, round(len(first) * 3 * (chance.random() - 0.5)))
        prompt = tokenizer.encode(f"{_USER}{said}<|im_end|>\n<|im_start|>assistant\n")
        prompt = [*([*first, *first][2 * len(first) - ahead :]), *prompt]
        text = first_reply(instance.word, chance.choice(list(WORDS)))
        reply = tokenizer.encode(text + "<|im_end|>")
        named = len(tokenizer.encode(text[: text.index(instance.word) + len(instance.word)]))
        labels = [IGNORED] * len(prompt) + reply
        labels[len(prompt) + named] = IGNORED
        yield {"input_ids": [*prompt, *reply], "labels": labels}
