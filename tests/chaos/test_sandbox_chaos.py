"""Two hundred sandboxes whose owners are killed in the middle of everything: after a reap there is nothing left.

``DRIVETRAIN_CHAOS_SANDBOXES=200`` sets the number for every backend; ``DRIVETRAIN_CHAOS_SEED`` repeats a run.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from drivetrain.sandboxes.label import read_label
from tests.chaos.leftovers import leftovers, wait_until_clean
from tests.chaos.owners import Plan
from tests.conformance.sandbox.kits import get_kit, kit_names
from tests.conformance.sandbox.kits.base import Kit

EACH = 10
# A container or a double of a cloud box costs many times what a local sandbox does.
SANDBOXES = {"local": 200}
OTHERS = 30
REPOSITORY = Path(__file__).parents[2]


# What can be left on this machine. A cloud's boxes end with the provider's lease (tests/sandboxes/remote).
HOSTS = [name for name in kit_names() if name in ("local", "docker")]


@pytest.fixture(scope="module", params=HOSTS)
def kit(request: pytest.FixtureRequest) -> Iterator[Kit]:
    made = get_kit(request.param)
    if reason := made.missing():
        pytest.skip(f"{made.name}: {reason}")
    made.start()
    yield made
    made.close()


def plan_for(kit: Kit, folder: Path, sandboxes: int, deaths: list[str | None] | None = None) -> Plan:
    seed = int(os.environ.get("DRIVETRAIN_CHAOS_SEED", "6"))
    owners = max(1, sandboxes // EACH)
    if deaths is None:
        # Every phase in turn, one in seven owners survives; the last dies with sandboxes at hand.
        phases: list[str | None] = ["create", "exec", "background", "upload", "close", "create", None]
        deaths = [phases[number % len(phases)] for number in range(owners - 1)]
        random.Random(seed).shuffle(deaths)
        deaths.append("background")
    return Plan(
        kit=kit.name,
        root=str(folder / "sandboxes"),
        log=str(folder / "log"),
        mark=f"chaos-{secrets.token_hex(8)}",
        seed=seed,
        each=EACH,
        deaths=deaths,
    )


def run_owners(kit: Kit, plan: Plan, folder: Path) -> list[list[str]]:
    """The log, line by line, word by word."""
    file = folder / "plan.json"
    file.write_bytes(msgspec.json.encode(plan))
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.owners", str(file)],
        cwd=REPOSITORY,
        env={**os.environ, **kit.environ()},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "", (done.stdout, done.stderr[-4000:])
    return [line.split(" ") for line in Path(plan.log).read_text().splitlines()]


def ids_in(log: list[list[str]]) -> list[str]:
    return [line[2] for line in log if line[1] == "id"]


async def reap(kit: Kit, root: Path) -> list[str]:
    """As if ten minutes later: a folder that was not labelled yet may be somebody's who is about to do so."""
    for folder in root.iterdir() if root.exists() else ():
        if read_label(folder) is None:
            os.utime(folder, (1, 1))
    backend = kit.make(root)
    try:
        return await backend.reap()
    finally:
        await backend.aclose()


@pytest.mark.real
@pytest.mark.timeout(600)
@pytest.mark.case("F1")
def test_nothing_is_left_of_owners_killed_at_any_point(kit: Kit, tmp_path: Path) -> None:
    sandboxes = int(os.environ.get("DRIVETRAIN_CHAOS_SANDBOXES", SANDBOXES.get(kit.name, OTHERS)))
    plan = plan_for(kit, tmp_path, sandboxes)
    root = Path(plan.root)
    log = run_owners(kit, plan, tmp_path)

    begun = Counter(line[2] for line in log if line[1] == "begin")
    assert begun["create"] == len(plan.deaths) * EACH
    unexpected = [line for line in log if line[1] == "error" and line[3] != "SandboxGone"]
    assert unexpected == []  # nobody's sandbox was taken while its owner lived
    # Each kind of death happened while that very thing was going on in some sandbox.
    for number, phase in enumerate(plan.deaths):
        if phase is not None:
            lines = [line for line in log if line[0] == str(number)]
            assert ["begin", phase] in [line[1:3] for line in lines], (number, phase)
    going_on = Counter(line[2] for line in log if line[1] == "begin")
    going_on.subtract(Counter(line[2] for line in log if line[1] in ("end", "cancelled")))
    assert all(going_on[phase] > 0 for phase in {*plan.deaths} - {None}), going_on

    ids = ids_in(log)
    assert len(ids) >= begun["create"] / 3  # the rest were killed or given up before they had a name
    assert leftovers(kit, root, plan.mark, ids), "no owner left anything: nothing was tested"
    asyncio.run(reap(kit, root))
    assert wait_until_clean(kit, root, plan.mark, ids, patience_s=20.0) == []


def wait_for_command_line(pid: int) -> None:
    """A process that has just begun has none for a moment."""
    deadline = time.monotonic() + 60
    while not Path(f"/proc/{pid}/cmdline").read_bytes() and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.real
@pytest.mark.timeout(240)
@pytest.mark.case("F1")
def test_the_check_sees_what_is_left(kit: Kit, tmp_path: Path) -> None:
    """Without a reap it finds the leavings of a killed owner, and after one it names a process that stayed."""
    plan = plan_for(kit, tmp_path, EACH, deaths=["background"])
    root = Path(plan.root)
    ids = ids_in(run_owners(kit, plan, tmp_path))
    found = wait_until_clean(kit, root, plan.mark, ids, patience_s=1.0)
    assert found
    asyncio.run(reap(kit, root))
    assert wait_until_clean(kit, root, plan.mark, ids, patience_s=20.0) == []
    stray = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True, executable="/bin/sleep")
    marked = subprocess.Popen(["sh", "-c", "sleep 600; true", plan.mark], start_new_session=True)
    try:
        wait_for_command_line(marked.pid)
        named = wait_until_clean(kit, root, plan.mark, ids, patience_s=0.5)
        assert named == [f"process {marked.pid} runs inside"]
    finally:
        os.killpg(marked.pid, signal.SIGKILL)
        stray.kill()
        marked.wait()
        stray.wait()
    assert wait_until_clean(kit, root, plan.mark, ids, patience_s=5.0) == []
