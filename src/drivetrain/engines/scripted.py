"""An engine that says what a script tells it, in ids of a real tokenizer: for tests, demos and fault injection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from drivetrain.engines.models import ModelDir, read_model_dir
from drivetrain.engines.protocol import Completion, ContextOverflow, EngineError, EngineFinish, Sampling
from drivetrain.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_HANG_S = 10**9


class ScriptedReply(msgspec.Struct, kw_only=True):
    """One scripted completion.

    ``text`` is encoded and closed by the stop token; ``token_ids`` (taken as they are, stop token included or not)
    wins over it. ``logprobs`` default to values derived from the ids. ``finish_reason`` defaults to ``stop`` when the
    last id is a stop token, else ``length``. ``delay_s`` is waited before answering; ``hang`` waits until cancelled.
    ``error`` is raised after the delay.
    """

    text: str = ""
    token_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    finish_reason: EngineFinish | None = None
    delay_s: float = 0.0
    hang: bool = False
    error: Exception | None = None


class ScriptedCall(msgspec.Struct, kw_only=True):
    """What one ``generate`` was asked, for assertions. ``outcome`` is ``pending`` until the call ends."""

    request_id: str
    session_id: str
    index: int
    prompt_ids: list[int]
    sampling: Sampling
    outcome: str = "pending"


Script = Callable[[list[int], str, int], "str | ScriptedReply"]
"""``script(prompt_ids, prompt_text, call_index_in_session)``; special tokens stay visible in ``prompt_text``."""


def fake_logprob(position: int, token_id: int) -> float:
    """A finite log-prob in (-3, 0) that depends on the id and its position only."""
    return -(1 + (token_id * 7919 + position * 104729) % 2999) / 1000


class ScriptedEngine:
    """Implements :class:`drivetrain.engines.protocol.Engine` without a model.

    Args:
        tokenizer: a :class:`ModelDir`, a model directory, or a ``tokenizer.json`` (then give ``stop_token_id``).
        script: called once per ``generate``, with the number of earlier calls of the same ``session_id``.
        stop_token_id: closes every text; default: the model's own.
        context_length: in tokens; default: the model's, else 1,000,000.
        latency_s: waited in every call.
        per_token_s: waited per sampled token, on top; tokens then carry the version of their own moment.
    """

    def __init__(
        self,
        tokenizer: ModelDir | Path | str,
        script: Script,
        *,
        stop_token_id: int | None = None,
        context_length: int | None = None,
        latency_s: float = 0.0,
        per_token_s: float = 0.0,
        name: str = "scripted",
        policy_version: int = 0,
    ) -> None:
        from tokenizers import Tokenizer

        model = _model_dir(tokenizer)
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(model.tokenizer_path if model else tokenizer))
        if stop_token_id is None:
            stop_token_id = model.eos_token_id if model else self._tokenizer.token_to_id("<|im_end|>")
        if stop_token_id is None:
            raise ConfigError(f"{tokenizer} does not say which token ends a turn.", fix="Pass stop_token_id.")
        self._script = script
        self._stop = stop_token_id
        self._context = context_length or (model.context_length if model else 1_000_000)
        self._latency_s = latency_s
        self._per_token_s = per_token_s
        self._name = name
        self._seen: dict[str, int] = {}
        self.policy_version = policy_version
        self.calls: list[ScriptedCall] = []
        """Every call in order of arrival."""
        self.running = 0
        """Calls in flight."""
        self.peak = 0
        """Most calls ever in flight."""
        self.prefix_resets = 0
        """How often the prefix cache, which there is none of, was reset."""
        self._going = asyncio.Event()
        self._going.set()

    @classmethod
    def from_lines(
        cls,
        lines: Sequence[str | ScriptedReply] | Mapping[str, Sequence[str | ScriptedReply]],
        tokenizer: ModelDir | Path | str,
        *,
        then: str | ScriptedReply | None = None,
        **options: Any,
    ) -> ScriptedEngine:
        """Replay replies in order, per session; a mapping gives each session id its own lines.

        When a session's lines are used up, ``then`` is said forever; without it the call fails.
        """
        engine: ScriptedEngine

        def script(_ids: list[int], _text: str, index: int) -> str | ScriptedReply:
            session = engine.calls[-1].session_id
            own = lines.get(session, ()) if isinstance(lines, Mapping) else lines
            if index < len(own):
                return own[index]
            if then is not None:
                return then
            raise EngineError(
                f"the script has {len(own)} replies for session {session!r}; call {index + 1} came.",
                fix="Add lines, or pass then=.",
                retryable=False,
            )

        engine = cls(tokenizer, script, **options)
        return engine

    @property
    def name(self) -> str:
        """Identity for provenance."""
        return self._name

    @property
    def context_length(self) -> int:
        """Largest prompt + completion, in tokens."""
        return self._context

    async def start(self) -> None:
        """Nothing to load."""

    async def aclose(self) -> None:
        """Nothing to free."""

    async def pause(self) -> None:
        """Answer nothing and sample nothing until :meth:`resume`."""
        self._going.clear()

    async def resume(self) -> None:
        """Go on."""
        self._going.set()

    async def reset_prefix_cache(self) -> None:
        """Count it."""
        self.prefix_resets += 1

    async def set_policy_version(self, version: int) -> None:
        """Serve as this version from now on."""
        self.policy_version = version

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session_id: str = ""
    ) -> Completion:
        """Ask the script. See :class:`drivetrain.engines.protocol.Engine`.

        Raises:
            ContextOverflow: the prompt fills the context.
            EngineError: the script raised or asked for it.
        """
        ids = list(prompt_ids)
        index = self._seen.get(session_id, 0)
        self._seen[session_id] = index + 1
        call = ScriptedCall(
            request_id=request_id, session_id=session_id, index=index, prompt_ids=ids, sampling=sampling
        )
        self.calls.append(call)
        self.running += 1
        self.peak = max(self.peak, self.running)
        version = self.policy_version
        try:
            if len(ids) >= self._context:
                raise ContextOverflow(len(ids), self._context)
            reply = self._script(ids, self._tokenizer.decode(ids, skip_special_tokens=False), index)
            completion = await self._answer(reply, len(ids), sampling, version)
        except asyncio.CancelledError:
            call.outcome = "cancelled"
            raise
        except Exception:
            call.outcome = "error"
            raise
        finally:
            self.running -= 1
        call.outcome = completion.finish_reason
        return completion

    async def _answer(
        self, reply: str | ScriptedReply, prompt_length: int, sampling: Sampling, version: int
    ) -> Completion:
        if isinstance(reply, str):
            reply = ScriptedReply(text=reply)
        sampled = list(reply.token_ids) if reply.token_ids is not None else self._encode(reply.text)
        room = min(sampling.max_tokens, self._context - prompt_length)
        cut = len(sampled) > room
        sampled = sampled[:room]
        delay = self._latency_s + reply.delay_s
        if delay or reply.hang:
            await asyncio.sleep(_HANG_S if reply.hang else delay)
        await self._going.wait()
        spans = await self._sample(len(sampled)) if self._per_token_s else []
        if reply.error is not None:
            raise reply.error
        stops = {self._stop, *sampling.stop_token_ids}
        ended: EngineFinish = "stop" if sampled and sampled[-1] in stops else "length"
        logprobs = [fake_logprob(*pair) for pair in enumerate(sampled)] if reply.logprobs is None else reply.logprobs
        return Completion(
            token_ids=sampled,
            logprobs=list(logprobs)[:room],
            finish_reason=ended if cut or reply.finish_reason is None else reply.finish_reason,
            policy_version_start=spans[0][1] if spans else version,
            policy_version_end=spans[-1][1] if spans else self.policy_version,
            version_spans=spans,
        )

    async def _sample(self, tokens: int) -> list[tuple[int, int]]:
        """Take the time of so many tokens; runs of (tokens, version)."""
        spans: list[tuple[int, int]] = []
        for _ in range(tokens):
            await asyncio.sleep(self._per_token_s)
            await self._going.wait()
            if spans and spans[-1][1] == self.policy_version:
                spans[-1] = (spans[-1][0] + 1, self.policy_version)
            else:
                spans.append((1, self.policy_version))
        return spans

    def _encode(self, text: str) -> list[int]:
        return [*self._tokenizer.encode(text, add_special_tokens=False).ids, self._stop]


def _model_dir(tokenizer: ModelDir | Path | str) -> ModelDir | None:
    if isinstance(tokenizer, ModelDir):
        return tokenizer
    path = Path(tokenizer)
    if path.is_dir():
        return read_model_dir(path, path.name)
    if not path.is_file():
        raise ConfigError(f"{path} does not exist.", fix="Pass a model directory or a tokenizer.json.")
    return None


def texts(calls: Iterable[ScriptedCall], engine: ScriptedEngine) -> list[str]:
    """The prompts of ``calls`` as text, special tokens visible."""
    return [engine._tokenizer.decode(call.prompt_ids, skip_special_tokens=False) for call in calls]
