"""Tokens per second of the embedded engine beside plain ``generate`` and vLLM's CPU build, on one machine, in one run.

    python benchmarks/engine_embedded.py                      # long: half an hour or more on 2 cores
    python benchmarks/engine_embedded.py --quick              # a tiny random model, seconds: does the script work?
    python benchmarks/engine_embedded.py --dtype bfloat16 --threads 1 --sides embedded,plain

Every side runs the same conversations: as many at the same time as --conversations says, each with --turns turns, each
turn about --delta new prompt tokens and exactly --new sampled ones (no end-of-turn token ends a turn early). The sides
are

  embedded   drivetrain's own engine: keys and values stay in memory from turn to turn, log-probs are told
  plain      transformers' generate over the batch, left padded: every prompt is computed from its start, no log-probs
  vllm       vLLM's CPU build with prefix caching, through drivetrain's client (scripts/vllm-venv installs it)

One side runs at a time (vLLM's processes are stopped meanwhile), in turn, --repetitions times, so that slow drift of
the machine hits all of them. Tokens per second are sampled tokens by wall time, prompts included. "CPU s" is processor
time of all the side's processes; "others" is the share of the machine that other processes used meanwhile: above a few
per cent believe the ratios of CPU time, not those of wall time.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from engine_sides import Load, Side

    from drivetrain.engines.models import ModelDir

SIDES = ("embedded", "plain", "vllm")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table and write ``--out``."""
    args = _parse(argv)
    from drivetrain.engines.quiet import no_progress_bars  # torch and transformers stay off --help

    with tempfile.TemporaryDirectory() as folder, no_progress_bars():
        results = asyncio.run(_measure_all(args, Path(folder)))
    print(_table(results))
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {args.out}")
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="bundled name or model directory (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--conversations", type=int, default=8, metavar="N", help="at the same time (8)")
    parser.add_argument("--turns", type=int, default=10, metavar="N", help="of each conversation (10)")
    parser.add_argument("--delta", type=int, default=60, metavar="TOKENS", help="new prompt tokens per turn (60)")
    parser.add_argument("--new", type=int, default=64, metavar="TOKENS", help="sampled per turn (64)")
    parser.add_argument("--repetitions", type=int, default=3, metavar="N", help="of every side (3)")
    parser.add_argument("--threads", default="1,2", metavar="N[,N]", help="torch threads, one table each (1,2)")
    parser.add_argument("--dtype", default="float32", metavar="D[,D]", help="float32, bfloat16 or both (float32)")
    parser.add_argument("--sides", default=",".join(SIDES), metavar="S[,S]", help="embedded,plain,vllm")
    parser.add_argument("--eager", action="store_true", help="vLLM without compilation: starts a minute earlier")
    parser.add_argument("--quick", action="store_true", help="tiny model, small load, one repetition, no vLLM")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write every run as JSON")
    args = parser.parse_args(argv)
    args.threads = [int(n) for n in args.threads.split(",")]
    args.dtype = args.dtype.split(",")
    args.sides = args.sides.split(",")
    if wrong := {*args.sides} - {*SIDES} or {*args.dtype} - {"float32", "bfloat16"}:
        parser.error(f"unknown: {', '.join(sorted(wrong))}")
    if args.quick:
        args.conversations, args.turns, args.delta, args.new, args.repetitions = 3, 2, 9, 5, 1
        args.threads, args.sides = [1], [side for side in args.sides if side != "vllm"]
    return args


async def _measure_all(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from engine_sides import Load

    from drivetrain.engines.models import resolve_model
    from drivetrain.engines.tiny import build_tiny_model

    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)  # a stopped server would be left behind
    model = build_tiny_model(folder / "tiny") if args.quick else resolve_model(*([args.model] if args.model else []))
    load = Load(args.conversations, args.turns, args.delta, args.new)
    settings = []
    for dtype in args.dtype:
        for threads in args.threads:
            sides = _sides(args, model, load, folder, dtype, threads)
            runs = await _measure(sides, load, model.vocab_size, args.repetitions)
            settings.append({"dtype": dtype, "threads": threads, "runs": runs})
    return {
        "model": model.name,
        "load": vars(load),
        "cores": len(os.sched_getaffinity(0)),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers")},
        "settings": settings,
    }


def _sides(args: argparse.Namespace, model: ModelDir, load: Load, folder: Path, dtype: str, threads: int) -> list[Side]:
    from engine_sides import VLLM, Embedded, Plain  # puts the checkout on the path
    from tests.real.vllm_server import vllm_python

    sides: list[Side] = []
    if "embedded" in args.sides:
        sides.append(Embedded(model, load, dtype=dtype, threads=threads))
    if "plain" in args.sides:
        sides.append(Plain(model, load, dtype=dtype, threads=threads))
    if "vllm" in args.sides:
        python = vllm_python()
        if python is None:
            print("vLLM is left out: it is not installed (scripts/vllm-venv, or DRIVETRAIN_VLLM_PYTHON).", flush=True)
        else:
            log = folder / f"vllm-{dtype}-{threads}.log"
            sides.append(VLLM(model, load, dtype=dtype, threads=threads, python=python, log=log, eager=args.eager))
    return sides


async def _measure(sides: Sequence[Side], load: Load, vocab: int, repetitions: int) -> list[dict[str, Any]]:
    """Every side in turn, ``repetitions`` times; each repetition has conversations of its own."""
    runs = []
    try:
        for side in sides:
            await side.start()
        for repetition in range(repetitions):
            for side in sides:
                run = await _run(side, load, vocab, repetition)
                print(
                    f"  {run['side']} #{repetition}: {run['tokens_per_s']:.1f} tokens/s, {run['cpu_s']:.1f} CPU s, "
                    f"others {run['others']:.0%}",
                    flush=True,
                )
                runs.append(run)
    finally:
        for side in sides:
            await side.aclose()
    return runs


async def _run(side: Side, load: Load, vocab: int, seed: int) -> dict[str, Any]:
    deltas = load.deltas(vocab, seed)
    wall, cpu, busy = time.perf_counter(), side.cpu_s(), _busy_s()
    await side.run(deltas, seed)
    wall, cpu, busy = time.perf_counter() - wall, side.cpu_s() - cpu, _busy_s() - busy
    return {
        "side": side.name,
        "tokens": load.sampled,
        "wall_s": wall,
        "cpu_s": cpu,
        "others": max(0.0, busy - cpu) / (wall * len(os.sched_getaffinity(0))),
        "tokens_per_s": load.sampled / wall,
    }


def _busy_s() -> float:
    """Processor seconds that the machine has spent on anything."""
    spent = psutil.cpu_times()
    return spent.user + spent.system + spent.nice + getattr(spent, "steal", 0.0)


def _table(results: dict[str, Any]) -> str:
    load = results["load"]
    lines = [
        f"\n{results['model']}, {load['conversations']} conversations of {load['turns']} turns, about "
        f"{load['delta']} + {load['new']} tokens each, {results['cores']} cores\n",
        "| dtype | threads | side | tokens/s: median (min-max) | embedded is | CPU s | by CPU time | others |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for setting in results["settings"]:
        by_side: dict[str, list[dict[str, Any]]] = {}
        for run in setting["runs"]:
            by_side.setdefault(run["side"], []).append(run)
        ours = by_side.get("embedded")
        for name, runs in by_side.items():
            speeds = [run["tokens_per_s"] for run in runs]
            lines.append(
                f"| {setting['dtype']} | {setting['threads']} | {name} "
                f"| {statistics.median(speeds):.1f} ({min(speeds):.1f}-{max(speeds):.1f}) "
                f"| {_ratio(runs, ours, 'wall_s')} | {statistics.median(run['cpu_s'] for run in runs):.1f} "
                f"| {_ratio(runs, ours, 'cpu_s')} | {max(run['others'] for run in runs):.0%} |"
            )
    return "\n".join(lines) + "\n"


def _ratio(runs: list[dict[str, Any]], ours: list[dict[str, Any]] | None, cost: str) -> str:
    """How many times faster the embedded engine is: median over the repetitions, each compared with its own."""
    if ours is None or runs is ours:
        return ""
    ratios = [run[cost] / own[cost] for run, own in zip(runs, ours, strict=True)]
    return f"{statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f})"


if __name__ == "__main__":
    raise SystemExit(main())
