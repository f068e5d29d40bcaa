"""Does the gateway's memory grow? Many sessions, sealed as they end, while its resident memory is sampled.

    python benchmarks/soak.py                              # 500 sessions, 20,000 turns: some minutes
    python benchmarks/soak.py --quick                      # seconds: does the script work?
    python benchmarks/soak.py --out soak.json

The gateway runs in a process of its own, with a scripted engine that keeps nothing, behind HTTP; this process plays the
harnesses and the trainer that opens and seals the sessions. A harness sends its whole history in every call, as real
ones do, so the bodies grow with the session.

The slope is that of a least-squares line through the samples of the second half, in kB per 1,000 turns: in the first
half caches fill, the allocator finds its size, and SQLite's write-ahead log reaches its own. "CPU per turn" is the
gateway's processor time, journal included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil

from drivetrain.engines.protocol import Completion

ADMIN_KEY = "admin-key-of-the-soak-run"
TEXT = "The quick brown fox jumps over the lazy dog, and the log of the build says so. "


class Parrot:
    """Implements :class:`drivetrain.engines.protocol.Engine`: the same ids for ever, and no memory."""

    name = "parrot"
    context_length = 1_000_000
    policy_version = 0

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = list(ids)
        self._logprobs = [-0.5] * len(self._ids)

    async def start(self) -> None:
        """Nothing to load."""

    async def aclose(self) -> None:
        """Nothing to free."""

    async def generate(self, _prompt_ids: Any, _sampling: Any, **_of: Any) -> Completion:
        """The same as ever."""
        return Completion(
            token_ids=self._ids,
            logprobs=self._logprobs,
            finish_reason="stop",
            policy_version_start=0,
            policy_version_end=0,
        )


async def serve(folder: Path) -> None:
    """The gateway's process: print both ports, serve until standard input ends."""
    from drivetrain.engines.models import read_model_dir
    from drivetrain.gateway.core import Gateway
    from drivetrain.gateway.model import load_codec
    from drivetrain.gateway.server import GatewayServer
    from drivetrain.tokens.tokenizer import Tokenizer

    model = read_model_dir(folder / "model", "soak")
    stop = [model.eos_token_id] if model.eos_token_id is not None else []
    engine = Parrot([*Tokenizer.from_file(model.tokenizer_path).encode("I looked at it. " + TEXT), *stop])
    server = GatewayServer(Gateway(engine, load_codec(model), folder / "journal.sqlite", model="m"))
    ports = await server.listen_tcp(0), await server.listen_admin(0, ADMIN_KEY)
    print(*ports, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.aclose()


class Soak:
    """One run against a gateway's process."""

    def __init__(self, process: psutil.Process, ports: tuple[int, int], every: int) -> None:
        self._process = process
        self._chat = f"http://127.0.0.1:{ports[0]}/v1/chat/completions"
        self._sessions = f"http://127.0.0.1:{ports[1]}/admin/sessions"
        self._every = every
        self.turns = 0
        self.samples: list[tuple[int, float]] = []
        """(turns so far, resident kB)"""

    async def run(self, sessions: int, turns: int, at_once: int) -> None:
        """Run all sessions, so many of them at once."""
        left = iter(range(sessions))

        async def work(client: aiohttp.ClientSession) -> None:
            for number in left:
                await self._session(client, number, turns)

        async with aiohttp.ClientSession(raise_for_status=True) as client:
            await asyncio.gather(*(work(client) for _ in range(at_once)))

    async def _session(self, client: aiohttp.ClientSession, number: int, turns: int) -> None:
        admin = {"Authorization": f"Bearer {ADMIN_KEY}"}
        body = {"policy": {"max_turns": turns + 1}, "labels": {"rollout": f"soak.{number}"}}
        async with client.post(self._sessions, json=body, headers=admin) as reply:
            opened = await reply.json()
        key = {"Authorization": f"Bearer {opened['api_key']}"}
        history: list[dict[str, Any]] = [{"role": "user", "content": f"Task {number}. {TEXT}"}]
        for turn in range(turns):
            async with client.post(self._chat, json={"model": "m", "messages": history}, headers=key) as reply:
                said = (await reply.json())["choices"][0]["message"]["content"]
            history += [
                {"role": "assistant", "content": said},
                {"role": "user", "content": f"Output {number}.{turn}: {TEXT * 4}"},
            ]
            self.turns += 1
            if self.turns % self._every == 0:
                self.samples.append((self.turns, self._process.memory_info().rss / 1024))
        async with client.delete(f"{self._sessions}/{opened['session_id']}", headers=admin) as reply:
            await reply.read()


def slope(samples: Sequence[tuple[int, float]]) -> float:
    """Growth over the second half of the samples, in kB per 1,000 turns."""
    turns, kb = np.array(samples[len(samples) // 2 :]).T
    return float(np.polyfit(turns, kb, 1)[0] * 1000)


def soak(sessions: int, turns: int, at_once: int, samples: int, tell: Any = print) -> dict[str, Any]:
    """Run it and say what was measured."""
    from drivetrain.engines.tiny import build_tiny_model

    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        build_tiny_model(folder / "model", context=8192)
        child = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        try:
            one, two = child.stdout.readline().split()
            process = psutil.Process(child.pid)
            run = Soak(process, (int(one), int(two)), max(1, sessions * turns // samples))
            before, began = _cpu_s(process), time.monotonic()
            asyncio.run(run.run(sessions, turns, at_once))
            cpu, wall = _cpu_s(process) - before, time.monotonic() - began
            journal = sum(path.stat().st_size for path in folder.glob("journal.sqlite*"))
        finally:
            child.communicate()
    done = {
        "sessions": sessions,
        "turns": run.turns,
        "seconds": round(wall, 1),
        "cpu_ms_per_turn": round(1000 * cpu / run.turns, 3),
        "slope_kb_per_1000_turns": round(slope(run.samples), 1),
        "rss_mb": [round(kb / 1024, 1) for _, kb in run.samples],
        "journal_mb": round(journal / 2**20, 1),
        "exit_code": child.returncode,
    }
    for turn, kb in run.samples:
        tell(f"{turn:>7} turns  {kb / 1024:7.1f} MB")
    return done


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--turns", type=int, default=40, help="per session")
    parser.add_argument("--at-once", type=int, default=16, help="sessions that run at the same time")
    parser.add_argument("--samples", type=int, default=40, help="how often memory is looked at")
    parser.add_argument("--quick", action="store_true", help="20 sessions of 10 turns")
    parser.add_argument("--out", type=Path, help="write the results here as JSON")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        asyncio.run(serve(given.serve))
        return
    sessions, turns = (20, 10) if given.quick else (given.sessions, given.turns)
    done = soak(sessions, turns, given.at_once, given.samples)
    print(json.dumps({key: value for key, value in done.items() if key != "rss_mb"}, indent=2))
    if given.out:
        given.out.write_text(json.dumps({**done, "python": sys.version, "cpus": os.cpu_count()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
