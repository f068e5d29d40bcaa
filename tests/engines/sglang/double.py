"""A protocol double of an SGLang server: written from its public documentation and structures, never run beside a
real one.

It speaks the native routes that :class:`drivetrain.engines.sglang.SGLangEngine` uses and keeps the rules that matter
to a client: prompts below ``max_req_input_len``, prompt + limit below the context, the limit checked before stop
tokens, aborts by *prefix* of the request id, nothing flushed while calls run unless they were retracted, an abort of
everything by default when weights are updated, labels of weights per token. What a token is comes from
:class:`~tests.engines.table_engine.TableEngine`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from drivetrain.engines.protocol import Sampling
from tests.engines.table_engine import VOCAB, Faults, TableEngine
from tests.engines.vllm.double import scored

KNOBS = {
    "n", "max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "stop", "stop_token_ids", "ignore_eos", "no_stop_trim",
    "skip_special_tokens", "sampling_seed",
}  # fmt: skip


@dataclass
class Quirks:
    """How this server differs from one that is set up well. ``faults`` are those of what it samples."""

    faults: Faults = field(default_factory=Faults)
    old_names: bool = False
    starting: int = 0
    no_output_ids: bool = False
    no_logprobs: bool = False
    nan_at: int | None = None
    foreign_triple: bool = False
    spans: bool = True
    truncates: bool = False
    says_truncates: bool = False
    api_key: str = ""
    hides_context: bool = False
    status: int = 0
    body: Any = None
    step_s: float = 0.0
    pauses_at: int = 0
    """A call stays before this token until somebody pauses."""
    nan_happened: bool = False


class Server:
    """One server on loopback. ``calls`` are the bodies of ``/generate``, ``control`` the other requests."""

    def __init__(self, quirks: Quirks | None = None, *, context: int = 512) -> None:
        self.quirks = quirks or Quirks()
        self.context = context
        self.table = TableEngine(self.quirks.faults)
        self.table.context_length = 10**6
        self.label = "default"
        self.weights = 0
        """Which weights score a prompt (:func:`scored`)."""
        self.calls: list[dict[str, Any]] = []
        self.control: list[tuple[str, Any]] = []
        self.aborted: list[str] = []
        self.paused = ""
        self.going = asyncio.Event()
        self.going.set()
        self.pausing = asyncio.Event()
        self.stays = asyncio.Event()
        """A call has come as far as ``pauses_at``."""
        self.running: dict[str, asyncio.Event] = {}
        self.adapters = ["policy-lora"]
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        app = web.Application(middlewares=[self._guard])
        pages = {"model_info": self._model_info, "server_info": self._server_info}
        for name, page in pages.items():
            app.router.add_get(f"/get_{name}" if self.quirks.old_names else f"/{name}", page)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_post("/flush_cache", self._flush)
        app.router.add_post("/pause_generation", self._pause)
        app.router.add_post("/continue_generation", self._continue)
        app.router.add_post("/update_weights_from_disk", self._update)
        app.router.add_post("/update_weight_version", self._relabel)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self.url

    async def aclose(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        key = self.quirks.api_key
        if key and request.headers.get("Authorization") != f"Bearer {key}" and request.path != "/health":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if request.path != "/generate" and request.method == "POST":
            self.control.append((request.path, await request.json()))
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _health(self, _: web.Request) -> web.Response:
        self.quirks.starting -= 1
        return web.Response(status=503 if self.quirks.starting >= 0 else 200)

    async def _model_info(self, _: web.Request) -> web.Response:
        return web.json_response(
            {"model_path": "/models/table", "tokenizer_path": "/models/table", "weight_version": self.label}
        )

    async def _server_info(self, _: web.Request) -> web.Response:
        info = {
            "served_model_name": "table",
            "context_length": None,
            "max_req_input_len": None if self.quirks.hides_context else self.context - 6,
            "allow_auto_truncate": self.quirks.says_truncates,
            "version": "0.5.9",
            "internal_states": [{}],
        }
        return web.json_response(info)

    async def _models(self, _: web.Request) -> web.Response:
        data: list[dict[str, Any]] = [{"id": "table", "root": "table", "max_model_len": self.context}]
        data += [{"id": name, "root": name, "parent": "table", "max_model_len": None} for name in self.adapters]
        return web.json_response({"object": "list", "data": data})

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(body)
        if self.quirks.status:
            return web.json_response(self.quirks.body, status=self.quirks.status)
        params, ids = body["sampling_params"], body["input_ids"]
        if set(params) - KNOBS:
            return _refused(f"unexpected sampling parameters {sorted(set(params) - KNOBS)}")
        if len(ids) >= self.context and not self.quirks.truncates:
            return _refused(
                f"The input ({len(ids)} tokens) is longer than the model's context length ({self.context} tokens)."
            )
        if len(ids) + params["max_new_tokens"] >= self.context and not self.quirks.truncates:
            return _refused(
                f"Requested token count exceeds the model's maximum context length of {self.context} tokens."
            )
        if len(ids) >= self.context - 6 and not self.quirks.truncates:
            return _refused(
                f"Input length ({len(ids)} tokens) exceeds the maximum allowed length ({self.context - 7} tokens)."
            )
        if any(not 0 <= token < VOCAB for token in ids):
            return _refused("The input_ids contain values greater than the vocab size.")
        if self.quirks.truncates:
            ids = ids[: self.context - 8]
        abort = self.running[body["rid"]] = asyncio.Event()
        try:
            return web.json_response(await self._sample(ids, body, params, abort))
        finally:
            self.running.pop(body["rid"], None)

    async def _sample(
        self, ids: list[int], body: dict[str, Any], params: dict[str, Any], abort: asyncio.Event
    ) -> dict[str, Any]:
        sampling = Sampling(
            max_tokens=params["max_new_tokens"],
            temperature=params["temperature"],
            seed=params["sampling_seed"],
            stop_token_ids=tuple(params["stop_token_ids"]),
        )
        done = await self.table.generate(ids, sampling, request_id=body["rid"])
        sampled, spans, ended = list(done.token_ids), [], False
        for at in range(len(sampled)):
            if at and at == self.quirks.pauses_at:
                self.stays.set()
                await self.pausing.wait()
            await self.going.wait()
            if self.quirks.step_s:
                await asyncio.sleep(self.quirks.step_s)
            if abort.is_set():
                sampled, ended = sampled[:at], True
                break
            if not spans or spans[-1]["version"] != self.label:
                spans.append({"version": self.label, "start": at, "end": at})
            spans[-1]["end"] = at + 1
        finish: dict[str, Any] = {"type": "stop", "matched": sampled[-1] if sampled else None}
        if ended:
            finish = {"type": "abort", "message": "Aborted"}
        elif len(sampled) == params["max_new_tokens"]:  # before it looks at stop tokens
            finish = {"type": "length", "length": len(sampled)}
        if self.quirks.nan_happened:
            finish = {"type": "stop", "matched": "NaN happened"}
        triples = [[value, token, None] for token, value in zip(sampled, done.logprobs, strict=False)]
        if self.quirks.nan_at is not None:
            triples[self.quirks.nan_at][0] = None
        if self.quirks.foreign_triple:
            triples[0][1] += 1
        meta: dict[str, Any] = {
            "id": body["rid"],
            "finish_reason": finish,
            "prompt_tokens": len(ids),
            "completion_tokens": len(sampled),
            "cached_tokens": 0,
            "weight_version": self.label,
        }
        if self.quirks.spans:
            meta["weight_versions"] = spans
        if body["return_logprob"] and not self.quirks.no_logprobs:
            meta["output_token_logprobs"] = triples
        if body["logprob_start_len"] == 0:
            told = zip(ids[1:], scored(ids, self.weights), strict=True)
            meta["input_token_logprobs"] = [[None, ids[0], None], *([value, token, None] for token, value in told)]
        reply: dict[str, Any] = {"text": "never read", "meta_info": meta}
        if not self.quirks.no_output_ids:
            reply["output_ids"] = sampled
        return reply

    async def _abort(self, request: web.Request) -> web.Response:
        rid = (await request.json())["rid"]
        hit = [running for running in self.running if running.startswith(rid)]
        self.aborted += hit
        for running in hit:
            self.running[running].set()
        return web.Response()

    async def _flush(self, _: web.Request) -> web.Response:
        if self.running and self.paused != "retract":
            return web.Response(text="Flush cache failed.\n", status=400)
        return web.Response(text="Cache flushed.\n")

    async def _pause(self, request: web.Request) -> web.Response:
        self.paused = (await request.json()).get("mode", "abort")
        self.going.clear()
        self.pausing.set()
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, _: web.Request) -> web.Response:
        self.paused = ""
        self.going.set()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def _update(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["model_path"] == "/nowhere":
            return web.json_response({"success": False, "message": "Failed to update weights"}, status=400)
        self._abort_all(body)
        self.label = body.get("weight_version") or self.label
        return web.json_response({"success": True, "message": "Succeeded.", "num_paused_requests": 0})

    async def _relabel(self, request: web.Request) -> web.Response:
        body = await request.json()
        self._abort_all({"abort_all_requests": True, **body})
        self.label = body["new_version"]
        return web.json_response({"success": True, "new_version": self.label})

    def _abort_all(self, body: dict[str, Any]) -> None:
        if body.get("abort_all_requests"):
            for running in self.running.values():
                running.set()


def _refused(message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=400)
