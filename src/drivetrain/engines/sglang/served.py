"""What an SGLang server says about itself: model, context, weights' label, adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from drivetrain.engines.protocol import EngineError
from drivetrain.engines.remote import RemoteClient
from drivetrain.errors import ConfigError

T = TypeVar("T")

_MARGIN = 6  # a request's tokens end 1 below the context, and its prompt 5 below that (scheduler, max_req_input_len)
_ABSENT = (403, 404, 405)


class Served(msgspec.Struct, frozen=True):
    """Facts of equal servers. ``context_length`` is the largest prompt + completion that every one of them takes;
    ``labels`` are the weights' labels now; ``deterministic``: samples repeat by seed."""

    model: str
    context_length: int
    labels: tuple[str, ...]
    deterministic: bool


class _ModelInfo(msgspec.Struct):
    model_path: str
    weight_version: str | None = None


class _ServerInfo(msgspec.Struct):
    served_model_name: str | None = None
    context_length: int | None = None
    max_req_input_len: int | None = None
    allow_auto_truncate: bool = False
    enable_deterministic_inference: bool = False


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []


async def read_served(client: RemoteClient) -> Served:
    """Ask every server what it serves.

    Raises:
        ConfigError: they differ, or one shortens prompts, or none says how long its context is.
        EngineError: a server fails.
    """
    models = await _either(client, "/model_info", _ModelInfo)
    infos = await _either(client, "/server_info", _ServerInfo)
    if any(info.allow_auto_truncate for info in infos):
        raise ConfigError(
            "an SGLang server shortens prompts that are too long.", fix="Start it without --allow-auto-truncate."
        )
    names = sorted({_name(info, model) for info, model in zip(infos, models, strict=True)})
    if len(names) > 1:
        raise ConfigError(f"the SGLang servers serve different models: {', '.join(names)}.", fix="Give equal servers.")
    return Served(
        model=names[0],
        context_length=min([_context(info) for info in infos] if all(map(_known, infos)) else await _told(client)),
        labels=tuple(model.weight_version for model in models if model.weight_version is not None),
        deterministic=all(info.enable_deterministic_inference for info in infos),
    )


async def check_adapter(client: RemoteClient, adapter: str) -> None:
    """Refuse an adapter that a server has not loaded.

    Raises:
        ConfigError: see above; the message lists what it serves.
        EngineError: a server fails.
    """
    for served in await client.each("GET", "/v1/models", reply=_Models):
        names = [model.id for model in served.data]
        if adapter not in names:
            raise ConfigError(
                f"SGLang serves no adapter {adapter!r}.",
                fix=f"Load it with /load_lora_adapter, or start with --lora-paths. Served: {', '.join(names)}.",
            )


async def _told(client: RemoteClient) -> list[int]:
    """Context lengths by the model list, for servers whose own page does not say."""
    lengths = [
        model.max_model_len - _MARGIN
        for served in await client.each("GET", "/v1/models", reply=_Models)
        for model in served.data
        if model.max_model_len
    ]
    if not lengths:
        raise ConfigError(
            "the SGLang server does not say how long its context is.", fix="Start it with --context-length."
        )
    return lengths


def _known(info: _ServerInfo) -> bool:
    return bool(info.max_req_input_len or info.context_length)


def _context(info: _ServerInfo) -> int:
    """SGLang takes prompts below ``max_req_input_len``, which the cache's size may make smaller than the context."""
    return info.max_req_input_len or (info.context_length or 0) - _MARGIN


def _name(info: _ServerInfo, model: _ModelInfo) -> str:
    return info.served_model_name or model.model_path


async def _either(client: RemoteClient, path: str, reply: type[T]) -> Sequence[T]:
    """A page under its name of today, or as ``get_...`` in older servers."""
    try:
        return await client.each("GET", path, reply=reply)
    except EngineError as error:
        if error.status not in _ABSENT:
            raise
    return await client.each("GET", path.replace("/", "/get_"), reply=reply)


class WeightLabels:
    """Label of the weights to policy version, learned where a version is set.

    A trainer may label weights itself when it sends them; where it did not, the label becomes the version's number.
    """

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}

    def know(self, labels: Sequence[str], version: int) -> None:
        """Weights with these labels are ``version``."""
        self._versions.update(dict.fromkeys(labels, version))

    async def learn(self, client: RemoteClient, version: int) -> None:
        """The weights that are served now are ``version``.

        Raises:
            EngineError: a server fails, or does not take a label.
        """
        infos = await _either(client, "/model_info", _ModelInfo)
        labels = [info.weight_version for info in infos if info.weight_version is not None]
        if any(self._versions.get(label, version) != version for label in labels):
            # by default this would abort whatever runs
            body = {"new_version": str(version), "abort_all_requests": False}
            await client.each("POST", "/update_weight_version", body)
            labels = [str(version)]
        self.know(labels, version)

    def spans(self, labelled: Sequence[tuple[int, str]]) -> tuple[tuple[int, int], ...]:
        """Runs of (tokens, version); empty where a label is not known: somebody changed weights without saying so."""
        if any(label not in self._versions for _, label in labelled):
            return ()
        runs: list[tuple[int, int]] = []
        for count, label in labelled:
            version = self._versions[label]
            if runs and runs[-1][1] == version:
                runs[-1] = (runs[-1][0] + count, version)
            else:
                runs.append((count, version))
        return tuple(runs)
