"""What a session may do and how its policy is sampled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.gateway.knobs import DEFAULT_RULES, KnobName, KnobRule, check_rules
from drivetrain.gateway.patience import Patience
from drivetrain.gateway.volatile import compile_patterns

_MIB = 1 << 20
_POSITIVE = (
    "max_turns",
    "max_tokens_per_turn",
    "max_prompt_tokens",
    "max_completion_tokens",
    "max_total_tokens",
    "wall_clock_s",
    "call_timeout_s",
    "max_concurrent_calls",
    "max_body_bytes",
    "max_session_bytes",
    "key_ttl_s",
    "rate_per_s",
    "rate_burst",
)


class SessionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and sampling of one session, fixed when it is opened. None = no limit.

    ``model`` is the served name. ``temperature`` (> 0) is what the trainer uses too. ``seed`` makes the session
    reproducible. ``volatile_lines`` are regular expressions: system-prompt lines in which one is found are taken out
    before matching and rendering. ``patience`` is how keep-alives are sent to this session's harness; None leaves it
    to the server. ``images`` says what becomes of a picture: ``refuse`` answers 400, ``placeholder`` puts a short text
    in its place. ``reasoning`` is how earlier reasoning is rendered; None leaves it to the server's codec.

    Budgets (:mod:`drivetrain.gateway.budgets`): ``max_turns`` committed model calls; ``max_tokens_per_turn`` tokens
    sampled by one call; ``max_prompt_tokens``, ``max_completion_tokens`` and ``max_total_tokens`` tokens of all
    committed calls (a prompt is counted every time it is sent); ``wall_clock_s`` since the opening. When one is used
    up, ``on_budget`` is what a call gets: ``message``, a terminal assistant message, or ``error``, status 400 (429
    and 5xx are retried by harnesses, some without end: harnesses.md section 6).

    Limits (:mod:`drivetrain.gateway.limits`): ``call_timeout_s`` bounds the engine's time for one call (504).
    ``max_concurrent_calls`` run at once, ``max_queued_calls`` more wait in line, others get 429. ``rate_per_s``
    requests per second with bursts of ``rate_burst``, others get 429. ``max_body_bytes`` of one request (413).
    ``max_session_bytes`` of ids, log-probs and text of all its turns (413).
    The key is refused (401) ``key_ttl_s`` after it was issued.

    ``knobs`` are rules for what a harness may set, by knob; those left out have
    :data:`drivetrain.gateway.knobs.DEFAULT_RULES`. ``purpose`` ``eval`` marks every turn of the session as never
    trained.
    """

    model: str
    purpose: Literal["train", "eval"] = "train"
    temperature: float = 1.0
    seed: int | None = None
    knobs: dict[KnobName, KnobRule] = {}
    max_turns: int = 50
    max_tokens_per_turn: int = 1024
    max_prompt_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_total_tokens: int | None = None
    wall_clock_s: float | None = None
    on_budget: Literal["message", "error"] = "message"
    call_timeout_s: float | None = 1800.0
    max_concurrent_calls: int | None = 64
    max_queued_calls: int = 256
    max_body_bytes: int = 64 * _MIB
    max_session_bytes: int | None = 256 * _MIB
    rate_per_s: float | None = None
    rate_burst: int = 20
    key_ttl_s: float | None = None
    volatile_lines: tuple[str, ...] = ()
    patience: Patience | None = None
    images: Literal["refuse", "placeholder"] = "refuse"
    reasoning: Literal["keep", "template"] | None = None

    def __post_init__(self) -> None:
        compile_patterns(self.volatile_lines)
        if not self.model:
            raise ConfigError("model is empty.", fix="Name the model that is served.")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ConfigError(
                f"temperature {self.temperature} cannot be trained: the distribution must have full support.",
                fix="Use a temperature greater than 0, e.g. 1.0.",
            )
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(
                    f"{name} is {value}; it must be positive and finite.", fix="Leave it out for the default."
                )
        for name in ("seed", "max_queued_calls", *_POSITIVE):
            value = getattr(self, name)
            if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:  # the journal holds no larger one
                raise ConfigError(f"{name} is {value}; it must fit into 64 bits.", fix="Use a smaller number.")
        if self.max_queued_calls < 0:
            raise ConfigError(f"max_queued_calls is {self.max_queued_calls}; it must be 0 or more.")
        for name in ("purpose", "on_budget", "images", "reasoning"):
            self._check_choice(name)
        check_rules(self.knobs)

    def rule(self, knob: KnobName) -> KnobRule:
        """What becomes of a knob that a harness sets."""
        return self.knobs.get(knob) or DEFAULT_RULES[knob]

    def _check_choice(self, name: str) -> None:
        """A literal that was given in Python; msgspec checks those that come as JSON."""
        if getattr(self, name) not in _CHOICES[name]:
            options = ", ".join(map(str, _CHOICES[name]))
            raise ConfigError(f"{name} is {getattr(self, name)!r}.", fix=f"Choose one of: {options}.")


_CHOICES: dict[str, tuple[str | None, ...]] = {
    "purpose": ("train", "eval"),
    "on_budget": ("message", "error"),
    "images": ("refuse", "placeholder"),
    "reasoning": ("keep", "template", None),
}


def read_policy(fields: Mapping[str, Any], *, model: str) -> SessionPolicy:
    """The policy in a request to open a session; stricter than the journal's, which may be of a later version.

    Args:
        fields: of :class:`SessionPolicy`, as JSON says them. None of them is a URL: engines come from configuration.
        model: served name, unless the fields say another.

    Raises:
        ConfigError: an unknown field, or a value that cannot be.
    """
    patience = fields.get("patience")
    known = {"": (fields, SessionPolicy), "patience.": (patience if isinstance(patience, dict) else {}, Patience)}
    for place, (given, kind) in known.items():
        unknown = sorted(set(given) - set(kind.__struct_fields__))
        if unknown:
            raise ConfigError(
                f"the policy has no field {place}{unknown[0]}.",
                fix=f"Its fields are: {', '.join(kind.__struct_fields__)}.",
            )
    try:
        return msgspec.convert({"model": model, **fields}, SessionPolicy)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the policy cannot be read: {error}.") from error
