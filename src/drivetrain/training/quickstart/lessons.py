"""What any pretrained model can do and a random one cannot: say which result a statement asks for.

Nothing here tells which operator belongs to a word: that is learned from the recorded agent, and from rewards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from drivetrain.engines.models import ModelDir
from drivetrain.tokens.tokenizer import Tokenizer
from swe_rl_env.sources.operators import draw
from swe_rl_env.tasks.catalog import prompt_for
from swe_rl_env.tasks.model import SweTask

_FROM = 1_000_000
"""Number of the first instance: none is a task that is trained on or evaluated."""


def reading_lessons(model: ModelDir, task: SweTask, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """``count`` prompts of the training split with the first words of an answer; columns as
    :func:`~drivetrain.trace.export.sft_tokens.sft_token_lines` has them. The loss is on every token, as in pretraining:
    with one on the answer only, the embeddings of all other tokens are pushed away and imitation starts late.

    Args:
        task: any task of the family; its prompt is the pattern.
    """
    tokenizer = Tokenizer.from_file(model.tokenizer_path)
    pattern = prompt_for(task)
    for number in range(_FROM, _FROM + count):
        instance = draw(number, "train", seed)
        said = pattern.replace(task.public.problem_statement, instance.statement)
        prompt = tokenizer.encode(f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n")
        answer = tokenizer.encode(f"It must be the {instance.word},")
        yield {"input_ids": [*prompt, *answer], "labels": [*prompt, *answer]}
