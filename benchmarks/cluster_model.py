"""Where does a cluster of many nodes end? A discrete-event model of `drivetrain rollout --ray`, with measured times.

    python benchmarks/cluster_model.py                             # 10, 100 and 1,000 nodes
    python benchmarks/cluster_model.py --nodes 50 --engine-slots 4096
    python benchmarks/cluster_model.py --quick                     # seconds: does it work here?

Every node runs rollouts one after the other in so many slots. A rollout starts a sandbox and a harness (node CPU),
makes model calls (gateway CPU on its node, then a place in the engine for the time of its tokens) with tools in between
(node CPU), is graded (node CPU), and its shipment is taken in by the driver, which is one process. The driver's time
per rollout is measured here, on sessions of 20 turns; the other times are arguments; docs/ray.md says which of the
defaults were measured, and where.

Two answers are printed: utilisations from the simulation, and, from service demands alone, how many nodes each part
carries (operational analysis: a part is full where its demand per rollout times the throughput reaches its capacity).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import simpy

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.engines.tiny import build_tiny_model
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.dialects.base import WireRequest
from drivetrain.gateway.dialects.openai_chat import OpenAIChat
from drivetrain.gateway.model import load_codec
from drivetrain.journal.writer import Journal
from drivetrain.rollout.on_ray.shipment import pack, store, unpack
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from drivetrain.trace.sample import rows_of

RESULT = "line 17 of the output says that the value of the index is not what the caller of the function expected. " * 20
SAID = "I look at the next file, because the error came from there. " * 6


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. ``boot``, ``tool``, ``grade``: processor time on the node; ``think``: wall time in the engine."""

    boot: float
    call: float
    think: float
    tool: float
    grade: float
    ship: float
    turns: int

    @property
    def node(self) -> float:
        """Processor time on the node, per rollout."""
        return self.boot + self.grade + self.turns * (self.call + self.tool)

    @property
    def alone(self) -> float:
        """Wall time of a rollout that waits for nobody."""
        return self.node + self.turns * self.think + self.ship


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """Of a cluster: places in the engine are sequences that it decodes at the same time at full speed."""

    nodes: int
    cores: int
    slots: int
    engine_slots: int


def simulate(size: Size, times: Times, seed: int) -> dict[str, float]:
    """Utilisation of every part and rollouts per second, after a first generation of rollouts that is not counted."""
    random = np.random.default_rng(seed)
    env = simpy.Environment()
    nodes = [simpy.Resource(env, size.cores) for _ in range(size.nodes)]
    engine, driver = simpy.Resource(env, size.engine_slots), simpy.Resource(env, 1)
    busy = {"node": 0.0, "engine": 0.0, "driver": 0.0}
    done = 0

    def use(part: simpy.Resource, name: str, mean: float) -> Generator[Any, Any, None]:
        seconds = float(random.exponential(mean))
        with part.request() as place:
            yield place
            yield env.timeout(seconds)
        if env.now >= warm:
            busy[name] += seconds

    def slot(node: simpy.Resource) -> Generator[Any, Any, None]:
        nonlocal done
        yield env.timeout(float(random.uniform(0, times.alone)))  # they do not start at the same moment
        while True:
            yield from use(node, "node", times.boot)
            for _ in range(times.turns):
                yield from use(node, "node", times.call)
                yield from use(engine, "engine", times.think)
                yield from use(node, "node", times.tool)
            yield from use(node, "node", times.grade)
            yield from use(driver, "driver", times.ship)
            done += env.now >= warm

    cycle = size.nodes * size.slots / rate_bound(size, times)
    warm, end = 1.5 * cycle, 3.5 * cycle
    for node in nodes:
        for _ in range(size.slots):
            env.process(slot(node))
    env.run(until=end)
    span = end - warm
    return {
        "rollouts_per_s": done / span,
        "node": busy["node"] / span / (size.nodes * size.cores),
        "engine": busy["engine"] / span / size.engine_slots,
        "driver": busy["driver"] / span,
    }


def rate_bound(size: Size, times: Times) -> float:
    """Rollouts per second that no cluster of this size exceeds."""
    return min(
        size.nodes * size.slots / times.alone,
        size.nodes * size.cores / times.node,
        size.engine_slots / (times.turns * times.think),
        1 / times.ship,
    )


def carried(size: Size, times: Times) -> dict[str, float]:
    """How many nodes, each with all its slots busy, the engine and the driver carry; rollouts per second of a node."""
    per_node = min(size.slots / times.alone, size.cores / times.node)
    return {
        "per_node_per_s": per_node,
        "engine": size.engine_slots / (times.turns * times.think) / per_node,
        "driver": 1 / times.ship / per_node,
    }


async def shipping_seconds(folder: Path, turns: int, sessions: int) -> tuple[float, int]:
    """Processor time in which the driver takes in one rollout (median), and a shipment's bytes (mean)."""
    model = build_tiny_model(folder / "model", context=1_000_000)
    node = RunDir.create(folder / "node")
    shipments = [pack(node, result) for result in await _recorded(node, model, turns, sessions)]
    run, seconds = RunDir.create(folder / "run"), []
    journal = Journal(run.journal)
    for data in shipments:
        begun = time.process_time()
        await store(unpack(data), run, journal)
        seconds.append(time.process_time() - begun)
    journal.close()
    return statistics.median(seconds), sum(map(len, shipments)) // len(shipments)


async def _recorded(node: RunDir, model: ModelDir, turns: int, sessions: int) -> list[RolloutResult]:
    gateway = Gateway(ScriptedEngine.from_lines([], model, then=SAID), load_codec(model), node.journal, model="m")
    dialect, results = OpenAIChat(), []
    for number in range(sessions):
        session, _ = await gateway.open_session()
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"Task {number}. {RESULT}"}]
        for _ in range(turns):
            body = msgspec.json.encode({"model": "m", "messages": messages})
            call = dialect.decode(WireRequest(body=body, path="/v1/chat/completions"), session)
            served = await gateway.serve(session, call, body)
            await gateway.delivered(session, served)
            messages += [{"role": "assistant", "content": served.reply.content}, {"role": "user", "content": RESULT}]
        await gateway.seal_session(session.id)
        rollout = f"task.agent.{number}"
        (node.folder(rollout) / "tests.log").write_text(RESULT * 10)
        results.append(
            RolloutResult(
                rollout_id=rollout,
                session_id=session.id,
                task_id="task",
                agent="agent",
                group=number,
                status="ok",
                reward=1.0,
                rows=rows_of(session.graph, reward=1.0, session_id=session.id),
                turns=turns,
            )
        )
    await gateway.aclose()
    return results


def main() -> int:
    """Measure the driver, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, action="append", help="may be repeated; default 10, 100, 1000")
    parser.add_argument("--cores", type=int, default=16, help="of a node (default 16)")
    parser.add_argument("--slots", type=int, default=16, help="rollouts at a time on a node (default 16)")
    parser.add_argument("--engine-slots", type=int, default=2048, help="sequences decoded at a time (default 2048)")
    parser.add_argument("--turns", type=int, default=20, help="model calls of a rollout (default 20)")
    parser.add_argument("--boot", type=float, default=1.5, help="sandbox and harness start, CPU s (default 1.5)")
    parser.add_argument("--call", type=float, default=0.017, help="gateway, CPU s per call (default 0.017)")
    parser.add_argument("--think", type=float, default=4.0, help="engine, s per call (default 4)")
    parser.add_argument("--tool", type=float, default=0.2, help="tools, CPU s per call (default 0.2)")
    parser.add_argument("--grade", type=float, default=5.0, help="tests, CPU s (default 5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="small: does the script work here?")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = parser.parse_args()
    turns, sessions = (3, 3) if args.quick else (args.turns, 30)
    with tempfile.TemporaryDirectory() as folder:
        ship, size_bytes = asyncio.run(shipping_seconds(Path(folder), turns, sessions))
    times = Times(
        boot=args.boot,
        call=args.call,
        think=args.think,
        tool=args.tool,
        grade=args.grade,
        ship=ship,
        turns=turns,
    )
    print(f"driver: {ship * 1000:.1f} ms CPU per rollout of {turns} turns ({size_bytes / 1000:.0f} kB)")
    print(f"a rollout that waits for nobody takes {times.alone:.0f} s, {times.node:.1f} s of them on its node's CPU")
    found = []
    for nodes in args.nodes or ([2, 4] if args.quick else [10, 100, 1000]):
        size = Size(nodes=nodes, cores=args.cores, slots=args.slots, engine_slots=args.engine_slots)
        used, limit = simulate(size, times, args.seed), carried(size, times)
        fullest = max(("node", "engine", "driver"), key=used.__getitem__)
        found.append({"nodes": nodes, **used, "fullest": fullest, "carried": limit})
        print(
            f"{nodes:>5} nodes: {used['rollouts_per_s']:7.2f} rollouts/s; busy: node CPU {used['node']:4.0%}, "
            f"engine {used['engine']:4.0%}, driver {used['driver']:4.0%}; fullest: {fullest}; "
            f"engine carries {limit['engine']:.0f} nodes, driver {limit['driver']:.0f}"
        )
    if args.out:
        args.out.write_text(json.dumps({"times": msgspec.to_builtins(times), "sizes": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
