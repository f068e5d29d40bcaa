"""A protocol double of a vLLM server: the wire of 0.31 and 0.32 as measured live (engines.md section 2), no vLLM in it.

It samples through any engine of ours and spoils what it says on request, as servers and routers in between do.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec
from aiohttp import web

from drivetrain.engines.protocol import Completion, Engine, Pausable, Sampling
from tests.engines.table_engine import VOCAB, TableEngine

NEUTRAL: dict[str, Any] = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": {},
}
OFF: dict[str, tuple[Any, ...]] = {"top_k": (0, -1)}


class WireFaults(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong between a client and its model."""

    drops: tuple[str, ...] = ()
    """Fields of a choice that a router does not know (case row B6)."""
    ignores: tuple[str, ...] = ()
    """Fields of a request that are not passed on."""
    most: dict[str, float] = {}
    """Knobs that are obeyed up to a value, and cut to it in silence."""
    refuses_ids: bool = False
    misnames: bool = False
    """Log-probs are of the next token, and say so."""
    null_at: int | None = None
    floor_at: int | None = None
    drops_stop: bool = False
    adds_bos: bool = False
    one_at_a_time: bool = False
    """Works on a call after its client has gone, and on no other meanwhile."""
    overflow_status: int = 400


class KnobTable(TableEngine):
    """The table model behind a server: filters act as a request says."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session_id: str = ""
    ) -> Completion:
        """Sample with the request's own filters."""
        self.calls += 1
        call = copy.copy(self)
        own = {knob: sampling.extra[knob] for knob in ("top_p", "top_k", "min_p") if knob in sampling.extra}
        call.faults = msgspec.structs.replace(self.faults, **own)
        call.bias = {int(token): value for token, value in sampling.extra.get("logit_bias", {}).items()}
        return await TableEngine.generate(call, prompt_ids, sampling, request_id=request_id, session_id=session_id)


class VLLMDouble:
    """One server.

    Args:
        engine: samples.
        version: whose wire it speaks.
        scale_out, dev_mode, tokenizer_info: the switches of a real server.
        generation_config: defaults of knobs that a request leaves out.
        models: served names; those after the first are adapters of it.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        version: Literal["0.31.0", "0.32.0"] = "0.31.0",
        scale_out: bool = False,
        dev_mode: bool = True,
        template: str | None = None,
        generation_config: dict[str, Any] | None = None,
        models: Sequence[str] = ("policy",),
        api_key: str | None = None,
        vocab_size: int = VOCAB,
        faults: WireFaults | None = None,
    ) -> None:
        self.engine = engine
        self.version = version
        self.scale_out = scale_out
        self.dev_mode = dev_mode
        self.template = template
        self.generation_config = generation_config or {}
        self.models = list(models)
        self.api_key = api_key
        self.vocab_size = vocab_size
        self.faults = faults or WireFaults()
        self.weights = 0
        """Which weights score a prompt (:func:`scored`)."""
        self.scores_prompts = True
        self.labels = {0: "default"}
        self.label_now = "default"
        self.requests: list[dict[str, Any]] = []
        """Bodies of all calls for a completion."""
        self.headers: list[dict[str, str]] = []
        self.control: list[str] = []
        """Paths of all calls to control endpoints."""
        self.aborted = 0
        self.reset_fails = 0
        self.instead: Callable[[int], web.StreamResponse | None] = lambda _number: None
        """An answer in place of a completion, by the number of the call."""
        self.url = ""
        self._lock = asyncio.Lock()
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def start(self) -> str:
        """Listen on loopback, on the same port as before; the base URL."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/version", self._json(lambda: {"version": self.version})),
                web.get("/v1/models", self._models),
                web.get("/tokenizer_info", self._tokenizer_info),
                web.post("/v1/completions", self._completions),
                web.post("/inference/v1/generate", self._generate),
                web.post("/{path:pause|resume|reset_prefix_cache|update_weight_version}", self._dev),
                web.get("/weight_info", self._dev),
            ]
        )
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"
        return self.url

    async def stop(self) -> None:
        """Go away; :meth:`start` comes back on the same port."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def update(self, label: str | None = None) -> None:
        """New weights; without a label the old one stays, as when the trainer gives none."""
        version = self.engine.policy_version + 1
        self.engine.policy_version = version  # type: ignore[misc]
        self.label_now = self.labels[version] = label or self.label_now

    def _json(self, make: Callable[[], Any]) -> Callable[[web.Request], Any]:
        async def answer(_request: web.Request) -> web.Response:
            return web.json_response(make())

        return answer

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        if self.api_key and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        first = {"id": self.models[0], "object": "model", "parent": None, "max_model_len": self.engine.context_length}
        adapters = [
            {"id": name, "object": "model", "parent": self.models[0], "max_model_len": None} for name in self.models[1:]
        ]
        return web.json_response({"object": "list", "data": [first, *adapters]})

    async def _tokenizer_info(self, _request: web.Request) -> web.Response:
        if self.template is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response({"tokenizer_class": "Tokenizer", "chat_template": self.template})

    async def _dev(self, request: web.Request) -> web.Response:
        self.control.append(request.path_qs)
        if not self.dev_mode:
            return web.json_response({"detail": "Not Found"}, status=404)
        if request.path == "/weight_info":
            return web.json_response({"weight_version": self.label_now})
        if request.path == "/update_weight_version":
            self.label_now = self.labels[self.engine.policy_version] = (await request.json())["new_version"]
            return web.json_response({"success": True, "new_version": self.label_now})
        if request.path == "/reset_prefix_cache":
            self.reset_fails -= 1
            return web.json_response({"success": self.reset_fails < 0})
        assert isinstance(self.engine, Pausable)
        await (self.engine.pause() if request.path == "/pause" else self.engine.resume())
        return web.json_response({"status": "paused" if request.path == "/pause" else "resumed"})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return await self._serve(request, body, body.get("prompt"), body, self._completions_choice)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        if not self.scale_out:
            return _error(403, "Scale-out endpoints are disabled. Set --enable-scale-out to enable them.", "Forbidden")
        body = await request.json()
        if "token_ids" not in body or "sampling_params" not in body:
            return _error(400, "2 validation errors: Field required", "Bad Request")
        return await self._serve(request, body, body["token_ids"], body["sampling_params"], self._generate_choice)

    async def _serve(
        self, request: web.Request, body: dict[str, Any], prompt: list[int], knobs: dict[str, Any], choice: Any
    ) -> web.StreamResponse:
        number = len(self.requests)
        self.requests.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if (spoilt := self.instead(number)) is not None:
            return spoilt
        if (refused := self._refused(body, prompt, knobs)) is not None:
            return refused
        prompt = [1, *prompt] if self.faults.adds_bos else prompt
        sampling = self._sampling(knobs)
        try:
            if self.faults.one_at_a_time:
                done = await asyncio.shield(asyncio.ensure_future(self._alone(prompt, sampling)))
            else:
                done = await self.engine.generate(prompt, sampling, request_id=str(number))
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        if self.faults.drops_stop and done.finish_reason == "stop":
            counted = len(done.token_ids)
            done = msgspec.structs.replace(done, token_ids=done.token_ids[:-1], logprobs=done.logprobs[:-1])
        else:
            counted = done.reported_tokens or len(done.token_ids)
        filled = choice(done, prompt)
        if knobs.get("prompt_logprobs") == 0 and self.scores_prompts:
            told = zip(prompt[1:], scored(prompt, self.weights), strict=True)
            rest = [{str(token): {"logprob": value, "rank": 1, "decoded_token": "?"}} for token, value in told]
            filled["prompt_logprobs"] = [None, *rest]
        for field in self.faults.drops:
            filled.pop(field, None)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": counted, "total_tokens": len(prompt) + counted}
        return web.json_response({"id": f"cmpl-{number}", "choices": [filled], "usage": usage})

    async def _alone(self, prompt: list[int], sampling: Sampling) -> Completion:
        async with self._lock:
            return await self.engine.generate(prompt, sampling, request_id="")

    def _refused(self, body: dict[str, Any], prompt: list[int], knobs: dict[str, Any]) -> web.Response | None:
        """vLLM's own refusals, in its words."""
        if self.faults.refuses_ids:
            return _error(400, "prompt must be a string", "BadRequestError")
        if body["model"] not in self.models:
            return _error(404, f"The model `{body['model']}` does not exist.", "NotFoundError", "model")
        if max(prompt) >= self.vocab_size:
            return _error(400, f"Token id {max(prompt)} is out of vocabulary", "BadRequestError")
        if not 0 <= knobs["temperature"] <= 2:
            return _error(400, f"temperature must be in [0, 2], got {knobs['temperature']}.", "BadRequestError")
        limit, wanted = self.engine.context_length, knobs.get("max_tokens") or 16
        if len(prompt) + wanted > limit:
            if body is knobs:
                text = (
                    f"This model's maximum context length is {limit} tokens. However, you requested {wanted} output "
                    f"tokens and your prompt contains at least {len(prompt)} input tokens, for a total of at least "
                    f"{len(prompt) + wanted} tokens. Please reduce the length of the input prompt."
                )
            else:
                text = (
                    f"The decoder prompt (length {len(prompt)}) plus the number of requested output tokens (at least "
                    f"{wanted}) is longer than the maximum model length of {limit}."
                )
            return _error(self.faults.overflow_status, text, "BadRequestError", "input_tokens")
        return None

    def _sampling(self, knobs: dict[str, Any]) -> Sampling:
        sent = {name: value for name, value in knobs.items() if name not in self.faults.ignores and value is not None}
        used = {name: sent.get(name, self.generation_config.get(name, neutral)) for name, neutral in NEUTRAL.items()}
        for name, most in self.faults.most.items():
            used[name] = most if used[name] in OFF.get(name, ()) else min(used[name], most)
        return Sampling(
            max_tokens=sent.get("max_tokens", 16),
            temperature=sent.get("temperature", self.generation_config.get("temperature", 1.0)),
            seed=sent.get("seed", 0),
            stop_token_ids=tuple(sent.get("stop_token_ids", ())),
            extra={name: value for name, value in used.items() if value not in (NEUTRAL[name], *OFF.get(name, ()))},
        )

    def _entries(self, done: Completion) -> tuple[list[int], list[float | None]]:
        """(ids that log-probs name, log-probs)."""
        named, told = list(done.token_ids), [max(value, -9999.0) for value in done.logprobs]
        logprobs: list[float | None] = list(told)
        if self.faults.misnames:
            named = [*named[1:], 0]
        if self.faults.null_at is not None:
            logprobs[self.faults.null_at] = None
        if self.faults.floor_at is not None:
            logprobs[self.faults.floor_at] = -9999.0
        return named, logprobs

    def _completions_choice(self, done: Completion, prompt: list[int]) -> dict[str, Any]:
        named, logprobs = self._entries(done)
        tokens = [f"token_id:{token}" for token in named]
        return {
            "index": 0,
            "text": "?",
            "logprobs": {"text_offset": [], "token_logprobs": logprobs, "tokens": tokens, "top_logprobs": []},
            "finish_reason": done.finish_reason,
            "stop_reason": None,
            "token_ids": list(done.token_ids),
            "prompt_token_ids": prompt,
        }

    def _generate_choice(self, done: Completion, _prompt: list[int]) -> dict[str, Any]:
        named, logprobs = self._entries(done)
        old = self.version == "0.31.0"
        entries = [
            {"token": f"token_id:{token}", "logprob": value, "bytes": None, "top_logprobs": []}
            if old
            else {"token_id": token, "logprob": value, "rank": 1, "top_logprobs": []}
            for token, value in zip(named, logprobs, strict=False)
        ]
        choice = {
            "index": 0,
            "logprobs": {"content": entries},
            "finish_reason": done.finish_reason,
            "token_ids": list(done.token_ids),
            "routed_experts": None,
        }
        return choice if old else {**choice, "weight_versions": self._spans(done)}

    def _spans(self, done: Completion) -> list[dict[str, Any]]:
        runs = done.version_spans or [(len(done.token_ids), done.policy_version_start)]
        spans, at = [], 0
        for count, version in runs:
            spans.append({"version": self.labels[version], "start": at, "end": at + count})
            at += count
        return spans


def scored(token_ids: Sequence[int], weights: int) -> list[float]:
    """Log-probs of each token but the first, different ones for each set of weights."""
    return [-1.0 - (token * 31 + at * 7 + weights * 17) % 97 / 97 for at, token in enumerate(token_ids[1:])]


def _error(status: int, message: str, kind: str, param: str | None = None) -> web.Response:
    error = {"message": message, "type": kind, "param": param, "code": status}
    return web.json_response({"error": error}, status=status)


@asynccontextmanager
async def serving(*doubles: VLLMDouble) -> AsyncIterator[list[str]]:
    """Base URLs of running doubles."""
    try:
        yield [await double.start() for double in doubles]
    finally:
        for double in doubles:
            await double.stop()
