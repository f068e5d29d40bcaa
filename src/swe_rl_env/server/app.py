"""The ASGI application that ``openenv.yaml`` names, made from ``SWE_ENV_*`` variables.

    uvicorn swe_rl_env.server.app:app --host 127.0.0.1 --port 8000 --timeout-graceful-shutdown 10

The server gives whoever reaches it a shell in a sandbox and asks for no key: bind it to loopback or a private network.
"""

from __future__ import annotations

import argparse
import asyncio
import functools

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from openenv.core.env_server.http_server import create_app

from swe_rl_env.models import SWEAction, SWEObservation, SWEState
from swe_rl_env.server.errors import HTTP_STATUS, EpisodeError
from swe_rl_env.server.host import Host
from swe_rl_env.server.settings import settings_from
from swe_rl_env.server.swe_environment import SWEEnvironment
from swe_rl_env.server.transport import Transport

NAME = "swe_rl_env"
GRACE_S = 10
"""How long requests may go on when the server is told to end; uvicorn's ``--timeout-graceful-shutdown``."""


def build_app(host: Host | None = None) -> FastAPI:
    """An application over ``host`` (default: one with settings from the environment), which ends with it.

    Raises:
        ConfigError: a variable ``SWE_ENV_*`` that does not fit.
    """
    host = host or Host(settings_from())
    app: FastAPI = create_app(
        functools.partial(SWEEnvironment, host),
        SWEAction,
        SWEObservation,
        env_name=NAME,
        max_concurrent_envs=host.settings.max_concurrent_envs,
        state_cls=SWEState,
    )
    app.add_middleware(Transport)
    app.add_exception_handler(EpisodeError, _refuse)
    app.router.on_shutdown.append(functools.partial(asyncio.to_thread, host.close))
    return app


def _refuse(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, EpisodeError)
    return JSONResponse({"code": error.code, "detail": str(error)}, status_code=HTTP_STATUS[error.code])


app = build_app()


def main() -> None:
    """Serve: ``python -m swe_rl_env.server.app --port 8000``."""
    parser = argparse.ArgumentParser(description="Serve the SWE environment.")
    parser.add_argument("--host", default="127.0.0.1", help="anybody who reaches it gets a shell in a sandbox")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    # Without a limit, a step that somebody still waits for would keep the server from ending.
    uvicorn.run(app, host=options.host, port=options.port, timeout_graceful_shutdown=GRACE_S)


if __name__ == "__main__":
    main()
