"""The driver over nodes of this process: they die, come late, refuse, and differ."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drivetrain.errors import ConfigError, InfrastructureError
from drivetrain.rollout.config import EpisodeSpec, RolloutConfig, episodes_of
from drivetrain.rollout.mask_guard import MaskedFractionExceeded
from drivetrain.rollout.on_ray.book import read_attempts
from drivetrain.rollout.on_ray.handles import Failure, Node, NodeHandle
from drivetrain.rollout.on_ray.node import Job
from drivetrain.rollout.on_ray.options import RayOptions
from drivetrain.rollout.on_ray.run import ATTEMPTS, ClusterLost, RolloutsOnCluster
from drivetrain.rollout.on_ray.shipment import Shipment
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir

INFO = {"drivetrain": "1", "selection": {}, "template_sha256": None, "engine": None, "agents": {}}
CONFIG = RolloutConfig(tasks=("t",), agents=("noop",), n=6)
Answer = Callable[[EpisodeSpec], RolloutResult | Exception]


def result(spec: EpisodeSpec, **fields: Any) -> RolloutResult:
    given = {"reward": 1.0, "turns": 1, **fields}
    return RolloutResult(
        rollout_id=spec.rollout_id,
        session_id="",
        task_id=spec.task_id,
        agent=spec.agent,
        group=spec.group,
        status="ok",
        **given,
    )


class FakeNode:
    """Answers every rollout with ``answer``; ``dies_after`` rollouts it is dead, and so is what it runs."""

    def __init__(
        self,
        name: str,
        *,
        answer: Answer = result,
        dies_after: int | None = None,
        info: dict[str, Any] | None = None,
        fails: Exception | None = None,
        slow: bool = False,
    ) -> None:
        self.node = Node(name, name, 2)
        self.answer, self.dies_after, self.fails, self.slow = answer, dies_after, fails, slow
        self.info = INFO if info is None else info
        self.ran: list[str] = []
        self.closed = 0
        self.dead = asyncio.Event()

    async def start(self) -> dict[str, Any]:
        if self.fails is not None:
            raise self.fails
        return self.info

    async def said(self) -> str:
        return "building"

    async def run(self, spec: EpisodeSpec) -> bytes:
        self.ran.append(spec.rollout_id)
        if self.dies_after is not None and len(self.ran) > self.dies_after:
            self.dead.set()
        if self.dead.is_set() or self.slow:
            await asyncio.wait({asyncio.ensure_future(self.dead.wait())})
            raise Failure(RuntimeError("its machine is gone\nmore"), gone=True)
        await asyncio.sleep(0)
        answer = self.answer(spec)
        if isinstance(answer, Exception):
            raise answer
        return msgspec.msgpack.encode(Shipment(answer, None, {"note.txt": spec.rollout_id.encode()}))

    async def aclose(self) -> None:
        self.closed += 1
        if self.dead.is_set():
            raise Failure(RuntimeError("its machine is gone"), gone=True)


class FakeCluster:
    def __init__(self, *nodes: FakeNode, later: FakeNode | None = None) -> None:
        self.all = list(nodes)
        self.later = later
        self.asked = 0

    def nodes(self) -> list[Node]:
        self.asked += 1
        if self.later is not None and self.asked == 2:
            self.all.append(self.later)
        return [each.node for each in self.all if not each.dead.is_set()]

    def open(self, node: Node, job: Job) -> NodeHandle:
        return next(each for each in self.all if each.node == node)


class Driven(msgspec.Struct):
    rollouts: RolloutsOnCluster
    run: RunDir
    said: list[str]


def driver(tmp_path: Path, cluster: FakeCluster, **options: Any) -> Driven:
    said: list[str] = []
    run = RunDir.create(tmp_path / "run")
    chosen = RayOptions(**{"node_wait_s": 1.0, **options})
    return Driven(RolloutsOnCluster(cluster, Job(config=CONFIG, tasks=()), run, chosen, said.append), run, said)


async def test_results_come_in_order_and_are_in_the_run_folder(tmp_path: Path) -> None:
    one, two = FakeNode("one"), FakeNode("two")
    driven = driver(tmp_path, FakeCluster(one, two))
    started: list[str] = []
    specs = episodes_of(CONFIG)
    found = await driven.rollouts.run(specs, on_start=lambda spec: started.append(spec.rollout_id))
    assert [each.rollout_id for each in found] == [spec.rollout_id for spec in specs]
    assert sorted(one.ran + two.ran) == sorted(started) == sorted(spec.rollout_id for spec in specs)
    assert one.ran and two.ran and (one.closed, two.closed) == (1, 1)
    assert {each.rollout_id for each in driven.run.results()} == set(started)
    assert (driven.run.folder("t.noop.3") / "note.txt").read_text() == "t.noop.3"
    assert driven.run.info()["ray"]["per_node"] == 2


async def test_what_ran_on_a_dead_node_runs_again_elsewhere(tmp_path: Path) -> None:
    dying, other = FakeNode("dying", dies_after=2), FakeNode("other")
    driven = driver(tmp_path, FakeCluster(dying, other))
    found = await driven.rollouts.run(episodes_of(CONFIG))
    assert [each.reward for each in found] == [1.0] * 6
    assert len(driven.run.results()) == 6
    lost = [line for line in read_attempts(driven.run.path / ATTEMPTS) if line.outcome == "lost"]
    assert {line.rollout_id for line in lost} == set(dying.ran[2:])
    assert {line.node for line in lost} == {"dying"} and {line.attempt for line in lost} == {1}
    assert {line.why for line in lost} == {"RuntimeError: its machine is gone"}
    assert driven.rollouts.book.outcomes == {"counted": 6, "lost": len(lost)}
    assert any("dying is gone" in line for line in driven.said)


async def test_a_dead_node_costs_a_rollout_one_attempt(tmp_path: Path) -> None:
    """Its other workers do not try what the first has just lost."""
    dying, other = FakeNode("dying", dies_after=0), FakeNode("other", slow=True)
    dying.node = msgspec.structs.replace(dying.node, slots=8)
    driven = driver(tmp_path, FakeCluster(dying, other), max_attempts=2)
    running = asyncio.ensure_future(driven.rollouts.run(episodes_of(CONFIG)))
    async with asyncio.timeout(60):
        while len(other.ran) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert len(dying.ran) <= 6 and len(set(dying.ran)) == len(dying.ran)
    running.cancel()
    await asyncio.wait({running})


async def test_a_rollout_that_loses_every_node_has_no_reward(tmp_path: Path) -> None:
    nodes = [FakeNode(f"n{number}", slow=True) for number in range(2)]
    for node in nodes:
        node.dead.set()
    cluster = FakeCluster(*nodes)
    cluster.nodes = lambda: [node.node for node in nodes]  # type: ignore[method-assign]
    driven = driver(tmp_path, cluster, max_attempts=2)
    found = await driven.rollouts.run(episodes_of(CONFIG)[:2])
    assert [(each.status, each.reward) for each in found] == [("infra_error", None)] * 2
    assert all("died 2 times" in each.error for each in found)
    assert len(driven.run.results()) == 2
    assert driven.rollouts.book.outcomes == {"lost": 4}


async def test_a_node_that_comes_later_is_used(tmp_path: Path) -> None:
    first, later = FakeNode("first", slow=True), FakeNode("later")
    driven = driver(tmp_path, FakeCluster(first, later=later))
    running = asyncio.ensure_future(driven.rollouts.run(episodes_of(CONFIG)))
    async with asyncio.timeout(60):
        while len(later.ran) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    first.dead.set()
    assert len(await running) == 6
    assert sorted(later.ran) == sorted(spec.rollout_id for spec in episodes_of(CONFIG))


async def test_without_a_node_it_says_so_and_keeps_what_finished(tmp_path: Path) -> None:
    driven = driver(tmp_path, FakeCluster(FakeNode("only", dies_after=2)), node_wait_s=0.2)
    with pytest.raises(ClusterLost, match="4 rollouts have not run"):
        await driven.rollouts.run(episodes_of(CONFIG))
    assert len(driven.run.results()) == 2


async def test_a_node_that_differs_is_left_out(tmp_path: Path) -> None:
    same, other = FakeNode("same"), FakeNode("zother", info={**INFO, "agents": {"pi": "0"}})
    driven = driver(tmp_path, FakeCluster(same, other))
    await driven.rollouts.run(episodes_of(CONFIG))
    assert other.ran == [] and other.closed == 1
    assert any("zother is left out: its agents is {'pi': '0'}" in line for line in driven.said)


@pytest.mark.parametrize(
    ("cause", "raised"),
    [(ConfigError("no agent 'x'."), ConfigError), (InfrastructureError("no bubblewrap."), InfrastructureError)],
)
async def test_when_no_node_can_start_the_reason_is_raised(
    tmp_path: Path, cause: Exception, raised: type[Exception]
) -> None:
    node = FakeNode("bad", fails=Failure(cause, gone=False))
    driven = driver(tmp_path, FakeCluster(node))
    with pytest.raises(raised, match=str(cause)):
        await driven.rollouts.run(episodes_of(CONFIG))
    assert not driven.run.path.exists() and node.closed == 1


async def test_an_error_of_one_rollout_is_its_own(tmp_path: Path) -> None:
    def answer(spec: EpisodeSpec) -> RolloutResult | Exception:
        return Failure(ValueError("cannot be read"), gone=False) if spec.group == 2 else result(spec)

    driven = driver(tmp_path, FakeCluster(FakeNode("n", answer=answer)))
    found = await driven.rollouts.run(episodes_of(CONFIG))
    assert [each.reward for each in found] == [1.0, 1.0, None, 1.0, 1.0, 1.0]
    assert (found[2].status, found[2].error) == ("infra_error", "cannot be read")


async def test_faults_that_cost_too_many_tokens_stop_the_run(tmp_path: Path) -> None:
    node = FakeNode("n", answer=lambda spec: result(spec, turns=30, sampled_tokens={"": 1, "no_logprob": 9}))
    driven = driver(tmp_path, FakeCluster(node))
    with pytest.raises(MaskedFractionExceeded):
        await driven.rollouts.run(episodes_of(CONFIG))
    assert node.closed == 1


async def test_cancelling_closes_the_nodes(tmp_path: Path) -> None:
    node = FakeNode("n", slow=True)
    driven = driver(tmp_path, FakeCluster(node))
    running = asyncio.ensure_future(driven.rollouts.run(episodes_of(CONFIG)))
    async with asyncio.timeout(60):
        while not node.ran:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert node.closed == 1


@pytest.mark.parametrize("wrong", [{"per_node": 0}, {"cpus": -1.0}, {"resources": {"sandbox": 0.0}}])
def test_options_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be positive"):
        RayOptions(**wrong)
