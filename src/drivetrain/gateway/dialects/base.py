"""What a dialect does: one API of the wire, decoded into a :class:`Call` and encoded from a :class:`Reply`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from drivetrain.gateway.memo import MessageMemo
from drivetrain.gateway.patience import KeepAliveForm
from drivetrain.gateway.refusal import Refusal
from drivetrain.messages import Call, Message, Reply, RequestedSampling

Action = Literal["generate", "count", "models", "model"]
ImageRule = Literal["refuse", "placeholder"]


class Route(msgspec.Struct, frozen=True):
    """One allowed request. ``path`` is an aiohttp pattern; its named parts reach :attr:`WireRequest.parts`."""

    method: Literal["GET", "POST"]
    path: str
    action: Action


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it came, after its key was checked. ``headers`` are looked up in any case."""

    body: bytes
    path: str = ""
    parts: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}


class Memory(Protocol):
    """What a dialect may ask of the session."""

    @property
    def memo(self) -> MessageMemo:
        """Messages decoded before."""

    @property
    def images(self) -> ImageRule:
        """What becomes of a picture: ``refuse`` (400) or ``placeholder``."""

    def conversation(self, reply_id: str) -> tuple[Message, ...] | None:
        """The messages of a served turn and its reply (``previous_response_id``), or None when it is not known."""

    def requested(self, reply_id: str) -> RequestedSampling | None:
        """What the request behind a served turn asked for, or None when the turn is not known."""


class ServedModel(msgspec.Struct, frozen=True):
    """The one model of a session. ``context_length`` and ``max_output_tokens`` in tokens, ``created`` in seconds."""

    name: str
    context_length: int
    max_output_tokens: int
    created: int


class Dialect(Protocol):
    """One API: decode a request, encode a reply as JSON or as server-sent events, encode an error.

    A reply is encoded again, byte for byte the same, when a retry is replayed: encoding depends on its arguments only.
    """

    name: str
    routes: tuple[Route, ...]

    def claims(self, path: str, headers: Mapping[str, str]) -> bool:
        """Whether a request that no route knows, or that several dialects share, is this API's."""

    def decode(self, request: WireRequest, memory: Memory) -> Call:
        """Read a request (of action ``generate`` or ``count``); messages that the memo knows are not decoded again.

        Raises:
            Refusal: malformed, or asks for what cannot be served or trained.
        """

    def encode(self, reply: Reply, call: Call) -> bytes:
        """The JSON reply."""

    def opening(self, reply_id: str, call: Call) -> Sequence[bytes]:
        """Events that open a stream before the reply is there; may be empty."""

    def keep_alive(self, form: KeepAliveForm, reply_id: str, call: Call) -> bytes:
        """Bytes that keep a waiting client from giving up and mean nothing to it."""

    def events(self, reply: Reply, call: Call, *, opened: bool) -> Sequence[bytes]:
        """The reply as framed events, the terminal one last; ``opened`` when :meth:`opening` was sent before."""

    def encode_count(self, tokens: int) -> bytes:
        """The JSON answer to a ``count`` request."""

    def encode_models(self, model: ServedModel, action: Action) -> bytes:
        """The model list (``models``) or the one model (``model``)."""

    def error(self, refusal: Refusal) -> bytes:
        """The JSON error body."""

    def error_events(self, refusal: Refusal, reply_id: str, call: Call) -> Sequence[bytes]:
        """An error after the stream was opened as ``reply_id``; nothing in it looks like a finished reply."""
