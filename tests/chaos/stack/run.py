"""One chaos run: faults over a running system, then everything is ended, exported and checked.

``python -m tests.chaos.stack.run --seconds 600 --seed 7`` (``make chaos``) prints how it goes and a summary, and ends
with status 1 when the checker finds something; the run's folder is then kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.chaos.stack.checker import Finding, Report, check
from tests.chaos.stack.export import export
from tests.chaos.stack.injure import Injuries
from tests.chaos.stack.leaks import leaks
from tests.chaos.stack.plan import Plan
from tests.chaos.stack.schedule import Fault, draw
from tests.chaos.stack.stage import Stage, staged

_PATIENCE_S = 400.0
"""For agents to finish their last call once nothing is wrong any more, and for a slow machine to see enough turns."""
_PROGRESS_S = 10.0
_LIVE_SESSIONS = 40

_HEADLINES = {"lost": "lost", "duplicated": "duplicated", "undelivered_trained": "undelivered and trained"}

Tell = Callable[[str], None]


class Outcome(msgspec.Struct):
    """What a run did, and what the checker says."""

    faults: Counter[str]
    report: Report
    seconds: float

    def summary(self) -> list[str]:
        counts = self.report.counts
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        others = sum(finding.code not in _HEADLINES for finding in self.report.findings)
        return [
            f"{counts['seen']} turns seen by {counts['agents']} agents in {counts['sessions']} sessions, "
            f"{counts['committed']} committed, {counts['trained']} trained, {counts['control']} budget stops, "
            f"{counts['retried']} tries failed, {counts['gave_up']} calls given up, {self.seconds:.0f} s",
            f"{sum(self.faults.values())} faults: {faults}",
            f"sent to a client that died or hung up {counts['unread']}, seen but not marked as sent "
            f"{counts['unmarked']}, sampled twice {counts['resampled']}",
            ", ".join(f"{text} {self.report.of(code)}" for code, text in _HEADLINES.items())
            + f", other findings {others}",
        ]


async def run(plan: Plan, tell: Tell = lambda _: None) -> Outcome:
    """Raises RuntimeError when the system does not come to rest."""
    began = time.monotonic()
    async with staged(plan) as stage:
        injuries = Injuries(stage)
        await _warm(stage)
        tell(f"the agents are at work after {time.monotonic() - began:.0f} s; faults begin")
        await _faults(stage, injuries, draw(plan.seed, plan.seconds, kinds=plan.kinds, every_s=plan.every_s), tell)
        plan.stop.touch()
        tell("no more faults; the agents finish their calls")
        await _settle(stage)
        found = await _shut(stage)
        ids = list(stage.boxes.ids)
        kit = stage.boxes.kit
    found += await asyncio.to_thread(leaks, plan, kit, ids)
    broken = await asyncio.to_thread(export, plan.journal, plan.rows)
    found += [Finding("unreadable", session, why) for session, why in broken.items()]
    report = await asyncio.to_thread(check, plan.folder)
    report.findings += found
    return Outcome(Counter(injuries.done), report, time.monotonic() - began)


async def _warm(stage: Stage) -> None:
    """Half of the agents have seen a reply."""
    async with asyncio.timeout(_PATIENCE_S):
        while len(stage.tally.seen_by) < stage.plan.harnesses // 2:
            await asyncio.sleep(0.5)
            stage.tally.count()


async def _faults(stage: Stage, injuries: Injuries, faults: list[Fault], tell: Tell) -> None:
    """Until the time is up, every fault is over, and enough was seen."""
    plan, began = stage.plan, time.monotonic()
    progress = asyncio.create_task(_progress(stage, injuries, tell))
    tasks: set[asyncio.Task[None]] = set()
    try:
        for fault in faults:
            await asyncio.sleep(max(0.0, began + fault.at - time.monotonic()))
            tasks.add(asyncio.create_task(injuries.inflict(fault)))
            for task in [task for task in tasks if task.done()]:
                tasks.discard(task)
                task.result()
        await asyncio.gather(*tasks)
        await asyncio.sleep(max(0.0, began + plan.seconds - time.monotonic()))
        ends = time.monotonic() + _PATIENCE_S
        while stage.tally.count()["seen"] < plan.least_turns and time.monotonic() < ends:  # noqa: ASYNC110
            await asyncio.sleep(1)
    finally:
        progress.cancel()
        for task in tasks:
            task.cancel()


async def _progress(stage: Stage, injuries: Injuries, tell: Tell) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(_PROGRESS_S)
        counts = stage.tally.count()
        tell(
            f"{time.monotonic() - began:4.0f} s: {counts['seen']} turns seen, {counts['open']} sessions, "
            f"{counts['fail']} tries failed, {sum(injuries.done.values())} faults done, "
            f"now: {', '.join(sorted(injuries.running)) or 'nothing'}"
        )


async def _settle(stage: Stage) -> None:
    """Every agent has stopped of its own accord."""
    code = await stage.workers.wait(_PATIENCE_S)
    if code:
        raise RuntimeError(f"the agents' processes failed:\n{(stage.plan.folder / 'workers.log').read_text()[-6000:]}")
    async with asyncio.timeout(_PATIENCE_S):
        await stage.boxes.wait()


async def _shut(stage: Stage) -> list[Finding]:
    """Seal what is open, keep some rows as the gateway has them, end the gateway in order."""
    found = []
    _, answer = await stage.admin.ask("GET", "/sessions")
    for session in answer["sessions"]:
        if session["state"] == "open":
            await stage.admin.seal(session["session_id"])
    with stage.plan.live_rows.open("w") as file:
        for session in answer["sessions"][:: max(1, len(answer["sessions"]) // _LIVE_SESSIONS)]:
            name = session["session_id"]
            status, rows = await stage.admin.try_once("GET", f"/sessions/{name}/rows")
            if status == 200:
                file.write(json.dumps({"session": name, "rows": rows["rows"]}) + "\n")
            else:
                found.append(Finding("unreadable", name, f"the gateway answers {status} when asked for its rows"))
    stage.gateway.signal(signal.SIGTERM)
    code = await stage.gateway.wait(_PATIENCE_S)
    return found if code == 0 else [*found, Finding("shutdown", "gateway", f"it ended with {code} after SIGTERM")]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--harnesses", type=int, default=52)
    parser.add_argument("--every", type=float, default=2.4, help="seconds between two faults")
    parser.add_argument("--boxes", type=int, default=2)
    given = parser.parse_args()
    plan = Plan(
        folder=Path(tempfile.mkdtemp(prefix="dt-chaos-")),
        seed=given.seed,
        seconds=given.seconds,
        harnesses=given.harnesses,
        every_s=given.every,
        boxes=given.boxes,
    )

    def tell(line: str) -> None:
        print(line, flush=True)

    tell(f"chaos: seed {plan.seed}, {plan.seconds:g} s, {plan.harnesses} agents, folder {plan.folder}")
    outcome = asyncio.run(run(plan, tell))
    for line in outcome.summary():
        tell(line)
    for finding in outcome.report.findings[:50]:
        tell(f"FINDING {finding}")
    if outcome.report.findings:
        tell(f"{len(outcome.report.findings)} findings; see {plan.folder}")
        sys.exit(1)
    shutil.rmtree(plan.folder)
    tell("nothing lost, nothing duplicated")


if __name__ == "__main__":
    main()
