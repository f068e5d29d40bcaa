"""CPU and memory per model call: drivetrain's gateway, OpenEnv's capture proxy, verifiers' interception server.

    python benchmarks/peers.py                         # a few minutes: table, ratios
    python benchmarks/peers.py --quick                 # seconds: does it work here?
    python benchmarks/peers.py --out peers.json --plot peers.svg
    python benchmarks/peers.py --check                 # what `make bench` does: fails when a ratio got worse

One load generator plays the same scripted conversations with every side (50 turns to about 150 kB, one of 200 turns),
one call at a time, the sides in turn conversation by conversation. Each server is a process of its own; its processor
time is read from the operating system. All sides sample from the same scripted engine, another process, that returns
token ids and log-probs at once. The sides:

  drivetrain   `drivetrain serve` with the vLLM engine: ids in and out, each turn on disk before its reply
  openenv      OpenEnv 0.10's capture proxy, session opened for training: the engine tokenises, the proxy records
  verifiers    verifiers 0.4's interception server with its training client and Qwen3 renderer: ids in, ids out

scripts/peers-venv installs the peers into their own virtual environments; a side that is not installed is left out with
a line that says so.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import importlib.resources
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import msgspec
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.peer_sides import report
from benchmarks.peer_sides.conversation import EngineScript, Script, engine_script, make_script, write_model
from benchmarks.peer_sides.load import CALL_S, converse, final_bodies, floor_of
from benchmarks.peer_sides.report import Results, SideResult
from benchmarks.peer_sides.sides import SIDES, VENVS, Server, missing, scripted_engine, serving

from drivetrain.engines.models import resolve_model
from drivetrain.errors import DrivetrainError

BASELINE = Path(__file__).parent / "baseline.json"
WARM_TURNS = 5


class Plan(msgspec.Struct):
    """What is played: short conversations on every side, then long ones; ``warm`` comes first and is not counted."""

    warm: Script
    short: list[Script]
    long: list[Script]

    @property
    def all(self) -> list[Script]:
        """In the order of their numbers."""
        return [self.warm, *self.short, *self.long]


def _plan(args: argparse.Namespace) -> Plan:
    first_long = 1 + args.conversations
    return Plan(
        warm=make_script(0, WARM_TURNS),
        short=[make_script(number, args.turns) for number in range(1, first_long)],
        long=[make_script(number, args.long_turns) for number in range(first_long, first_long + args.long)],
    )


def _template() -> str:
    try:
        return (importlib.resources.files("trl") / "chat_templates/qwen3.jinja").read_text()
    except ModuleNotFoundError:
        raise SystemExit(
            "error: Qwen3's chat template comes with TRL, which is not installed: pip install trl"
        ) from None


def _tokens(script: EngineScript) -> int:
    return len(script.first) + sum(map(len, script.sampled)) + sum(map(len, script.appended[:-1]))


async def _play(servers: Sequence[Server], plan: Plan, tokens: dict[int, int], floor: Server) -> Results:
    found = {server.name: SideResult(server.name, [], [], []) for server in servers}
    timeout = aiohttp.ClientTimeout(total=CALL_S)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        busy, begun = _others(servers), time.perf_counter()
        for place, script in enumerate(plan.all):
            for server in servers:
                costs = await converse(server, server.keys[place], script, http)
                side = found[server.name]
                if script in plan.short:
                    side.short.append(costs)
                elif script in plan.long:
                    side.long.append(costs)
                before = side.memory[-1][0] if side.memory else 0
                side.memory.append((before + tokens[script.number], server.rss_bytes()))
        seconds = time.perf_counter() - begun
        others = (_others(servers) - busy) / (seconds * (os.cpu_count() or 1))
        turns = [10, len(plan.long[0].turns)] if plan.long else []
        bodies = final_bodies(plan.long[0], turns) if turns else []
        costs_of_reading = await floor_of(floor, bodies, 20, http)
    return Results(
        cpus=os.cpu_count() or 1,
        others=max(0.0, others),
        seconds=seconds,
        versions=_versions([server.name for server in servers]),
        floor=dict(zip(turns, costs_of_reading, strict=True)),
        sides=list(found.values()),
    )


def _others(servers: Sequence[Server]) -> float:
    """Processor seconds of everybody but the load generator, the engine (about as much) and the servers."""
    times, own = psutil.cpu_times(), time.process_time()
    busy = times.user + times.nice + times.system + times.irq + times.softirq
    return float(busy) - 2 * own - sum(server.cpu_s() for server in servers)


def _versions(names: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in names:
        path = [str(next((VENVS[name] / "lib").glob("python3*/site-packages")))] if name in VENVS else sys.path
        found[name] = next(importlib.metadata.distributions(name=name, path=path)).version
    return found


def _measure(args: argparse.Namespace, scratch: Path) -> Results:
    model = write_model(scratch / "model", resolve_model(args.tokenizer).path, _template())
    plan = _plan(args)
    scripts = {script.number: engine_script(script, model) for script in plan.all}
    marker = scripts[0].appended[0].index(_id_of(model, "<tool_response>"))
    given = {"scripts": list(scripts.values()), "marker": scripts[0].appended[0][marker]}
    (scratch / "scripts.json").write_bytes(msgspec.json.encode(given))
    tokens = {number: _tokens(script) for number, script in scripts.items()}
    with ExitStack() as stack:
        engine = stack.enter_context(scripted_engine(scratch / "scripts.json", scratch))
        floor = stack.enter_context(serving("nothing", engine, model, 0, scratch))
        servers = [stack.enter_context(serving(side, engine, model, len(plan.all), scratch)) for side in args.sides]
        return asyncio.run(_play(servers, plan, tokens, floor))


def _id_of(model: Path, token: str) -> int:
    added = json.loads((model / "tokenizer.json").read_text())["added_tokens"]
    return int(next(each["id"] for each in added if each["content"] == token))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", default=",".join(SIDES), help="comma separated")
    parser.add_argument("--conversations", type=int, default=10, help="of --turns turns")
    parser.add_argument("--turns", type=int, default=50, help="of a short conversation")
    parser.add_argument("--long", type=int, default=1, help="conversations of --long-turns turns")
    parser.add_argument("--long-turns", type=int, default=200, help="of a long conversation, 20 at least")
    parser.add_argument("--tokenizer", default="SmolLM2-135M-Instruct", help="model whose tokenizer is used")
    parser.add_argument("--quick", action="store_true", help="2 conversations of 6 turns, one of 20")
    parser.add_argument("--out", type=Path, help="write everything that was measured as JSON here")
    parser.add_argument("--plot", type=Path, help="draw CPU per call over the turns (.svg or .png; needs matplotlib)")
    parser.add_argument("--check", action="store_true", help="compare with baseline.json: exit status 1 if worse")
    parser.add_argument("--update-baseline", action="store_true", help="write baseline.json")
    args = parser.parse_args(argv)
    args.sides = [side for side in args.sides.split(",") if side]
    if unknown := set(args.sides) - set(SIDES):
        parser.error(f"there is no side {', '.join(sorted(unknown))}; there are {', '.join(SIDES)}")
    if args.quick:
        args.conversations, args.turns, args.long, args.long_turns = 2, 6, 1, 20
    if args.conversations < 1 or args.turns < 5 or args.long < 0 or (args.long and args.long_turns < 20):
        parser.error("at least one conversation of 5 turns; a long one has 20 turns or more")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write; the exit status says whether a ratio got worse."""
    args = _parse(argv)
    for side in list(args.sides):
        if why := missing(side):
            print(f"without {side}: {why}", file=sys.stderr)
            args.sides.remove(side)
    with tempfile.TemporaryDirectory(prefix="peers-benchmark-") as folder:
        try:
            results = _measure(args, Path(folder))
        except DrivetrainError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    print(report.table(results))
    if args.out:
        args.out.write_bytes(report.as_json(results))
        print(f"wrote {args.out}")
    if args.plot:
        report.plot(results, args.plot)
        print(f"wrote {args.plot}")
    found = report.ratios(results)
    if args.update_baseline:
        BASELINE.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        print(f"wrote {BASELINE}")
    if args.check:
        worse = report.regressions(found, json.loads(BASELINE.read_text()))
        for line in worse:
            print(f"worse than the baseline: {line}", file=sys.stderr)
        return 1 if worse else 0
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
