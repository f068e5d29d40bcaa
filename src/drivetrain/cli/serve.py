"""``drivetrain serve``: the gateway as a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from pathlib import Path

import msgspec
import typer

from drivetrain.cli import engine_options as engines
from drivetrain.cli.console import out, print_json, tell
from drivetrain.dashboard.serve import gateway_parts
from drivetrain.engines.models import ModelDir, resolve_model
from drivetrain.engines.open import EngineSpec, open_engine, start_engine
from drivetrain.engines.protocol import Engine
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.errors import ConfigError
from drivetrain.gateway.admission import GatewayLimits
from drivetrain.gateway.bind import Tls, check_address
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.descriptors import raise_descriptor_limit, too_few_for
from drivetrain.gateway.keys import MIN_ADMIN_KEY, AdminKeys, mint_key
from drivetrain.gateway.model import load_codec
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.server import GatewayServer

ADMIN_KEY_VARIABLE = "DRIVETRAIN_ADMIN_KEY"
TRAINER_KEY_VARIABLE = "DRIVETRAIN_TRAINER_KEY"
_POLICY = SessionPolicy(model="m")
_LIMITS = GatewayLimits()

HELP = f"""Serve the gateway: open sessions over its admin surface, point any harness at it.

After a crash, start it again on the same journal: the same keys continue where they were.

KEYS. The admin key opens everything on the admin surface. It is read from ${ADMIN_KEY_VARIABLE}; without it one is
made and kept beside the journal (admin.key, mode 0600). A trainer key in ${TRAINER_KEY_VARIABLE} opens, reads and seals
sessions and works the fence, no more. A session's key is the `api_key` that POST /admin/sessions answers, once; give it
to the harness as its API key: it opens the model calls of that session only. Keys are sent as a bearer token,
x-api-key, x-goog-api-key or ?key=. DELETE /admin/sessions/ID/key revokes a session's key, POST replaces it (admin key).

ADDRESSES. Both surfaces listen on 127.0.0.1. On an address that other machines reach, give --tls-cert and --tls-key;
--allow-public listens there without, for a proxy in front that speaks TLS. On such an address the keys of the admin
surface need {2 * MIN_ADMIN_KEY} characters, else {MIN_ADMIN_KEY}.

BUDGETS are fields of a session's policy, e.g. POST /admin/sessions {{"policy": {{"max_turns": 30}}}}. Unless it says
otherwise: max_turns {_POLICY.max_turns}, max_tokens_per_turn {_POLICY.max_tokens_per_turn}, call_timeout_s
{_POLICY.call_timeout_s:g}, max_concurrent_calls {_POLICY.max_concurrent_calls}, max_body_bytes
{_POLICY.max_body_bytes}, max_session_bytes {_POLICY.max_session_bytes}; no limit on
max_prompt_tokens, max_completion_tokens, max_total_tokens, wall_clock_s, rate_per_s, key_ttl_s. A call over budget gets
a closing message, or status 400 with on_budget "error".

STOPPING. After SIGTERM or Ctrl-C new calls get status 503 with Retry-After, and those that run may finish
(--stop-timeout). Sessions stay open in the journal, for the next process. A second signal ends at once; every turn that
a harness was told of is in the journal.

ENGINE. A server samples with --engine vllm or sglang and --engine-url; --model is then the directory of the model that
it serves. It is probed before anything listens (see drivetrain probe); --no-probe believes it blindly.

EXAMPLES

drivetrain serve --script replies.json --port 8300

drivetrain serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
"""


class _Listen(msgspec.Struct, frozen=True):
    """Where to listen, checked; ``as_json``: how to say so."""

    host: str
    port: int
    admin_host: str
    admin_port: int
    socket: Path | None
    tls: Tls | None
    allow_public: bool
    as_json: bool

    def check(self) -> None:
        """Refuse what cannot be served, before a model is loaded or a key is made.

        Raises:
            ConfigError: see :func:`drivetrain.gateway.bind.check_address`, and equal ports.
        """
        for host in (self.host, self.admin_host):
            check_address(host, tls=self.tls, allow_public=self.allow_public)
        if self.port and (self.host, self.port) == (self.admin_host, self.admin_port):
            raise ConfigError(
                f"--port and --admin-port are both {self.port}.", fix="The admin surface needs a port of its own."
            )
        if self.tls is not None:
            self.tls.context()


def serve(
    model: str = typer.Option("SmolLM2-135M-Instruct", "--model", "-m", help="Bundled model name or model directory."),
    journal: Path = typer.Option(Path("gateway/journal.sqlite"), help="Journal file; its sessions continue."),
    host: str = typer.Option("127.0.0.1", help="Address for harnesses; a public one needs TLS."),
    port: int = typer.Option(8300, min=0, max=65535, help="Port for harnesses; 0 = any free one."),
    admin_host: str = typer.Option("127.0.0.1", help="Address of the admin surface; a public one needs TLS."),
    admin_port: int = typer.Option(8301, min=0, max=65535, help="Port of the admin surface; 0 = any free one."),
    tls_cert: Path | None = typer.Option(None, help="Certificate with its chain, PEM."),
    tls_key: Path | None = typer.Option(None, help="Private key of the certificate, PEM, not encrypted."),
    allow_public: bool = typer.Option(
        False, "--allow-public", help="Listen on public addresses without TLS: a proxy in front encrypts."
    ),
    socket: Path | None = typer.Option(None, help="Also serve harnesses on this Unix socket."),
    engine: str = engines.ENGINE,
    engine_url: list[str] = engines.URL,
    engine_api_key_env: str = engines.API_KEY_ENV,
    engine_model: str = engines.SERVED,
    engine_boot_timeout: float = engines.BOOT_TIMEOUT,
    no_probe: bool = engines.NO_PROBE,
    threads: int | None = engines.THREADS,
    script: Path | None = typer.Option(None, help="Say these replies (JSON list of texts) instead of sampling."),
    max_sessions: int = typer.Option(_LIMITS.max_sessions, min=1, help="Sessions that may be open at once."),
    max_retained_gb: float = typer.Option(
        8.0, help="Ids, log-probs and text of open sessions from which on no other is opened, GiB."
    ),
    max_requests: int = typer.Option(_LIMITS.max_requests, min=1, help="Requests that are served at once."),
    max_body_mb: int = typer.Option(1024, min=1, help="Size of their bodies together, MiB."),
    max_journal_gb: float = typer.Option(64.0, help="Largest journal file, GiB."),
    journal_patience: float = typer.Option(
        _LIMITS.journal_patience_s,
        help="Seconds that calls wait for space on a full disk before they are refused.",
    ),
    stop_timeout: float = typer.Option(
        30.0,
        min=0,
        help="Seconds in which running calls may finish after SIGTERM or Ctrl-C; a second signal ends them.",
    ),
    seal_on_stop: bool = typer.Option(
        False, "--seal-on-stop", help="Seal every session when stopped; otherwise they continue under the same journal."
    ),
    json_output: bool = typer.Option(False, "--json", help="Say where it listens as one JSON document, once ready."),
) -> None:
    listen = _Listen(host, port, admin_host, admin_port, socket, _tls(tls_cert, tls_key), allow_public, json_output)
    listen.check()
    spec = engines.engine_spec(engine, engine_url, engine_api_key_env, engine_model, no_probe, engine_boot_timeout)
    if script and spec.is_remote:
        raise ConfigError(f"--script and --engine {spec.kind} both say what samples.", fix="Give one of them.")
    resolved = resolve_model(model, None, tell)
    used = _scripted(script, resolved) if script else open_engine(spec, resolved, threads=threads, tell=tell)
    keys = (_admin_key(journal), os.environ.get(TRAINER_KEY_VARIABLE, ""))
    check_address(admin_host, tls=listen.tls, allow_public=allow_public, keys=AdminKeys(*keys))
    limits = GatewayLimits(
        max_sessions=max_sessions,
        max_retained_bytes=int(max_retained_gb * (1 << 30)),
        max_requests=max_requests,
        max_body_bytes=max_body_mb << 20,
        max_journal_bytes=int(max_journal_gb * (1 << 30)),
        journal_patience_s=journal_patience,
    )
    if few := too_few_for(max_requests, raise_descriptor_limit()):
        tell(few)
    stop = _Stop(stop_timeout, seal_on_stop)
    asyncio.run(_serve(used, spec, resolved, journal, listen, keys, limits, stop))


serve.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in HELP.split("\n\n"))


class _Stop(msgspec.Struct, frozen=True):
    """How serving ends."""

    timeout_s: float
    seal: bool


async def _serve(
    engine: Engine,
    spec: EngineSpec,
    model: ModelDir,
    journal: Path,
    listen: _Listen,
    keys: tuple[str, str],
    limits: GatewayLimits,
    stop: _Stop,
) -> None:
    codec = load_codec(model)
    try:
        if spec.is_remote:  # before signals are taken over, so that Ctrl-C ends a wait for a server
            await start_engine(engine, spec, codec, tell)
        gateway = Gateway(engine, codec, journal, model=model.name, limits=limits)
        await _serve_gateway(gateway, journal, listen, keys, stop)
    finally:
        await engine.aclose()


async def _serve_gateway(gateway: Gateway, journal: Path, listen: _Listen, keys: tuple[str, str], stop: _Stop) -> None:
    signals = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.release)
    server = GatewayServer(gateway)
    tls, public = listen.tls, listen.allow_public
    try:
        bound = await server.listen_tcp(listen.port, listen.host, tls=tls, allow_public=public)
        admin = await server.listen_admin(
            listen.admin_port,
            keys[0],
            listen.admin_host,
            trainer_key=keys[1],
            parts=gateway_parts(gateway),
            tls=tls,
            allow_public=public,
        )
        if listen.socket is not None:
            await server.listen_unix(listen.socket)
        tell(f"loading {gateway.engine.name}")
        await gateway.engine.start()
        if (version := await gateway.continue_version()) is not None:
            tell(f"the engine serves policy version {version}, as recorded before")
        scheme = "https" if tls else "http"
        harness_url = f"{scheme}://{_in_url(listen.host)}:{bound}/v1"
        admin_url = f"{scheme}://{_in_url(listen.admin_host)}:{admin}/admin"
        if listen.as_json:
            said = {"harness": harness_url, "admin": admin_url, "socket": str(listen.socket) if listen.socket else None}
            print_json({**said, "journal": str(journal), "recovered_sessions": gateway.recovered})
            sys.stdout.flush()  # whoever started it waits for this, and a pipe is not flushed at the line's end
        else:
            out.print(f"harness {harness_url}", markup=False, highlight=False)
            out.print(f"admin {admin_url}", markup=False, highlight=False)
            out.print(f"dashboard {admin_url.removesuffix('/admin')}/dashboard", markup=False, highlight=False)
            out.print(f"ready: {gateway.recovered} sessions recovered from {journal}", markup=False, soft_wrap=True)
        await signals.acquire()
        await _stop_gently(server, signals, stop)
    finally:
        await server.aclose()


async def _stop_gently(server: GatewayServer, signals: asyncio.Semaphore, stop: _Stop) -> None:
    """Let calls finish until the deadline or another signal. What is cut off was not delivered, and is not trained."""
    tell(f"stopping: {server.gateway.admission.requests} requests may finish within {stop.timeout_s:g} s")
    draining = asyncio.ensure_future(server.drain(stop.timeout_s))
    again = asyncio.ensure_future(signals.acquire())
    await asyncio.wait({draining, again}, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    draining.cancel()
    if server.gateway.admission.requests:
        tell(f"stopped with {server.gateway.admission.requests} requests running")
    if stop.seal:
        sessions = server.gateway.sessions.open_sessions()
        await asyncio.gather(*(server.gateway.seal_session(session.id) for session in sessions))
        tell(f"sealed {len(sessions)} sessions")


def _tls(certificate: Path | None, key: Path | None) -> Tls | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        missing = "--tls-cert" if certificate is None else "--tls-key"
        raise ConfigError(f"{missing} is missing.", fix="TLS needs a certificate and its private key: give both.")
    return Tls(certificate, key)


def _admin_key(journal: Path) -> str:
    given = os.environ.get(ADMIN_KEY_VARIABLE)
    if given:
        return given
    path = journal.parent / "admin.key"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(mint_key("admin") + "\n")
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"the admin key in {path} can be read by other users.", fix=f"chmod 600 {path}, or delete it for a new one."
        )
    key = path.read_text().strip()
    if not key:
        raise ConfigError(f"{path} is empty.", fix="Delete it; a new key is made.")
    return key


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _scripted(path: Path, model: ModelDir) -> Engine:
    try:
        lines = msgspec.json.decode(path.read_bytes(), type=list[str])
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"cannot read the script {path}: {error}.", fix="Give a JSON list of texts.") from error
    if not lines:
        raise ConfigError(f"the script {path} is empty.", fix="Give at least one text.")
    return ScriptedEngine.from_lines(lines, model, then=lines[-1])
