"""Which policy version vLLM's own label of its weights stands for (from 0.32 on, samples carry labels per token)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from drivetrain.engines.protocol import EngineError
from drivetrain.engines.remote import RemoteClient

_log = logging.getLogger(__name__)

_ABSENT = (401, 403, 404, 405, 501)


class _WeightInfo(msgspec.Struct):
    weight_version: str


class WeightLabels:
    """Label to version, learned where a version is set.

    A trainer may label the weights itself when it sends them; where it did not, the label becomes the version's
    number. Servers without labels (no ``VLLM_SERVER_DEV_MODE=1``) have none here either: only spans are lost.
    """

    def __init__(self, client: RemoteClient) -> None:
        self._client = client
        self._versions: dict[str, int] = {}

    async def learn(self, version: int, *, first: bool = False) -> None:
        """The weights that are served now are ``version``. ``first``: whatever they are called, leave it so.

        Raises:
            EngineError: a server fails. One without labels does not.
        """
        try:
            infos = await self._client.each("GET", "/weight_info", reply=_WeightInfo)
            if not first and any(info.weight_version in self._versions for info in infos):
                await self._client.each("POST", "/update_weight_version", {"new_version": str(version)})
                infos = [_WeightInfo(str(version))]
        except EngineError as error:
            if error.status not in _ABSENT:
                raise
            return
        self._versions.update({info.weight_version: version for info in infos})

    def spans(self, labelled: Sequence[tuple[int, str]]) -> tuple[tuple[int, int], ...]:
        """Runs of (tokens, version); empty where a label is not known: somebody changed weights without saying so."""
        unknown = {label for _, label in labelled} - self._versions.keys()
        if unknown:
            _log.warning("the engine server sampled from weights %s, which nobody announced", sorted(unknown))
            return ()
        runs: list[tuple[int, int]] = []
        for count, label in labelled:
            version = self._versions[label]
            if runs and runs[-1][1] == version:
                runs[-1] = (runs[-1][0] + count, version)
            else:
                runs.append((count, version))
        return tuple(runs)
