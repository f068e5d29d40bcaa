"""A tokenizer that TRL's rollout loop accepts although it never parses with it."""

from __future__ import annotations

import copy
from typing import Any


def loop_owning_tokenizer(tokenizer: Any) -> Any:
    """The tokenizer, or a copy with an empty response template where TRL knows none for its chat template.

    TRL 1.16 refuses an unknown chat template when the loop is built, also where the agent owns the loop and nothing is
    ever parsed by TRL (trl.md section 5.3).
    """
    from trl.chat_template_utils import add_response_schema

    if getattr(tokenizer, "response_template", None) is not None or getattr(tokenizer, "response_schema", None):
        return tokenizer
    own = copy.deepcopy(tokenizer)
    try:
        return add_response_schema(own)
    except ValueError:
        own.response_template = {}
        return own
