"""The system under test and its clients, started and ended."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from drivetrain.engines.tiny import build_tiny_model
from tests.chaos.stack.admin import Admin
from tests.chaos.stack.boxes import Boxes
from tests.chaos.stack.diary import Tally
from tests.chaos.stack.harness import Order
from tests.chaos.stack.plan import Plan
from tests.chaos.stack.processes import Process, free_ports
from tests.chaos.stack.relay import Relay
from tests.chaos.stack.workers import Crew

CONTEXT = 8192


class Stage(msgspec.Struct):
    """What a fault can be done to."""

    plan: Plan
    engine: Process
    gateway: Process
    relay: Relay
    workers: Process
    boxes: Boxes
    admin: Admin
    tally: Tally
    version: int = 0
    """Of the policy, as the trainer counts."""

    def control(self, name: str, value: str | None) -> None:
        """Write a control file of the served process; None removes it."""
        path = self.plan.controls / name
        if value is None:
            path.unlink(missing_ok=True)
        else:
            new = path.with_suffix(".new")
            new.write_text(value)
            new.rename(path)

    def group_pid(self, number: int) -> int:
        """Which process runs a group of agents now; 0 before it was started."""
        path = self.plan.folder / f"group.{number}"
        return int(path.read_text()) if path.exists() else 0


@asynccontextmanager
async def staged(plan: Plan) -> AsyncIterator[Stage]:
    """Everything runs; on the way out whatever still does is killed."""
    for folder in (plan.controls, plan.diaries, plan.socket.parent, plan.journal.parent, plan.sandboxes):
        folder.mkdir(parents=True)
    plan.folder.chmod(0o755)
    model = plan.model or (await asyncio.to_thread(build_tiny_model, plan.folder / "model", context=CONTEXT)).path
    stage = _stage(plan, model)
    try:
        await asyncio.gather(stage.workers.start(), stage.relay.start(), stage.engine.start(), stage.gateway.start())
        stage.boxes.start()
        yield stage
    finally:
        await stage.boxes.cancel()
        for process in (stage.workers, stage.gateway, stage.engine):
            if process.running:
                await process.kill()
        await stage.relay.aclose()
        await stage.admin.aclose()


def _stage(plan: Plan, model: Path) -> Stage:
    engine_port, gateway_port, admin_port, relay_port = free_ports(4)
    keys = {name: f"chaos-{name}-{secrets.token_hex(16)}" for name in ("admin", "trainer")}
    options = ["--model", model, "--journal", plan.journal, "--socket", plan.socket]
    options += ["--engine", "vllm", "--engine-url", f"http://127.0.0.1:{engine_port}", "--no-probe"]
    options += ["--port", gateway_port, "--admin-port", admin_port]
    admin_url = f"http://127.0.0.1:{admin_port}/admin"
    crew = Crew(str(plan.folder), admin_url, keys["trainer"], _groups(plan, gateway_port, relay_port))
    order = plan.folder / "crew.json"
    order.write_bytes(msgspec.json.encode(crew))
    admin = Admin(admin_url, keys["trainer"])
    return Stage(
        plan=plan,
        engine=Process(
            "tests.chaos.stack.engine", [str(model), str(engine_port)], plan.folder / "engine.log", ready="ready"
        ),
        gateway=Process(
            "tests.chaos.stack.served",
            [str(plan.controls), *map(str, options)],
            plan.folder / "gateway.log",
            ready="ready:",
            env={
                "DRIVETRAIN_ADMIN_KEY": keys["admin"],
                "DRIVETRAIN_TRAINER_KEY": keys["trainer"],
                "DRIVETRAIN_CHAOS_MISTAKE": plan.mistake,
            },
        ),
        relay=Relay(relay_port, gateway_port, plan.relayed),
        workers=Process("tests.chaos.stack.workers", [str(order)], plan.folder / "workers.log"),
        boxes=Boxes(plan, admin),
        admin=admin,
        tally=Tally(plan.diaries),
    )


def _groups(plan: Plan, gateway_port: int, relay_port: int) -> list[list[Order]]:
    """Agents dealt to groups, APIs in turn, some agents behind the relay."""
    wires = list(plan.wires)
    groups: list[list[Order]] = [[] for _ in range(plan.groups)]
    for number in range(plan.harnesses):
        relayed = number // len(wires) % 10 < 10 * plan.relayed_share
        groups[number % plan.groups].append(
            Order(
                number=number,
                wire=wires[number % len(wires)],
                relayed=relayed,
                url=f"http://127.0.0.1:{relay_port if relayed else gateway_port}",
                diary=str(plan.diaries / f"{number}.jsonl"),
                stop=str(plan.stop),
                seed=plan.seed,
                gives_up=plan.gives_up,
                thinks_s=plan.thinks_s,
            )
        )
    return groups
