"""``drivetrain probe``: can what this engine returns be trained on?"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from drivetrain.cli.console import out, print_json, tell
from drivetrain.engines.identity import IdentityCheck, check_identity
from drivetrain.engines.models import ModelDir, resolve_model
from drivetrain.engines.open import REMOTE, EngineKind, EngineSpec, detect_kind, open_engine
from drivetrain.engines.probe import ProbeReport, probe_engine
from drivetrain.errors import ConfigError
from drivetrain.gateway.model import load_codec

_COLOURS = {"passed": "green", "failed": "red", "unknown": "yellow"}


def probe(
    url: list[str] = typer.Argument(None, help="Base URL of a vLLM or SGLang server; several are replicas."),
    model: str = typer.Option("", "--model", "-m", help="The model that it serves: bundled name or model directory."),
    embedded: str = typer.Option("", "--embedded", metavar="MODEL", help="Probe the embedded engine with this model."),
    api: str = typer.Option("", "--api", help="vllm or sglang; asked of the server when left out."),
    served: str = typer.Option("", "--engine-model", help="Served name or adapter that is the policy."),
    api_key_env: str = typer.Option("", "--engine-api-key-env", metavar="NAME", help="Variable that holds its key."),
    chat_template: Path | None = typer.Option(None, "--chat-template", help="Jinja file instead of the model's own."),
    boot_timeout: float = typer.Option(30.0, help="Seconds to wait for a server that still loads."),
    json_output: bool = typer.Option(False, "--json", help="Print the findings as JSON."),
) -> None:
    """Measure what an engine really returns, by sampling: about 250 calls of one to eight tokens each.

    Flags and documentation are not believed. Checked are: ids in and out, one log-prob per id, at its own token
    (not shifted), after temperature (not raw), of the whole vocabulary (no hidden top-p, top-k or min-p), the stop
    token among the ids, limits, seeds, policy versions, context length, and that a cancelled call ends.

    passed: measured and right. failed: measured and wrong. unknown: the samples prove nothing. A check that training
    needs and that did not pass stands against training; its last column says which setting to change.

    Exits with 0 only when samples of this engine can be trained on, with 1 when not or when it does not answer, with 2
    when it serves another chat template or tokenizer than --model. Nothing is cached: a probe that failed is to be run
    again after the change.

    EXAMPLES

    drivetrain probe http://127.0.0.1:8000 --model ./Qwen3-4B-Instruct

    drivetrain probe --embedded SmolLM2-135M-Instruct
    """
    name = _one_model(url or [], model, embedded, api)
    resolved = resolve_model(name, None, tell, chat_template=chat_template)
    options = {"urls": tuple(url or []), "api_key_env": api_key_env, "model": served, "boot_timeout_s": boot_timeout}
    if embedded:
        options.pop("boot_timeout_s")
    elif not api:
        spec = EngineSpec(kind="vllm", **options)  # type: ignore[arg-type]
        api = asyncio.run(detect_kind(spec.urls, api_key=spec.api_key(), boot_timeout_s=boot_timeout, tell=tell))
    kind: EngineKind = "embedded" if embedded else api  # type: ignore[assignment]
    spec = EngineSpec(kind=kind, **options)  # type: ignore[arg-type]
    report, identity = asyncio.run(_probe(spec, resolved))
    if json_output:
        print_json(
            {
                "engine": report.engine,
                "kind": spec.kind,
                "trainable": not report.blocking,
                "identity": identity,
                "findings": report.findings,
            }
        )
    else:
        _show(report, identity)
    if report.blocking:
        raise typer.Exit(1)


def _one_model(urls: list[str], model: str, embedded: str, api: str) -> str:
    """The model to make prompts for.

    Raises:
        ConfigError: not exactly one engine is named, or no model.
    """
    if bool(urls) == bool(embedded):
        raise ConfigError("name one engine.", fix="Give the URL of a server, or --embedded MODEL.")
    if embedded and (model or api):
        raise ConfigError("--model and --api are about servers.", fix="Give --embedded MODEL alone.")
    if urls and not model:
        raise ConfigError(
            "which model does the server serve?", fix="Give its directory: --model DIR (tokenizer and chat template)."
        )
    if api and api not in REMOTE:
        raise ConfigError(f"there is no API {api!r}.", fix=f"Use one of {', '.join(REMOTE)}.")
    return embedded or model


async def _probe(spec: EngineSpec, model: ModelDir) -> tuple[ProbeReport, IdentityCheck]:
    codec = load_codec(model)
    async with AsyncExitStack() as stack:
        engine = open_engine(spec, model, tell=tell)
        stack.push_async_callback(engine.aclose)
        await engine.start()
        identity = check_identity(
            engine, name=engine.name, template_sha256=codec.template.sha256, tokenizer_sha256=codec.tokenizer.sha256
        )
        tell(f"probing {engine.name}")
        return await probe_engine(engine, codec, boot_timeout_s=spec.boot_timeout_s if spec.is_remote else 0), identity


def _show(report: ProbeReport, identity: IdentityCheck) -> None:
    found = msgspec.structs.asdict(identity)
    told = ", ".join(f"{what.replace('_', ' ')} {match}" for what, match in found.items())
    out.print(f"engine {report.engine}; compared with --model: {told}", markup=False, highlight=False)
    table = Table("check", "verdict", "what was seen", "how to fix")
    for finding in report.findings:
        verdict = f"[{_COLOURS[finding.status]}]{finding.status}[/]"
        if finding.status != "passed" and not finding.needed:
            verdict += " (told only)"
        table.add_row(finding.check, verdict, escape(finding.what), escape(finding.fix))
    out.print(table)
    blocking = ", ".join(finding.check for finding in report.blocking)
    out.print(
        f"not trainable: {blocking}" if blocking else "trainable: samples of this engine can be trained on",
        markup=False,
        highlight=False,
    )
