"""The clients' processes: groups of agents that share a process, forked from one that has imported the SDKs.

Run as ``python -m tests.chaos.stack.workers CREW`` (a JSON :class:`Crew`). A group that is killed is forked again; its
agents resume from their diaries. The pid of group N is in the file ``group.N`` of the folder.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path

import msgspec

from tests.chaos.stack.admin import Admin
from tests.chaos.stack.harness import Harness, Order, Session
from tests.chaos.stack.parent import die_with_parent
from tests.chaos.stack.wires import SDKS


class Crew(msgspec.Struct):
    """Who runs where: one list of orders per group."""

    folder: str
    admin: str
    key: str
    groups: list[list[Order]]


async def run_group(crew: Crew, orders: list[Order]) -> None:
    """Runners and their agents, until the agents stop."""
    admin = Admin(crew.admin, crew.key)

    async def open_session(turns: int) -> Session:
        session, key = await admin.open(turns)
        return Session(session, key, turns)

    async def seal_session(session: Session) -> None:
        await admin.seal(session.id)

    try:
        await asyncio.gather(*(Harness(order, open_session, seal_session).run() for order in orders))
    finally:
        await admin.aclose()


def fork(crew: Crew, number: int) -> int:
    """Start a group; its pid."""
    pid = os.fork()
    if pid:
        written = Path(crew.folder) / f"group.{number}.new"
        written.write_text(str(pid))
        written.rename(written.with_suffix(""))
        return pid
    code = 1
    try:
        die_with_parent()
        asyncio.run(run_group(crew, crew.groups[number]))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    die_with_parent()
    crew = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Crew)
    for wire in {order.wire for group in crew.groups for order in group}:
        import_module(SDKS[wire])  # here once, for all groups
    running = {fork(crew, number): number for number in range(len(crew.groups))}
    while running:
        pid, status = os.wait()
        number = running.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            running[fork(crew, number)] = number
        elif code:
            print(f"group {number} ended with {code}", file=sys.stderr, flush=True)
            sys.exit(code)


if __name__ == "__main__":
    main()
