"""What a server sampled, whatever it calls the fields, and the completion that the gateway gets of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from drivetrain.engines.protocol import Completion, EngineFinish

_log = logging.getLogger(__name__)


class Sampled(msgspec.Struct, frozen=True):
    """An answer, read: ``logprobs`` is empty when none came, and NaN where one is missing or names another token.

    ``spans`` are (tokens, the server's label of the weights) in order, empty when it does not say.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: EngineFinish
    reported_tokens: int | None
    spans: tuple[tuple[int, str], ...] = ()
    misnamed: int = 0
    """Positions whose log-prob was of another token than the one sampled (case row B2)."""

    def completion(self, spans: Sequence[tuple[int, int]], *, dispatched: int, completed: int) -> Completion:
        """The completion.

        Args:
            spans: (tokens, policy version), where the server's labels are known; they win over the stamps.
            dispatched: policy version when the call was sent.
            completed: policy version when the answer came.
        """
        if self.misnamed:
            _log.warning("%d log-probs of a completion are of other tokens than those sampled", self.misnamed)
        return Completion(
            token_ids=self.token_ids,
            logprobs=self.logprobs,
            finish_reason=self.finish_reason,
            policy_version_start=spans[0][1] if spans else dispatched,
            policy_version_end=spans[-1][1] if spans else completed,
            version_spans=spans,
            reported_tokens=self.reported_tokens,
        )
