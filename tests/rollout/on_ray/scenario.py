"""A cluster of two nodes on this machine, real agents, and one node killed midway; then what is on disk is counted.

    python -m tests.rollout.on_ray.scenario --rollouts 200

Prints one JSON object; exits with 1 when a rollout is missing, counted twice, or not as it must be.
"""

from __future__ import annotations

import os

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # loopback only; read when Ray is imported

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from drivetrain.engines.tiny import build_tiny_model
from drivetrain.gateway.sessions import session_tag
from drivetrain.journal.reader import JournalReader
from drivetrain.rollout.audit import audit_run
from drivetrain.rollout.config import RolloutConfig, episodes_of
from drivetrain.rollout.on_ray.book import read_attempts
from drivetrain.rollout.on_ray.cluster import RayCluster
from drivetrain.rollout.on_ray.node import Job
from drivetrain.rollout.on_ray.options import RayOptions
from drivetrain.rollout.on_ray.run import ATTEMPTS, RolloutsOnCluster
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.socket_folder import remove_stale_folders
from drivetrain.sandboxes.registry import get_backend
from swe_rl_env.tasks.catalog import get_task
from tests.rollout.on_ray.kit import TASK, SolvingEngine

_NODE = {"node_ip_address": "127.0.0.1", "object_store_memory": 100 << 20, "num_cpus": 2}
AGENTS = ("pi", "mini-swe-agent")


def play(rollouts: int, folder: Path, *, per_node: int) -> dict[str, Any]:
    """Run the rollouts, kill the second node after half of them, and count."""
    build_tiny_model(folder / "tiny", context=8192)
    begun = time.monotonic()
    cluster = Cluster(initialize_head=True, head_node_args={**_NODE, "include_dashboard": False})
    try:
        second = cluster.add_node(**_NODE)
        ray.init(address=cluster.address, log_to_driver=False)
        options = RayOptions(per_node=per_node)
        config = RolloutConfig(
            tasks=(TASK,),
            agents=AGENTS,
            n=rollouts // len(AGENTS),
            variant="small",
            deadline_s=600,
            max_tokens=4000,
            model=str(folder / "tiny"),
        )
        job = Job(config=config, tasks=(get_task(TASK),), engine=SolvingEngine(folder / "tiny"))
        run = RunDir.create(folder / "run")
        driver = RolloutsOnCluster(RayCluster.join(options), job, run, options, _say)
        killer = threading.Thread(target=lambda: cluster.remove_node(second, allow_graceful=False))
        done = 0

        def count(result: RolloutResult) -> None:
            nonlocal done
            done += 1
            _say(f"{done}: {result.rollout_id} {result.status} {result.reward} {result.error}")
            if done == rollouts // 2:
                killer.start()

        asyncio.run(driver.run(episodes_of(config), on_done=count))
        _say("all rollouts have ended")
        killer.join()
    finally:
        ray.shutdown()
        cluster.shutdown()
        _say("the cluster is down")
    left = asyncio.run(_reaped())
    return {**counted(run), "seconds": round(time.monotonic() - begun, 1), "reaped": left}


def counted(run: RunDir) -> dict[str, Any]:
    """What the run folder holds, read from the files alone."""
    results, reader = run.results(), JournalReader(run.journal)
    attempts = read_attempts(run.path / ATTEMPTS)
    sessions = Counter(session.id for session in reader.sessions())
    graphs = [reader.graph(result.session_id, session_tag(result.session_id)) for result in results]
    return {
        "results": len(results),
        "different": len({result.rollout_id for result in results}),
        "rewards": dict(Counter(str(result.reward) for result in results)),
        "sessions_of_results": sessions == Counter(result.session_id for result in results),
        "problems": [problem for audit in audit_run(run) for problem in audit.problems],
        "sampled": sum(len(turn.sampled_ids) for graph in graphs for turn in graph),
        "trained": sum(sum(row.loss_mask) for result in results for row in result.rows),
        "attempts": dict(Counter(attempt.outcome for attempt in attempts)),
        "nodes": len({attempt.node for attempt in attempts}),
    }


def wrong(found: dict[str, Any], rollouts: int) -> list[str]:
    """What is not as it must be."""
    must = {
        "results": rollouts,
        "different": rollouts,
        "rewards": {"1.0": rollouts},
        "sessions_of_results": True,
        "problems": [],
        "trained": found["sampled"],
        "nodes": 2,
    }
    said = [f"{name} is {found[name]}, not {value}" for name, value in must.items() if found[name] != value]
    if found["attempts"].get("counted") != rollouts or not found["attempts"].get("lost"):
        said.append(f"attempts are {found['attempts']}")
    return said


async def _reaped() -> list[str]:
    """Remove what the killed node left, as `drivetrain reap` does."""
    backend = get_backend("local")
    try:
        return [*remove_stale_folders(), *await backend.reap()]
    finally:
        await backend.aclose()


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Play and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=16, help="an even number (default 16)")
    parser.add_argument("--per-node", type=int, default=2, help="rollouts in flight on each node (default 2)")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="dtray"))  # short: Ray puts sockets below it
    os.environ["RAY_TMPDIR"] = str(folder)
    try:
        found = play(args.rollouts, folder, per_node=args.per_node)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found["wrong"] = wrong(found, args.rollouts)
    print(json.dumps(found))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
