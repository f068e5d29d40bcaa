"""What vLLM servers say about themselves when the engine starts: models, context, API, chat template."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from drivetrain.engines.protocol import EngineError
from drivetrain.engines.remote import RemoteClient
from drivetrain.errors import ConfigError

Api = Literal["auto", "completions", "generate"]
APIS: tuple[Api, ...] = ("auto", "completions", "generate")


class ModelCard(msgspec.Struct):
    """One entry of ``/v1/models``; an adapter names its base as ``parent``."""

    id: str
    max_model_len: int | None = None
    parent: str | None = None


class _ModelList(msgspec.Struct):
    data: list[ModelCard]


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What is common to all servers. ``context_length`` is in tokens, of the server with the shortest."""

    versions: tuple[str, ...]
    model: str
    context_length: int
    api: Literal["completions", "generate"]
    template_sha256: str | None


async def read_served(client: RemoteClient, *, model: str | None, api: Api) -> Served:
    """Ask every server.

    Raises:
        ConfigError: a model that is not served everywhere, several and none named, different templates, an API that
            is not switched on.
        EngineError: a server does not answer.
    """
    lists = [reply.data for reply in await client.each("GET", "/v1/models", reply=_ModelList)]
    name = _choose(lists, model)
    return Served(
        versions=tuple(await _versions(client)),
        model=name,
        context_length=min(_context(cards, name) for cards in lists),
        api=await _api(client, api),
        template_sha256=await _template(client),
    )


async def check_served(client: RemoteClient, name: str) -> None:
    """Is there a model or an adapter of this name on every server?

    Raises:
        ConfigError: not so; the message lists what is served.
    """
    for cards in [reply.data for reply in await client.each("GET", "/v1/models", reply=_ModelList)]:
        if name not in (card.id for card in cards):
            raise _unknown(name, cards)


def _choose(lists: Sequence[list[ModelCard]], model: str | None) -> str:
    if model is None:
        bases = [card.id for card in lists[0] if card.parent is None]
        if len(bases) != 1:
            raise ConfigError(
                f"the vLLM server serves {len(bases)} models: {', '.join(bases) or 'none'}.", fix="Name one as model."
            )
        model = bases[0]
    for cards in lists:
        if model not in (card.id for card in cards):
            raise _unknown(model, cards)
    return model


def _unknown(name: str, cards: Sequence[ModelCard]) -> ConfigError:
    served = ", ".join(card.id for card in cards) or "nothing"
    return ConfigError(
        f"the vLLM server does not serve {name!r}; it serves {served}.",
        fix="Name one of these, or start the server with --served-model-name or load the adapter.",
    )


def _context(cards: Sequence[ModelCard], name: str) -> int:
    by_name = {card.id: card for card in cards}
    card: ModelCard | None = by_name[name]
    lengths = [found.max_model_len for found in cards if found.max_model_len]
    while card is not None and card.max_model_len is None:  # an adapter has its base's
        card = by_name.get(card.parent or "")
    if card is not None and card.max_model_len is not None:
        return card.max_model_len
    if len(set(lengths)) == 1:
        return lengths[0]
    raise ConfigError(
        f"the vLLM server does not say how long the context of {name} is.",
        fix="Let a router in between pass max_model_len of /v1/models on.",
    )


async def _versions(client: RemoteClient) -> list[str]:
    replies = await _optional(client, "GET", "/version")
    return [str(reply["version"]) if isinstance(reply, dict) and "version" in reply else "?" for reply in replies]


async def _api(client: RemoteClient, api: Api) -> Literal["completions", "generate"]:
    """``generate`` where every server has it switched on: an empty request is then wrong, else forbidden or unknown."""
    if api == "completions":
        return api
    off: set[int] = set()
    try:
        await client.each("POST", "/inference/v1/generate", {})
    except EngineError as error:
        if error.status in (400, 422):
            return "generate"
        if error.status not in (403, 404, 405, 501):
            raise
        off.add(error.status)
    if api == "auto":
        return "completions"
    raise ConfigError(
        f"/inference/v1/generate is not served (status {', '.join(map(str, sorted(off)))}).",
        fix="Start vLLM with --enable-scale-out, or use api='completions'.",
    )


async def _template(client: RemoteClient) -> str | None:
    """Digest of the chat template; only servers with ``--enable-tokenizer-info-endpoint`` tell it."""
    found: set[str | None] = set()
    for reply in await _optional(client, "GET", "/tokenizer_info"):
        source = reply.get("chat_template") if isinstance(reply, dict) else None
        found.add(hashlib.sha256(source.encode()).hexdigest() if isinstance(source, str) else None)
    if len(found - {None}) > 1:
        raise ConfigError("the vLLM servers have different chat templates.", fix="Start all from one model directory.")
    return found.pop() if len(found) == 1 else None


async def _optional(client: RemoteClient, method: str, path: str) -> list[Any]:
    """Answers of an endpoint that servers may lack or keep to themselves; none then."""
    try:
        return await client.each(method, path)
    except EngineError as error:
        if error.status in (401, 403, 404, 405, 501):
            return []
        raise
