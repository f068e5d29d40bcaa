"""An engine in front of SGLang servers: token ids in, token ids and log-probs out, over the native ``/generate``."""

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
from drivetrain.engines.sglang.scoring import score
from drivetrain.engines.sglang.served import Served, WeightLabels, check_adapter, read_served
from drivetrain.engines.sglang.wire import HONOURED_KNOBS, GenerateReply, read, request

_log = logging.getLogger(__name__)

_FLUSH_TRIES = 10
_FLUSH_PAUSE_S = 0.5
_UPDATE_S = 1800.0


class _Done(msgspec.Struct):
    success: bool = True
    message: str = ""


class SGLangEngine:
    """Implements :class:`drivetrain.engines.protocol.Engine`, ``Pausable``, ``PrefixCached``, ``VersionSettable`` and
    :class:`drivetrain.engines.fingerprint.ChecksWeights`.

    Servers must not run with ``SGLANG_RETURN_ORIGINAL_LOGPROB`` (log-probs would be those before temperature; the
    probe measures it) nor with ``--allow-auto-truncate``. Samples repeat by seed only with
    ``--enable-deterministic-inference``. SGLang 0.5.3 or newer.

    Which template and tokenizer a server was started with it does not tell, so
    :func:`~drivetrain.engines.identity.check_identity` finds both unknown; prompts go out as ids in any case.

    Args:
        urls: base URL of one server or of several equal ones. Calls of a session go to one server while it is up.
        api_key: what servers were started with (``--api-key``).
        adapter: name of the loaded LoRA adapter that is the policy; None, or the served name, samples from the model
            itself.
        policy_version: of the weights served at first.
        boot_timeout_s: how long :meth:`start` waits for servers that still load.
        tell: gets a line now and then while it waits.

    Raises:
        ConfigError: an address that cannot be.
    """

    honoured_knobs = HONOURED_KNOBS

    def __init__(
        self,
        urls: str | list[str] | tuple[str, ...],
        *,
        api_key: str | None = None,
        adapter: str | None = None,
        policy_version: int = 0,
        boot_timeout_s: float = 600.0,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._client = RemoteClient(urls, api_key=api_key)
        self._labels = WeightLabels()
        self._fingerprints = Fingerprints()
        self._adapter = adapter
        self._version = policy_version
        self._boot_timeout_s = boot_timeout_s
        self._tell = tell
        self._served: Served | None = None
        self._starting = asyncio.Lock()
        self._aborts: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<SGLangEngine {', '.join(self._client.urls)}>"

    @property
    def name(self) -> str:
        """``sglang:`` and the served name."""
        return f"sglang:{self._adapter or (self._served.model if self._served else '?')}"

    @property
    def context_length(self) -> int:
        """Largest prompt + completion, in tokens: what the server takes, a little below the model's."""
        return self.served.context_length

    @property
    def policy_version(self) -> int:
        """As set last; SGLang does not count updates."""
        return self._version

    @property
    def served(self) -> Served:
        """What the servers said about themselves at :meth:`start`."""
        if self._served is None:
            raise EngineError("the SGLang engine was not started.", fix="Call start() first.", retryable=False)
        return self._served

    async def start(self) -> None:
        """Wait until every server is healthy, then read what it serves; idempotent.

        Raises:
            EngineError: a server is not ready in time, or fails.
            ConfigError: servers differ, shorten prompts, or have not loaded the adapter.
        """
        async with self._starting:
            if self._served is not None:
                return
            await self._client.open()
            try:
                await self._client.wait_ready(deadline_s=self._boot_timeout_s, tell=self._tell)
                served = await read_served(self._client)
                if self._adapter == served.model:
                    self._adapter = None
                if self._adapter is not None:
                    await check_adapter(self._client, self._adapter)
            except BaseException:
                await self._client.aclose()
                raise
            self._labels.know(served.labels, self._version)
            self._served = served

    async def aclose(self) -> None:
        """Close every connection, which aborts what runs; idempotent. The servers go on."""
        await asyncio.gather(*self._aborts, return_exceptions=True)
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
        """Sample one completion. Cancelling closes the connection and aborts the request in the server by its id:
        SGLang looks for closed connections only every few seconds.

        Raises:
            ContextOverflow: the prompt leaves no room.
            EngineMalformed: the answer is no completion of this prompt.
            EngineError: no server can be reached, it refuses, or the connection broke. Nothing is sent twice.
        """
        served, version = self.served, self._version
        # SGLang aborts every request whose id begins with the one named: ids end in digits of equal length.
        rid = f"{request_id}-{secrets.token_hex(8)}"
        body = request(
            prompt_ids,
            sampling,
            max_tokens=max(1, min(sampling.max_tokens, served.context_length - len(prompt_ids))),
            seed=secrets.randbits(31) if sampling.seed is None else sampling.seed,
            rid=rid,
            adapter=self._adapter,
        )
        try:
            reply = await self._client.post(
                "/generate", body, reply=GenerateReply, session_id=session_id, request_id=request_id
            )
        except asyncio.CancelledError:
            self._abort(rid)
            raise
        except EngineError as error:
            found = as_overflow(error, prompt_tokens=len(prompt_ids), context_length=served.context_length)
            if found is error:
                raise
            raise found from error
        sampled = read(reply, prompt_ids, sampling)
        return sampled.completion(self._labels.spans(sampled.spans), dispatched=version, completed=self._version)

    def _abort(self, rid: str) -> None:
        """Tell every server, behind the back of the call that was cancelled; only one knows the id."""

        async def tell() -> None:
            try:
                await self._client.each("POST", "/abort_request", {"rid": rid}, reply=bytes, timeout_s=10)
            except EngineError as error:
                _log.warning("a cancelled call was not aborted by its id: %s", error)

        task = asyncio.create_task(tell())
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def pause(self) -> None:
        """Hold running calls in every server (``retract``: their keys and values are computed again afterwards).

        The pause is a message that a server passes on to its scheduler without waiting; a question to the scheduler
        behind it is answered when it has taken effect.

        Raises:
            EngineError: a server could not; the others go on again.
        """
        try:
            await self._client.each("POST", "/pause_generation", {"mode": "retract"})
            await read_served(self._client)
        except BaseException:
            await asyncio.shield(self._resume_quietly())
            raise

    async def resume(self) -> None:
        """Go on, in every server.

        Raises:
            EngineError: a server could not.
        """
        await self._client.each("POST", "/continue_generation", {})

    async def _resume_quietly(self) -> None:
        try:
            await self.resume()
        except EngineError as error:
            _log.warning("%s", error)

    async def reset_prefix_cache(self) -> None:
        """Forget keys and values in every server. It must be idle or paused: SGLang flushes nothing while calls run.

        Raises:
            EngineError: a server could not, after several tries.
        """
        for attempt in range(_FLUSH_TRIES):
            if attempt:
                await asyncio.sleep(_FLUSH_PAUSE_S)
            try:
                await self._client.each("POST", "/flush_cache", {}, reply=bytes)
                return
            except EngineError as error:
                if error.status != 400:
                    raise
                refused = error
        raise EngineError(refused.what, fix="Pause the engine first.", status=400) from refused

    async def set_policy_version(self, version: int) -> None:
        """The servers now serve policy ``version``; their label becomes its number unless the trainer gave it one.

        Raises:
            EngineError: a server fails.
        """
        await self._labels.learn(self._client, version)
        self._version = version

    async def check_weights(self, fingerprint: Fingerprint) -> float:
        """Score a text with the policy on every server, which must not be paused. The largest mean difference, nats.

        Raises:
            WeightsMismatch: a server's weights are not the trainer's.
            EngineMalformed: a server did not score it.
            EngineError: a server fails.
        """
        _ = self.served  # or it was not started
        told = await score(self._client, self._adapter, fingerprint.token_ids)
        return self._fingerprints.judge(fingerprint, told)

    async def update_weights_from_disk(self, path: str, version: int) -> None:
        """Load the weights of a model directory that every server can read, as policy ``version``; call while paused.

        Raises:
            EngineError: a server did not; it may hold the old weights, others the new ones.
        """
        body: dict[str, Any] = {
            "model_path": path,
            "flush_cache": True,
            "abort_all_requests": False,
            "weight_version": str(version),
        }
        done = await self._client.each("POST", "/update_weights_from_disk", body, reply=_Done, timeout_s=_UPDATE_S)
        failed = [reply.message for reply in done if not reply.success]
        if failed:
            raise EngineError(f"an SGLang server did not load {path}: {failed[0]}", retryable=False)
        self._labels.know([str(version)], version)
        self._version = version
