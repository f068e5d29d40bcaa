"""What a sandbox costs: create, one command, close; started for the request (cold) and from the warm pool.

    python benchmarks/sandbox_lifecycle.py                                 # the local backend, about half a minute
    python benchmarks/sandbox_lifecycle.py --quick                         # seconds: does the script work?
    python benchmarks/sandbox_lifecycle.py --backends local,docker --docker-socket /tmp/engine/docker.sock
    python benchmarks/sandbox_lifecycle.py --backends local,e2b --out results.json

Every repetition goes through all sides in turn, so that slow drift of the machine hits each of them. The sides of a
backend are

  cold         create starts a sandbox
  pool         create takes one that waits in a SandboxPool; close waits until it is gone
  pool, async  the same, and close returns while the removal goes on (close_in_background)

create, exec (of `true`) and close are wall time in milliseconds, total is their sum: what a caller waits for. A pool
starts the next sandbox as soon as one is taken, so its exec and close run beside a start, as they do in use; between
the repetitions it is left to finish. "gone" is the time from the begin of close until the sandbox is removed. "CPU" is
processor time of this process and its ended children for one whole turn; for a pool that includes starting the next.
"others" is the share of the machine that other processes used meanwhile: above a few per cent believe "min" and CPU,
not p95.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from drivetrain.errors import DrivetrainError
from drivetrain.sandboxes import SandboxBackend, SandboxSpec, get_backend
from drivetrain.sandboxes.pool import Probe, SandboxPool, runs_a_command, still_there

PROBES: dict[str, Probe] = {"stats": still_there, "exec": runs_a_command}
STEPS = ("create", "exec", "close", "total", "gone")


class Side:
    """One backend, cold or behind a pool."""

    def __init__(self, name: str, backend: SandboxBackend, spec: SandboxSpec) -> None:
        self.name = name
        self.backend = backend
        self.spec = spec
        self.ms: dict[str, list[float]] = {step: [] for step in STEPS}
        self.cpu_ms: list[float] = []

    @property
    def pool(self) -> SandboxPool | None:
        """The pool, if there is one."""
        return self.backend if isinstance(self.backend, SandboxPool) else None

    async def turn(self) -> None:
        """Create, run `true`, close; then wait until nothing of it goes on."""
        hits = 0
        if self.pool is not None:
            await self.pool.warm(self.spec)
            hits = self.pool.statistics().hits
        before = _cpu_s()
        box, create = await _timed(lambda: self.backend.create(self.spec))
        done, command = await _timed(lambda: box.exec(["true"]))
        if done.exit_code != 0:
            raise SystemExit(f"{self.name}: `true` ended with {done.exit_code}: {done.stderr!r}")
        begun = time.perf_counter()
        _, close = await _timed(box.close)
        if self.pool is not None:
            while self.pool.statistics().closing:  # noqa: ASYNC110 (a pool has no event for it)
                await asyncio.sleep(0.0005)
        gone = 1000 * (time.perf_counter() - begun)
        if self.pool is not None:
            if self.pool.statistics().hits != hits + 1:
                raise SystemExit(f"{self.name}: the pool had none ready: {self.pool.statistics()}")
            await self.pool.warm(self.spec)
        self.cpu_ms.append(1000 * (_cpu_s() - before))
        for step, took in zip(STEPS, (create, command, close, create + command + close, gone), strict=True):
            self.ms[step].append(took)

    def result(self) -> dict[str, Any]:
        """What is written as JSON; milliseconds."""
        steps = {step: _spread(values) for step, values in self.ms.items()}
        return {"side": self.name, "cpu": _spread(self.cpu_ms), **steps}


async def _timed(work: Callable[[], Awaitable[Any]]) -> tuple[Any, float]:
    begun = time.perf_counter()
    result = await work()
    return result, 1000 * (time.perf_counter() - begun)


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    high = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    return {"min": ordered[0], "p50": statistics.median(ordered), "p95": high}


def _backend(name: str, args: argparse.Namespace, folder: Path) -> SandboxBackend:
    """A backend that shares nothing with the sandboxes of other runs, where it can."""
    if name == "local":
        from drivetrain.sandboxes.local import LocalBackend

        return LocalBackend(folder / "local")
    if name == "docker":
        from drivetrain.sandboxes.docker import DockerBackend

        image = {} if args.docker_image is None else {"image": args.docker_image}
        return DockerBackend(args.docker_socket, root=folder / "docker", **image)
    return get_backend(name)


def _sides(name: str, args: argparse.Namespace, folder: Path) -> list[Side]:
    spec = SandboxSpec()
    probe = PROBES[args.probe]

    def pool(**options: bool) -> SandboxPool:
        return SandboxPool(_backend(name, args, folder), max_total=4, max_warm=1, max_age_s=600, probe=probe, **options)

    return [
        Side(f"{name} cold", _backend(name, args, folder), spec),
        Side(f"{name} pool", pool(), spec),
        Side(f"{name} pool, async", pool(close_in_background=True), spec),
    ]


async def _measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    sides = [side for name in args.backends for side in _sides(name, args, folder)]
    try:
        for side in sides:
            await side.turn()  # interpreters found, images pulled, caches warm
            side.ms, side.cpu_ms = {step: [] for step in STEPS}, []
        busy, own, begun = _machine_busy_s(), _cpu_s(), time.perf_counter()
        for _ in range(args.repetitions):
            for side in sides:
                await side.turn()
        seconds = time.perf_counter() - begun
        others = max(0.0, (_machine_busy_s() - busy) - (_cpu_s() - own)) / (seconds * (os.cpu_count() or 1))
    finally:
        for side in sides:
            await side.backend.aclose()
    return {
        "repetitions": args.repetitions,
        "probe": args.probe,
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "others": others,
        "seconds": seconds,
        "sides": [side.result() for side in sides],
    }


def _machine_busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def _table(results: dict[str, Any]) -> str:
    lines = [f"{'ms':<18}" + "".join(f"{step:>22}" for step in (*STEPS, "CPU"))]
    lines.append(f"{'':<18}" + f"{'min':>8}{'p50':>7}{'p95':>7}" * (len(STEPS) + 1))
    for side in results["sides"]:
        cells = "".join(
            f"{side[step]['min']:>8.1f}{side[step]['p50']:>7.1f}{side[step]['p95']:>7.1f}" for step in (*STEPS, "cpu")
        )
        lines.append(f"{side['side']:<18}{cells}")
    lines.append(
        f"{results['repetitions']} repetitions in {results['seconds']:.0f} s on {results['cpus']} CPUs; others used "
        f"{results['others']:.0%} of the machine, load {results['load_average']:.1f}"
    )
    return "\n".join(lines)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--backends", default="local", help="comma separated: local, docker, e2b, hf or a registered one"
    )
    parser.add_argument("--repetitions", type=int, default=50, help="of every side")
    parser.add_argument("--probe", choices=sorted(PROBES), default="stats", help="what a pool checks at hand-out")
    parser.add_argument("--docker-socket", type=Path, help="the engine's socket (default: found as DockerBackend does)")
    parser.add_argument("--docker-image", help="image reference (default: DockerBackend's)")
    parser.add_argument("--quick", action="store_true", help="3 repetitions")
    parser.add_argument("--out", type=Path, help="write the results as JSON here")
    args = parser.parse_args(argv)
    args.backends = [name for name in args.backends.split(",") if name]
    if args.quick:
        args.repetitions = 3
    if not args.backends or args.repetitions < 1:
        parser.error("at least one backend and one repetition")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table and write ``--out``."""
    args = _parse(argv)
    with tempfile.TemporaryDirectory(prefix="sandbox-benchmark-") as folder:
        try:
            results = asyncio.run(_measure(args, Path(folder)))
        except DrivetrainError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    print(_table(results))
    if args.out:
        args.out.write_bytes(msgspec.json.format(json.dumps(results).encode(), indent=1) + b"\n")
        print(f"wrote {args.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
