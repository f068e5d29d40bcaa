"""Are the weights that a server serves those of the trainer? One short text, scored by both after every update.

A server that got half an update is healthy and answers (engines.md section 5): only numbers tell. What a server says of
itself before and after does not: a head that stayed old beside a new embedding gives new numbers too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

import msgspec

from drivetrain.engines.protocol import EngineError
from drivetrain.errors import ConfigError

Cause = Literal["no_numbers", "some_servers", "unchanged", "neither"]
_SAME_NATS = 1e-4  # two float32 passes over the same text differ by 5e-6 on average (engines.md section 2)


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the trainer's own weights say of a fixed text.

    ``logprobs[i]`` is the natural log-prob, at temperature 1, of ``token_ids[i + 1]`` behind ``token_ids[: i + 1]``:
    one fewer than ids. ``tolerance`` is how far a server may be off, nats, mean of the absolute differences: 1e-3 holds
    a float32 server, 0.1 a bfloat16 one (measured: 5e-6 and 0.04).

    Raises:
        ConfigError: lengths that do not fit, no text, a log-prob that is none, a tolerance that is not positive.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    tolerance: float

    def __post_init__(self) -> None:
        if len(self.token_ids) < 2 or len(self.logprobs) != len(self.token_ids) - 1:
            raise ConfigError(
                f"a fingerprint has {len(self.token_ids)} ids and {len(self.logprobs)} log-probs.",
                fix="Give two ids or more, and the log-prob of each but the first.",
            )
        if not all(math.isfinite(value) and value <= 0 for value in self.logprobs):
            raise ConfigError("a fingerprint holds a log-prob that is not finite, or above 0.", fix="Use float32.")
        if not 0 < self.tolerance < math.inf:
            raise ConfigError(f"the tolerance of a fingerprint is {self.tolerance}.", fix="Give it in nats.")


class WeightsMismatch(EngineError):
    """A server's weights are not the trainer's. ``cause`` is what that looks like; ``gap`` is the largest of the
    servers' mean differences, nats (NaN where a server had no numbers)."""

    def __init__(self, cause: Cause, gap: float, what: str, fix: str) -> None:
        super().__init__(what, fix=fix, retryable=False, kind=f"weights_{cause}")
        self.cause = cause
        self.gap = gap


@runtime_checkable
class ChecksWeights(Protocol):
    """An engine whose weights somebody else sends, and that can be asked which they are."""

    async def check_weights(self, fingerprint: Fingerprint) -> float:
        """Score the text with the weights served now, on every server; not while paused. The largest mean difference.

        Raises:
            WeightsMismatch: see there.
            EngineError: a server does not answer.
        """


class Fingerprints:
    """Judges what servers say, and remembers it until the next time: so old weights are told from mixed ones."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, ...], Mapping[str, Sequence[float]]] = {}

    def judge(self, fingerprint: Fingerprint, told: Mapping[str, Sequence[float]]) -> float:
        """The largest mean difference.

        Args:
            told: log-probs by the server's address, as long as those of the fingerprint.

        Raises:
            WeightsMismatch: a server is off by more than the tolerance.
        """
        before = self._before.get(fingerprint.token_ids, {})
        self._before[fingerprint.token_ids] = dict(told)
        gaps = {server: _gap(fingerprint.logprobs, said) for server, said in told.items()}
        wrong = [server for server, gap in gaps.items() if not gap <= fingerprint.tolerance]
        if not wrong:
            return max(gaps.values())
        worst = max((gaps[server] for server in wrong), key=lambda gap: (math.isnan(gap), gap))
        raise _mismatch(wrong, worst, told, before, fingerprint.tolerance)


def _gap(ours: Sequence[float], theirs: Sequence[float]) -> float:
    if len(theirs) != len(ours) or not all(map(math.isfinite, theirs)):
        return math.nan
    return statistics.fmean(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def _mismatch(
    wrong: Sequence[str],
    gap: float,
    told: Mapping[str, Sequence[float]],
    before: Mapping[str, Sequence[float]],
    tolerance: float,
) -> WeightsMismatch:
    off = f"differ by {gap:.1e} from the trainer's (at most {tolerance:g})"
    where = f"{', '.join(wrong)}: log-probs of a fixed text {off}"
    if math.isnan(gap):
        return WeightsMismatch(
            "no_numbers",
            gap,
            f"{', '.join(wrong)}: a fixed text has log-probs that are missing or not finite.",
            "The weights hold NaN, or an update broke off: send all of them again.",
        )
    if len(wrong) < len(told):
        return WeightsMismatch(
            "some_servers",
            gap,
            f"{where}; the other servers serve the new weights.",
            "The update did not reach these servers: send it to them again.",
        )
    if all(server in before and _gap(before[server], told[server]) <= _SAME_NATS for server in wrong):
        return WeightsMismatch(
            "unchanged",
            gap,
            f"{where}, and are what they were before the update.",
            "The update did not arrive: look at the server's answer to it, and at the name of the model or adapter.",
        )
    return WeightsMismatch(
        "neither",
        gap,
        f"{where}: neither the old weights nor the trainer's.",
        "Suspects: an update that failed half-way; a tied embedding whose output head was not loaded again (vLLM on "
        "CPU: start it anew from the new weights); another dtype (then raise the tolerance).",
    )
