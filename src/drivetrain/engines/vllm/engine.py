"""An engine in front of vLLM servers: token ids in, token ids and log-probs out, over HTTP (engines.md section 2)."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from drivetrain.engines.fingerprint import Fingerprint, Fingerprints
from drivetrain.engines.protocol import Completion, EngineError, Sampling
from drivetrain.engines.remote import RemoteClient, as_overflow
from drivetrain.engines.remote.ids import packed
from drivetrain.engines.vllm.scoring import score
from drivetrain.engines.vllm.served import APIS, Api, Served, check_served, read_served
from drivetrain.engines.vllm.weights import WeightLabels
from drivetrain.engines.vllm.wire import HONOURED_KNOBS, WIRES, Wire
from drivetrain.errors import ConfigError

_log = logging.getLogger(__name__)

_COLDEST = 0.01  # below it vLLM samples at 0.01 and does not say so
_RESET_TRIES = 10
_RESET_PAUSE_S = 0.5
_IDLE_POLL_S = 0.05
_DEV_MODE = "Start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment (on an address that only the trainer reaches)."


class _ResetReply(msgspec.Struct):
    success: bool = True


class VLLMEngine:
    """Implements :class:`drivetrain.engines.protocol.Engine`, ``Pausable``, ``PrefixCached``, ``VersionSettable``,
    :class:`drivetrain.engines.fingerprint.ChecksWeights` and :class:`drivetrain.engines.identity.ServesTemplate`.

    Servers need ``--logprobs-mode processed_logprobs`` (the probe measures it) and, for weight updates,
    ``VLLM_SERVER_DEV_MODE=1``.

    Args:
        urls: base URL of one server or of several equal ones. Calls of a session go to one server while it is up.
        model: served name; None when only one is served.
        api: ``completions`` works with every version that TRL supports; ``generate`` needs ``--enable-scale-out`` and
            tells versions per token from 0.32 on; ``auto`` takes ``generate`` where it is switched on.
        api_key: what servers were started with (``--api-key``).
        adapter: name of the LoRA adapter that is the policy. With ``{version}`` in it, as in ``trl-policy-v{version}``,
            it names a new adapter per policy version, and version 0 is the model itself (TRL's adapter sync).
        policy_version: of the weights served at first.
        boot_timeout_s: how long :meth:`start` waits for servers that still load.
        tell: gets a line now and then while it waits.

    Raises:
        ConfigError: an address, API or adapter name that cannot be.
    """

    honoured_knobs = HONOURED_KNOBS
    max_temperature = 2.0
    """vLLM refuses more (probe: a flat distribution cannot be asked for)."""

    def __init__(
        self,
        urls: str | list[str] | tuple[str, ...],
        *,
        model: str | None = None,
        api: Api = "auto",
        api_key: str | None = None,
        adapter: str | None = None,
        policy_version: int = 0,
        boot_timeout_s: float = 600.0,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        if api not in APIS:
            raise ConfigError(f"vLLM has no API {api!r}.", fix=f"Use one of {', '.join(APIS)}.")
        if adapter is not None and ("{" in adapter.replace("{version}", "") or not adapter):
            raise ConfigError(f"{adapter!r} is no adapter name.", fix="Only {version} may stand in braces.")
        self._client = RemoteClient(urls, api_key=api_key)
        self._labels = WeightLabels(self._client)
        self._fingerprints = Fingerprints()
        self._asked_model = model
        self._asked_api = api
        self._adapter = adapter
        self._version = policy_version
        self._boot_timeout_s = boot_timeout_s
        self._tell = tell
        self._served: Served | None = None
        self._starting = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<VLLMEngine {', '.join(self._client.urls)}>"

    @property
    def name(self) -> str:
        """``vllm:`` and the served name."""
        return f"vllm:{self._served.model if self._served else self._asked_model or '?'}"

    @property
    def context_length(self) -> int:
        """Largest prompt + completion, in tokens: the servers' ``max_model_len``."""
        return self._facts.context_length

    @property
    def policy_version(self) -> int:
        """As set last; vLLM does not count updates."""
        return self._version

    @property
    def template_sha256(self) -> str | None:
        """Digest of the chat template, from servers with ``--enable-tokenizer-info-endpoint``."""
        return self._facts.template_sha256

    @property
    def tokenizer_sha256(self) -> str | None:
        """vLLM does not tell."""
        return None

    @property
    def served(self) -> Served:
        """What the servers said about themselves at :meth:`start`."""
        return self._facts

    @property
    def _facts(self) -> Served:
        if self._served is None:
            raise EngineError("the vLLM engine was not started.", fix="Call start() first.", retryable=False)
        return self._served

    @property
    def _wire(self) -> Wire:
        return WIRES[self._facts.api]

    async def start(self) -> None:
        """Wait until every server is healthy, then read what it serves; idempotent.

        Raises:
            EngineError: a server is not ready in time, or fails.
            ConfigError: the model, the adapter or the API is not served; the message lists what is.
        """
        async with self._starting:
            if self._served is not None:
                return
            await self._client.open()
            try:
                await self._client.wait_ready(deadline_s=self._boot_timeout_s, tell=self._tell)
                served = await read_served(self._client, model=self._asked_model, api=self._asked_api)
                policy = self._model_of(self._version, served.model)
                if policy != served.model:
                    await check_served(self._client, policy)
                await self._labels.learn(self._version, first=True)
            except BaseException:
                await self._client.aclose()
                raise
            self._served = served
        _log.info("vLLM %s: %s, %d tokens, %s", served.versions, policy, served.context_length, served.api)

    async def aclose(self) -> None:
        """Close every connection, which aborts what runs; idempotent. The servers go on."""
        await self._client.aclose()
        self._served = None

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session_id: str = ""
    ) -> Completion:
        """:meth:`generate_packed` of a list."""
        return await self.generate_packed(packed(prompt_ids), sampling, request_id=request_id, session_id=session_id)

    async def generate_packed(
        self, prompt_ids: npt.NDArray[np.int32], sampling: Sampling, *, request_id: str, session_id: str = ""
    ) -> Completion:
        """Sample one completion. Cancelling closes the connection, on which vLLM aborts the request.

        Raises:
            ContextOverflow: the prompt leaves no room.
            EngineMalformed: the answer is no completion of this prompt.
            EngineError: no server can be reached, it refuses, or the connection broke. Nothing is sent twice.
        """
        served, wire, version = self._facts, self._wire, self._version
        if sampling.temperature < _COLDEST:
            raise EngineError(
                f"vLLM cannot sample at temperature {sampling.temperature:g}.",
                fix=f"Use {_COLDEST:g} or more.",
                retryable=False,
            )
        room = served.context_length - len(prompt_ids)
        seed = secrets.randbits(62) if sampling.seed is None else sampling.seed % 2**63
        body = wire.request(
            self._model_of(version, served.model), prompt_ids, sampling, max(1, min(sampling.max_tokens, room)), seed
        )
        try:
            reply = await self._client.post(
                wire.path, body, reply=wire.reply, session_id=session_id, request_id=request_id
            )
        except EngineError as error:
            found = as_overflow(error, prompt_tokens=len(prompt_ids), context_length=served.context_length)
            if found is error:
                raise
            raise found from error
        sampled = wire.read(reply, prompt_ids)
        # An adapter per version goes on under its own name; anything else may have been changed while it ran.
        after = version if self._adapter_per_version else self._version
        return sampled.completion(self._labels.spans(sampled.spans), dispatched=version, completed=after)

    @property
    def _adapter_per_version(self) -> bool:
        return self._adapter is not None and "{version}" in self._adapter

    def _model_of(self, version: int, base: str) -> str:
        """The name that serves this version of the policy."""
        if self._adapter is None or (self._adapter_per_version and version == 0):
            return base
        return self._adapter.replace("{version}", str(version))

    async def pause(self) -> None:
        """Freeze running calls in every server (``mode=keep``); they finish after :meth:`resume`.

        Raises:
            EngineError: a server could not; the others go on again.
        """
        try:
            await self._control("/pause?mode=keep")
        except BaseException:
            await asyncio.shield(self._control("/resume", fails=False))
            raise

    async def resume(self) -> None:
        """Go on, in every server.

        Raises:
            EngineError: a server could not.
        """
        await self._control("/resume")

    async def reset_prefix_cache(self) -> None:
        """Forget keys and values in every server; running calls compute theirs again.

        Raises:
            EngineError: a server could not, after several tries (blocks can still be held for a moment).
        """
        for attempt in range(_RESET_TRIES):
            if attempt:
                await asyncio.sleep(_RESET_PAUSE_S)
            done = await self._control("/reset_prefix_cache?reset_running_requests=true")
            if all(msgspec.convert(reply or {}, _ResetReply).success for reply in done):
                return
        raise EngineError("a vLLM server did not reset its prefix cache: it still holds blocks.", fix="Pause it first.")

    async def set_policy_version(self, version: int) -> None:
        """The servers now serve policy ``version``.

        Raises:
            ConfigError: there is an adapter per version, and this one is not loaded everywhere.
            EngineError: a server fails.
        """
        served = self._facts
        if self._adapter_per_version and version != 0:
            await check_served(self._client, self._model_of(version, served.model))
        await self._labels.learn(version)
        self._version = version

    async def check_weights(self, fingerprint: Fingerprint) -> float:
        """Score a text with the policy on every server, which must not be paused. The largest mean difference, nats.

        Where the policy is an adapter this waits until our running calls have ended.

        Raises:
            WeightsMismatch: a server's weights are not the trainer's.
            EngineMalformed: a server did not score it.
            EngineError: a server fails.
        """
        model = self._model_of(self._version, self._facts.model)
        # vLLM's CPU code for adapters ends the engine over a scored prompt in a batch with another call.
        while self._adapter is not None and self._client.in_flight:  # noqa: ASYNC110
            await asyncio.sleep(_IDLE_POLL_S)
        return self._fingerprints.judge(fingerprint, await score(self._client, model, fingerprint.token_ids))

    async def _control(self, path: str, *, fails: bool = True) -> list[Any]:
        """A call to every server that may not be missing."""
        try:
            return await self._client.each("POST", path)
        except EngineError as error:
            if not fails:
                _log.warning("%s", error)
                return []
            if error.status in (403, 404, 405):
                raise EngineError(
                    error.what, fix=_DEV_MODE, retryable=False, status=error.status, kind=error.kind
                ) from error
            raise
