"""The options that name an engine, the same in every command that samples."""

from __future__ import annotations

from typing import Any, cast

import typer

from drivetrain.engines.open import KINDS, EngineKind, EngineSpec

_PANEL = "Engine"


def _option(*arguments: Any, **settings: Any) -> Any:
    return typer.Option(*arguments, rich_help_panel=_PANEL, **settings)


ENGINE = _option(
    "embedded", "--engine", help=f"{', '.join(KINDS)}: transformers in this process, or a server that runs already."
)
URL = _option([], "--engine-url", help="Base URL of the vLLM or SGLang server; repeat for replicas.")
API_KEY_ENV = _option(
    "", "--engine-api-key-env", metavar="NAME", help="Environment variable that holds the server's key."
)
SERVED = _option(
    "", "--engine-model", help="Served name or adapter that is the policy; vLLM: trl-policy-v{version} follows updates."
)
NO_PROBE = _option(
    False, "--no-probe", help="Do not measure the server first: its log-probs are then believed blindly."
)
BOOT_TIMEOUT = _option(600.0, "--engine-boot-timeout", help="Seconds to wait for a server that still loads.")
DTYPE = _option("float32", "--dtype", help="Embedded: float32 or bfloat16 (half the memory, log-probs off by 1e-2).")
THREADS = _option(None, "--threads", help="Embedded: torch threads.")


def engine_spec(
    engine: str, urls: list[str], api_key_env: str, served: str, no_probe: bool, boot_timeout: float
) -> EngineSpec:
    """What the options say.

    Raises:
        ConfigError: a combination that makes no sense.
    """
    return EngineSpec(
        kind=cast("EngineKind", engine),
        urls=tuple(urls),
        api_key_env=api_key_env,
        model=served,
        probe=not no_probe,
        boot_timeout_s=boot_timeout,
    )
