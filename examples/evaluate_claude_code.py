"""Evaluate Claude Code, or any other agent, against any endpoint that speaks its API; nothing is intercepted.

    export KEY=...
    python examples/evaluate_claude_code.py --base-url https://api.example.com --model some-model --api-key-env KEY
    python examples/evaluate_claude_code.py --short     # an endpoint on this machine that follows a script

`drivetrain eval` does the same from the command line. The sandbox reaches the endpoint and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from short import call, generated_tasks, tiny_model

from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.evaluation.config import EvalConfig
from drivetrain.evaluation.folder import EvalFolder
from drivetrain.evaluation.report import headline, make_report
from drivetrain.evaluation.run import evaluate
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.model import load_codec
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.server import GatewayServer
from swe_rl_env.sources.operators import draw
from swe_rl_env.tasks.catalog import get_task
from swe_rl_env.tasks.model import SweTask

LARGE = 400_000  # Claude Code's prompt has 100 kB, and the tiny tokenizer knows short words only


def main() -> None:
    """Evaluate, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", default="claude-code", help="an agent's name, or the path of a preset")
    parser.add_argument("--base-url", default="", help="the endpoint, without /v1")
    parser.add_argument("--model", default="", help="the model's name there")
    parser.add_argument("--api-key-env", default="", help="environment variable that holds the key")
    parser.add_argument("--task", action="append", default=["pypi__xmltodict-0.14.2"], help="may be repeated")
    parser.add_argument("-n", type=int, default=1, help="attempts per task")
    parser.add_argument("--out", type=Path, help="folder; an existing one is gone on with")
    parser.add_argument("--short", action="store_true", help="half a minute, offline")
    args = parser.parse_args()
    if args.short:
        with TemporaryDirectory() as temporary:
            asyncio.run(short(Path(temporary), args.agent))
        return
    config = EvalConfig(agent=args.agent, base_url=args.base_url.rstrip("/"), model=args.model)
    tasks = [get_task(name) for name in args.task]
    asyncio.run(run(config, tasks, EvalFolder.open(args.out, config), args.n, os.environ.get(args.api_key_env, "")))


async def run(config: EvalConfig, tasks: Sequence[SweTask], folder: EvalFolder, n: int, key: str) -> None:
    """Every attempt; then the headline. What is in the folder already is not run again."""
    attempts = await evaluate(config, tasks, folder, n=n, api_key=key, concurrency=2, tell=print)
    print(headline(make_report(config, tasks, attempts)))


async def short(folder: Path, agent: str) -> None:
    """One attempt at a generated bug. The endpoint solves it: it was told how."""
    _, tasks = generated_tasks(folder)
    wrong = draw(0, "train", 0)
    fix = call(
        f"sed -i 's/ [{wrong.wrong}] / {wrong.right} /' shop.py", tool="Bash" if agent == "claude-code" else "bash"
    )
    async with endpoint(folder, [fix]) as (url, key):
        config = EvalConfig(agent=agent, base_url=url, model="scripted", context_length=LARGE, max_tokens=512)
        await run(config, tasks, EvalFolder.open(folder / "eval", config), 1, key)


@asynccontextmanager
async def endpoint(folder: Path, says: Sequence[str]) -> AsyncIterator[tuple[str, str]]:
    """An endpoint on this machine that speaks all four APIs; its address and a key."""
    model = tiny_model(folder)
    engine = ScriptedEngine.from_lines(list(says), model, then="I am done.", context_length=LARGE)
    gateway = Gateway(engine, load_codec(model), folder / "journal.sqlite", model="scripted")
    server = GatewayServer(gateway)
    try:
        port = await server.listen_tcp(0)
        _, key = await gateway.open_session(SessionPolicy(model="scripted"))
        yield f"http://127.0.0.1:{port}", key
    finally:
        await server.aclose()


if __name__ == "__main__":
    main()
