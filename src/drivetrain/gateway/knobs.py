"""The sampling knobs a harness may set, and the rules for them (design section 4, "Generate")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from drivetrain.errors import ConfigError

KnobName = Literal[
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "seed",
    "stop",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "response_format",
    "tool_choice",
    "n",
    "logprobs",
    "reasoning_effort",
]

KnobRule = Literal[
    "honour",  # as the harness asks; the engine must be able to
    "clamp",  # as the harness asks, up to the session's limit (max_tokens only)
    "override",  # the session's own value; what was asked is recorded
    "refuse",  # 400 when the harness asks for anything but the session's own value
]

DEFAULT_RULES: Mapping[KnobName, KnobRule] = {
    "temperature": "override",
    "top_p": "override",
    "top_k": "override",
    "min_p": "override",
    "max_tokens": "clamp",
    "seed": "override",
    "stop": "override",
    "frequency_penalty": "override",
    "presence_penalty": "override",
    "repetition_penalty": "override",
    "logit_bias": "refuse",
    "response_format": "refuse",
    "tool_choice": "refuse",  # only when it forces a call
    "n": "refuse",  # only when more than 1
    "logprobs": "override",
    "reasoning_effort": "override",
}

ALWAYS_HONOURED: frozenset[KnobName] = frozenset({"temperature", "seed"})
"""What :class:`drivetrain.engines.protocol.Sampling` says to every engine."""

NEVER_HONOURED: Mapping[KnobName, str] = {
    "max_tokens": "the budgets limit it; use clamp",
    "n": "a reply holds one sample",
    "logprobs": "replies carry no log-probs (design section 5)",
    "reasoning_effort": "the chat template's arguments are fixed for the session",
}

DISTRIBUTION: frozenset[KnobName] = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "stop",  # a turn that ends where the policy did not end it
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "logit_bias",
        "response_format",
        "tool_choice",
    }
)
"""Knobs that, honoured, take the sample off the distribution that is trained."""

KNOBS: tuple[KnobName, ...] = get_args(KnobName)
_RULES: tuple[KnobRule, ...] = get_args(KnobRule)


def check_rules(rules: Mapping[KnobName, KnobRule]) -> None:
    """Refuse rules that no engine can follow.

    Raises:
        ConfigError: an unknown knob or rule, ``honour`` of a knob that cannot be, ``clamp`` of one without a limit.
    """
    for knob, rule in rules.items():
        if knob not in KNOBS:
            raise ConfigError(f"knobs: {knob!r} is no knob.", fix=f"Knobs are: {', '.join(KNOBS)}.")
        if rule not in _RULES:
            raise ConfigError(f"knobs: {rule!r} is no rule for {knob}.", fix=f"Rules are: {', '.join(_RULES)}.")
        if rule == "clamp" and knob != "max_tokens":
            raise ConfigError(f"knobs: {knob} cannot be clamped.", fix="Only max_tokens can; use override or refuse.")
        if rule == "honour" and knob in NEVER_HONOURED:
            raise ConfigError(
                f"knobs: {knob} cannot be honoured: {NEVER_HONOURED[knob]}.", fix="Use override or refuse."
            )


def check_supported(rules: Mapping[KnobName, KnobRule], engine: str, supported: frozenset[str]) -> None:
    """Refuse to honour what an engine cannot do.

    Args:
        rules: of the session.
        engine: its name, for the message.
        supported: knobs that the engine declares (:func:`drivetrain.engines.protocol.honoured_knobs`).

    Raises:
        ConfigError: see above.
    """
    for knob, rule in rules.items():
        if rule == "honour" and knob not in ALWAYS_HONOURED and knob not in supported:
            able = ", ".join(sorted(ALWAYS_HONOURED | supported))
            raise ConfigError(
                f"knobs: the engine {engine} cannot honour {knob}.", fix=f"Use override or refuse. It honours: {able}."
            )
