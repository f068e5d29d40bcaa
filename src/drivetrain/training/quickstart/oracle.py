"""A scripted agent that knows the harness's tools and is often wrong: what the policy starts from."""

from __future__ import annotations

import json
import random
import re

from drivetrain.errors import ConfigError
from swe_rl_env.sources.operators import WORDS

ROUND = 9
"""Attempts at a word among which the number of mistakes is fixed: few traces shall not mislead by chance."""
_MIXED_UP = {"+": "-", "-": "*", "*": "%", "%": "+"}
OPERATOR_OF = {word: operator for operator, words in WORDS.items() for word in words}
_STATEMENT = re.compile(r"\b(" + "|".join(OPERATOR_OF) + r")\b")


class MediocreOracle:
    """Replies for tasks of :mod:`swe_rl_env.sources.operators`: change the operator, stop.

    It reads the statement, says which result is wanted, and then writes an operator: of every :data:`ROUND` times that
    it meets a word the right one ``right`` times, else the one that it mixes it up with, in a drawn order. Mistakes
    differ from operator to operator, so that who imitates it has to tell the words apart.

    Args:
        right: 0 to :data:`ROUND`.
        seed: of the order.
    """

    def __init__(self, right: int, seed: int) -> None:
        if not 0 <= right <= ROUND:
            raise ConfigError(f"the oracle is right {right} times of {ROUND}; it must be 0 to {ROUND}.")
        self._right = right
        self._chance = random.Random(seed)
        self._decks: dict[str, list[str]] = {word: [] for word in OPERATOR_OF}

    def __call__(self, _ids: list[int], text: str, index: int) -> str:
        """A :data:`drivetrain.engines.scripted.Script`."""
        if index:
            return "Done."
        word = self._word(text)
        return first_reply(word, self._operator(word))

    def _word(self, text: str) -> str:
        found = _STATEMENT.search(text)
        if found is None:
            raise ConfigError("the prompt states none of the results that the oracle knows.")
        return found[1]

    def _operator(self, word: str) -> str:
        deck = self._decks[word]
        if not deck:
            right = OPERATOR_OF[word]
            deck += [right] * self._right + [_MIXED_UP[right]] * (ROUND - self._right)
            self._chance.shuffle(deck)
        return deck.pop()


def first_reply(word: str, operator: str) -> str:
    """A command that names the result and, right behind it and nowhere else, the operator, and changes the file."""
    command = f"read -r result operator <<< ' {word} {operator} '; sed -i \"s/ [-+*%] / $operator /\" shop.py"
    call = json.dumps({"name": "bash", "arguments": {"command": command}})
    return f"<tool_call>\n{call}\n</tool_call>"
