"""Which fault happens when: drawn from a seed, every kind before any comes again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

Kind = Literal[
    "gateway_kill",  # SIGKILL, then a new process on the same journal
    "engine_restart",  # SIGKILL of the engine, then a new one
    "engine_hang",  # SIGSTOP of the engine, then SIGCONT
    "slow_disk",  # every commit takes long
    "disk_full",  # the journal's file cannot grow
    "clock_jump",  # the gateway's wall clock is set, forward or back
    "sandbox_death",  # SIGKILL of a sandbox's init while a client runs inside
    "relay_cut",  # every connection through the relay is reset
    "relay_swallow",  # the relay takes replies, passes nothing on, and closes
    "harness_crash",  # SIGKILL of a process full of clients
    "trainer_pause",  # the gate is closed for an update of the weights, and opened with a new version
]
KINDS: tuple[Kind, ...] = get_args(Kind)

# Seconds that a fault lasts, from and to; 0 = it is over at once.
_LASTS: dict[Kind, tuple[float, float]] = {
    "gateway_kill": (0.0, 1.0),
    "engine_restart": (0.2, 2.0),
    "engine_hang": (1.0, 6.0),
    "slow_disk": (2.0, 5.0),
    "disk_full": (1.0, 4.0),
    "clock_jump": (0.0, 0.0),
    "sandbox_death": (0.0, 1.0),
    "relay_cut": (0.0, 1.5),
    "relay_swallow": (0.2, 0.8),
    "harness_crash": (0.0, 0.0),
    "trainer_pause": (0.5, 3.0),
}
_QUIET_SHARE = 0.12
"""Share of the run, at its end, without a fault."""


class Fault(msgspec.Struct, frozen=True):
    """``at`` seconds after the start, for ``lasts`` seconds; ``dice`` in [0, 1) chooses whatever else there is."""

    at: float
    kind: Kind
    lasts: float
    dice: float


def draw(seed: int, seconds: float, *, kinds: Sequence[Kind] = KINDS, every_s: float = 2.4) -> list[Fault]:
    """Faults of a run of ``seconds``, in order; one about every ``every_s``, and one of each kind at least."""
    if not kinds:
        return []
    chance = random.Random(f"faults/{seed}")
    until = seconds * (1 - _QUIET_SHARE)
    count = max(len(kinds), int(until / every_s))
    order: list[Kind] = []
    while len(order) < count:
        order += chance.sample(list(kinds), len(kinds))
    gap = until / count
    return [
        Fault(
            at=round((number + chance.uniform(0.1, 0.9)) * gap, 3),
            kind=kind,
            lasts=round(chance.uniform(*_LASTS[kind]), 3),
            dice=round(chance.random(), 6),
        )
        for number, kind in enumerate(order[:count])
    ]
