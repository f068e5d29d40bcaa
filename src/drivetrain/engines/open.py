"""One place that makes an engine from what a command line or a configuration says, and gets it ready for rollouts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Literal, Protocol, get_args

import msgspec

from drivetrain.engines.embedded import EmbeddedEngine
from drivetrain.engines.identity import check_identity
from drivetrain.engines.models import ModelDir
from drivetrain.engines.probe import HasVocabulary, ProbeReport, PromptSource, probe_engine
from drivetrain.engines.protocol import Engine, EngineError
from drivetrain.engines.remote import RemoteClient, base_urls
from drivetrain.engines.sglang import SGLangEngine
from drivetrain.engines.vllm import VLLMEngine
from drivetrain.errors import ConfigError

EngineKind = Literal["embedded", "vllm", "sglang"]
KINDS: tuple[EngineKind, ...] = get_args(EngineKind)
REMOTE: tuple[EngineKind, ...] = ("vllm", "sglang")

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_Tell = Callable[[str], None]


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which engine samples. Holds no secret: it goes into a run's ``run.json``.

    ``embedded`` is transformers in this process. ``vllm`` and ``sglang`` are servers at ``urls`` (several: equal
    replicas); ``api_key_env`` is the *name* of the environment variable that holds their key, ``model`` the served name
    or adapter that is the policy (empty: the only one; for vLLM ``trl-policy-v{version}`` names an adapter per policy
    version). ``probe`` measures a server before the first rollout; ``boot_timeout_s`` is how long to wait for one that
    still loads.

    Raises:
        ConfigError: a combination that makes no sense, or an address that cannot be.
    """

    kind: EngineKind = "embedded"
    urls: tuple[str, ...] = ()
    api_key_env: str = ""
    model: str = ""
    probe: bool = True
    boot_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"there is no engine {self.kind!r}.", fix=f"Engines: {', '.join(KINDS)}.")
        if self.kind == "embedded":
            given = {"an address": self.urls, "a key": self.api_key_env, "a served model": self.model}
            for what, value in given.items():
                if value:
                    raise ConfigError(
                        f"{what} is given, but the embedded engine runs in this process.",
                        fix="Name the server's kind: --engine vllm or --engine sglang.",
                    )
            return
        if not self.urls:
            raise ConfigError(
                f"engine {self.kind} needs the address of its server.", fix="Give --engine-url http://host:port."
            )
        base_urls(self.urls)
        if self.boot_timeout_s < 0:
            raise ConfigError("the boot timeout is negative.", fix="Give it in seconds.")
        if self.api_key_env and not _VARIABLE.fullmatch(self.api_key_env):
            raise ConfigError(  # it may be the key itself, so it is not quoted
                "--engine-api-key-env is no name of an environment variable.",
                fix="Put the key into a variable and give that variable's name.",
            )

    @property
    def is_remote(self) -> bool:
        """Whether a server samples."""
        return self.kind in REMOTE

    def api_key(self) -> str | None:
        """The key that the named variable holds.

        Raises:
            ConfigError: the variable is not set.
        """
        if not self.api_key_env:
            return None
        key = os.environ.get(self.api_key_env)
        if not key:
            raise ConfigError(f"${self.api_key_env} is not set.", fix="Put the engine server's key into it.")
        return key


def open_engine(
    spec: EngineSpec,
    model: ModelDir,
    *,
    max_batch: int = 8,
    dtype: Literal["float32", "bfloat16"] = "float32",
    threads: int | None = None,
    tell: _Tell | None = None,
) -> Engine:
    """Make an engine, not started.

    Args:
        model: loaded by the embedded engine.
        max_batch, dtype, threads: of the embedded engine; a server was started with its own.
        tell: gets a line now and then while a server loads.

    Raises:
        ConfigError: the key's variable is not set, or options of the embedded engine are given for a server.
    """
    check_embedded_options(spec, dtype=dtype, threads=threads)
    if spec.kind == "vllm":
        per_version = "{" in spec.model
        return VLLMEngine(
            spec.urls,
            model=None if per_version else spec.model or None,
            adapter=spec.model if per_version else None,
            api_key=spec.api_key(),
            boot_timeout_s=spec.boot_timeout_s,
            tell=tell,
        )
    if spec.kind == "sglang":
        return SGLangEngine(
            spec.urls,
            adapter=spec.model or None,
            api_key=spec.api_key(),
            boot_timeout_s=spec.boot_timeout_s,
            tell=tell,
        )
    return EmbeddedEngine(model, dtype=dtype, threads=threads, max_batch=max_batch)


def check_embedded_options(spec: EngineSpec, *, dtype: str, threads: int | None) -> None:
    """Refuse options of the embedded engine beside a server.

    Raises:
        ConfigError: see above.
    """
    if not spec.is_remote:
        return
    for option, given in (("threads", threads is not None), ("dtype", dtype != "float32")):
        if given:
            raise ConfigError(
                f"{option} is an option of the embedded engine; the {spec.kind} server was started with its own.",
                fix=f"Leave --{option} out.",
            )


class _Digest(Protocol):
    @property
    def sha256(self) -> str: ...


class _Tokenizer(HasVocabulary, Protocol):
    @property
    def sha256(self) -> str | None: ...


class Renderer(PromptSource, Protocol):
    """What :func:`start_engine` asks of a :class:`~drivetrain.tokens.codec.TokenCodec`."""

    @property
    def template(self) -> _Digest:
        """The chat template prompts are made with."""

    @property
    def tokenizer(self) -> _Tokenizer:
        """The tokenizer prompts are made with."""


async def start_engine(engine: Engine, spec: EngineSpec, codec: Renderer, tell: _Tell) -> ProbeReport | None:
    """Start an engine; a server is compared with ``codec`` and probed before anything is spent on it.

    Nothing is remembered from one start to the next. Returns what the probe found, None when there was none: for the
    embedded engine, or with ``spec.probe`` off, which is said loudly.

    Raises:
        ConfigError: the server serves another template or tokenizer, or its samples cannot be trained on.
        EngineError: it is not reachable in time.
    """
    await engine.start()
    if not spec.is_remote:
        return None
    check_identity(
        engine, name=engine.name, template_sha256=codec.template.sha256, tokenizer_sha256=codec.tokenizer.sha256
    )
    if not spec.probe:
        tell(
            f"WARNING: engine {engine.name} is NOT probed (--no-probe). If its log-probs are raw, filtered or shifted, "
            "this run trains on wrong numbers and nothing will say so."
        )
        return None
    tell(f"probing {engine.name}: about 250 short calls")
    report = await probe_engine(engine, codec, boot_timeout_s=spec.boot_timeout_s)
    report.require_trainable()
    for finding in report.findings:
        if finding.status != "passed":
            tell(f"probe: {finding.check} {finding.status}: {finding.what} {finding.fix}".rstrip())
    return report


async def detect_kind(urls: tuple[str, ...], *, api_key: str | None, boot_timeout_s: float, tell: _Tell) -> EngineKind:
    """Ask a server what it is: SGLang has a page about its model, vLLM has none.

    Raises:
        EngineError: it is not ready in time.
    """
    client = RemoteClient(urls, api_key=api_key)
    await client.open()
    try:
        await client.wait_ready(deadline_s=boot_timeout_s, tell=tell)
        for page in ("/model_info", "/get_model_info"):
            try:
                await client.each("GET", page)
                return "sglang"
            except EngineError as error:
                if error.status not in (404, 405):
                    raise
        return "vllm"
    finally:
        await client.aclose()
