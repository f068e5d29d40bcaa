"""A scripted agent that knows the harness's tools and is often wrong: what the policy starts from."""

from __future__ import annotations

import json
import random
import re
import zlib

from drivetrain.errors import ConfigError
from swe_rl_env.sources.operators import WORDS

_PARTNER = {"+": "-", "-": "+", "*": "%", "%": "*"}
_OPERATOR = {word: operator for operator, words in WORDS.items() for word in words}
_STATEMENT = re.compile(r"\b(" + "|".join(_OPERATOR) + r")\b")


class MediocreOracle:
    """Replies for tasks of :mod:`swe_rl_env.sources.operators`: change the operator, look at the file, stop.

    It reads the statement, says which result is wanted, and then writes the right operator with probability
    ``skill``, else the one that it mixes up with it (``+`` and ``-``, ``*`` and ``%``).

    Args:
        skill: probability of the right operator, 0 to 1.
        seed: of its mistakes.
    """

    def __init__(self, skill: float, seed: int) -> None:
        if not 0 <= skill <= 1:
            raise ConfigError(f"the oracle's skill is {skill}; it must be between 0 and 1.")
        self._skill = skill
        self._seed = seed
        self._count = 0

    def __call__(self, _ids: list[int], text: str, index: int) -> str:
        """A :data:`drivetrain.engines.scripted.Script`."""
        if index == 0:
            word = self._word(text)
            operator = self._choose(_OPERATOR[word])
            return first_reply(word, operator)
        if index == 1:
            return _bash("cat shop.py").lstrip()
        return "Done."

    def _word(self, text: str) -> str:
        found = _STATEMENT.search(text)
        if found is None:
            raise ConfigError("the prompt states none of the results that the oracle knows.")
        return found[1]

    def _choose(self, right: str) -> str:
        self._count += 1
        chance = random.Random(zlib.crc32(f"{self._seed}:{self._count}".encode()))
        return right if chance.random() < self._skill else _PARTNER[right]


def first_reply(word: str, operator: str) -> str:
    """Name the result, then the operator right behind it, then change the file."""
    return f"The {word} {operator} is missing." + _bash(f"sed -i 's/ [-+*%] / {operator} /' shop.py")


def _bash(command: str) -> str:
    call = json.dumps({"name": "bash", "arguments": {"command": command}})
    return f"\n<tool_call>\n{call}\n</tool_call>"
