"""OpenEnv sessions of agents that own their loop, and TRL's own harness loop on top of them."""

from __future__ import annotations

import contextlib
import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.errors import ConfigError, InfrastructureError
from drivetrain.rollout.config import RolloutConfig
from drivetrain.rollout.route import routed_prompt
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.sample import HarnessTrace
from tests.training import scripted_agents as agents
from tests.training.scripted_agents import Agent, ScriptedRunner, stack_of

pytest.importorskip("openenv.core.harness")

from openenv.core.harness import ResourceSessionFactory, TrainableSession
from openenv.core.harness.capture.upstream import training_sampling

from drivetrain.rollout.openenv import AgentSessionFactory, AgentSessions, EpisodeUngraded
from drivetrain.rollout.openenv.session import RunStopped

SAMPLING = training_sampling({"temperature": 0.8, "top_p": 1.0, "top_k": 0})
AGENTS: dict[str, Agent] = {
    "plain": agents.plain,
    "forks": agents.forking,
    "slow": agents.timed_out,
    "crash": agents.crashing,
    "lost": agents.lost,
    "ungraded": agents.ungradable,
    "silent": agents.silent,
}
Make = Callable[..., AgentSessionFactory]


@pytest.fixture
def runners() -> list[ScriptedRunner]:
    return []


@pytest.fixture
def make(
    tmp_path: Path,
    tiny_model: ModelDir,
    codec: TokenCodec,
    runners: list[ScriptedRunner],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Make]:
    """``make(tasks=("plain",), **options)``: a factory on a scripted engine."""
    made: list[AgentSessionFactory] = []

    def build(*tasks: str, extra: dict[str, Agent] | None = None, engine: Any = None, **options: Any) -> Any:
        stack = stack_of(codec, {**AGENTS, **(extra or {})}, runners)
        monkeypatch.setattr("drivetrain.rollout.openenv.factory.open_stack", stack)
        config = RolloutConfig(tasks=tasks or tuple(AGENTS), agents=("pi",), max_tokens=32)
        used = engine or ScriptedEngine(tiny_model, lambda _ids, _text, index: f"line {index}")
        made.append(
            AgentSessionFactory(
                config, run=tmp_path / f"run{len(made)}", engine=used, model=tiny_model, sampling=SAMPLING, **options
            )
        )
        return made[-1]

    yield build
    for factory in made:
        factory.close()


def prompt(task: str) -> Any:
    return routed_prompt(task, "pi")


def test_a_session_is_what_trl_asks_for(make: Make, runners: list[ScriptedRunner]) -> None:
    factory = make("plain")
    assert isinstance(factory, ResourceSessionFactory)
    session = factory.create(prompt("plain"), seed=7, episode_id="abc")
    assert isinstance(session, TrainableSession)
    assert session.list_tools() == []
    assert "agent" in session.call_tool("x", {}).error
    assert session.initial_messages() == [{"role": "user", "content": "task plain"}]
    assert session.wait_for_completion() == 0
    trace = session.fetch_training_trace()
    assert len(trace.turns) == 3
    assert all(turn.metadata["sampling_params"]["temperature"] == 0.8 for turn in trace.turns), "the trainer's"
    verdict = session.verify([])
    assert (verdict.env_reward, verdict.metrics["turns"], verdict.artifacts["episode_id"]) == (0.0, 3, "abc")
    second = factory.create(prompt("plain"), seed=7, episode_id="abd")
    second.wait_for_completion()
    assert second.verify([]).env_reward == 1.0
    assert second.verify([]).artifacts["rollout_id"] != verdict.artifacts["rollout_id"]
    (runner,) = runners
    assert runner.gateway is not None and len(list(runner.gateway.sessions)) == 2
    for each in (session, session, second):
        each.close()
    assert list(runner.gateway.sessions) == [], "a closed session is in the journal only"
    assert len(factory.run.results()) == 2


def test_copies_of_a_group_are_sampled_with_different_seeds_and_again_with_the_same(make: Make) -> None:
    def seeds() -> list[Any]:
        factory = make("plain")
        specs = [factory._spec("plain", "pi", group, "x") for group in (3, 3, 4)]
        return [spec.seed for spec in specs] + [spec.group for spec in specs]

    first, again = seeds(), seeds()
    assert first == again
    assert len(set(first[:3])) == 3 and first[3:] == [0, 1, 0]


@pytest.mark.case("E7")
def test_only_what_may_be_trained_comes_out_and_nothing_raises_a_contract_error(make: Make) -> None:
    factory = make()
    expected: dict[str, tuple[type[BaseException] | None, int, float | None]] = {
        "slow": (TimeoutError, 2, 0.0),
        "crash": (ValueError, 0, None),  # in wait_for_completion TRL takes any error for an unscorable rollout
        "lost": (EpisodeUngraded, 0, None),
        "ungraded": (EpisodeUngraded, 0, None),
        "silent": (EpisodeUngraded, 0, None),
    }
    for task, (error, turns, reward) in expected.items():
        session = factory.create(prompt(task), seed=1, episode_id=task)
        with pytest.raises(error or ()):
            session.wait_for_completion()
        assert len(session.fetch_training_trace().turns) == turns, task
        assert session.verify([]).env_reward == reward, task
        session.close()


@pytest.mark.case("E7")
def test_a_trace_that_cannot_be_exported_is_an_ungraded_rollout(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("duplicate node_ids")

    monkeypatch.setattr("drivetrain.rollout.openenv.factory.training_trace", broken)
    session = make("plain").create(prompt("plain"), seed=1, episode_id="e")
    with pytest.raises(EpisodeUngraded, match="duplicate node_ids"):
        session.wait_for_completion()
    assert session.fetch_training_trace().turns == []
    assert session.verify([]).env_reward is None


@pytest.mark.case("B7")
def test_a_run_that_loses_its_tokens_to_faults_stops(make: Make, runners: list[ScriptedRunner]) -> None:
    factory = make("plain")
    session = factory.create(prompt("plain"), seed=1, episode_id="a")
    session.wait_for_completion()
    assert session.fetch_training_trace().turns
    runners[0].guard.add(30, {"undelivered": 900, "": 100})
    late = factory.create(prompt("plain"), seed=1, episode_id="b")
    late.wait_for_completion()
    with pytest.raises(RunStopped, match="undelivered 900") as stopped:
        late.fetch_training_trace()
    assert isinstance(stopped.value, ValueError), "what ends TRL's worker"


def test_an_episode_that_goes_on_is_neither_graded_nor_fetched_and_ends_with_its_session(
    make: Make, runners: list[ScriptedRunner]
) -> None:
    async def endless(client: agents.Client, spec: Any) -> agents.Outcome:
        await client.talk(agents.opening("an endless agent"), 10**9, pause_s=0.01)
        raise AssertionError

    factory = make("endless", extra={"endless": endless})
    sessions = [factory.create(prompt("endless"), seed=1, episode_id=str(copy)) for copy in range(4)]
    with pytest.raises(TimeoutError):
        sessions[0].wait_for_completion(timeout_s=0.05)
    assert sessions[0].fetch_training_trace().turns == [] and sessions[0].verify([]).env_reward is None
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            sessions[1].wait_for_completion()
        except BaseException as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    with ThreadPoolExecutor(8) as pool:  # TRL closes from several threads when it stops
        for each in [*sessions, *sessions]:
            pool.submit(each.close)
    waiting.join(10)
    assert isinstance(errors[0], EpisodeUngraded)
    assert runners[0].running == 0, "closing waits for the clean-up"
    factory.close()
    with pytest.raises(InfrastructureError, match="closed"):
        factory.create(prompt("endless"), seed=1, episode_id="late")


def test_wrong_prompts_and_wrong_sampling_are_refused(make: Make, tmp_path: Path) -> None:
    factory = make("plain")
    with pytest.raises(ConfigError, match="names no task"):
        factory.create("do it", seed=1)
    with pytest.raises(ConfigError, match="'forks' with agent 'pi'"):
        factory.create(prompt("forks"), seed=1)
    with pytest.raises(ConfigError, match=r"temperature is 1, the episodes' is 0\.8"):
        factory(sampling={"temperature": 1.0})
    assert factory(sampling=SAMPLING) is factory
    config = RolloutConfig(tasks=("plain",), agents=("pi",))
    with pytest.raises(ConfigError, match="top_p=1"):
        AgentSessions(config, run=tmp_path / "x")(sampling={"temperature": 1.0, "top_p": 0.9})
    with pytest.raises(ConfigError, match="uses no model"):
        AgentSessions(RolloutConfig(tasks=("plain",), agents=("oracle",)))()


def test_the_recipe_travels_to_a_child_and_its_setup_is_checked_there(tmp_path: Path) -> None:
    recipe = AgentSessions(RolloutConfig(tasks=("no-such-task",), agents=("pi",)), run=tmp_path / "run")
    travelled = pickle.loads(pickle.dumps(recipe))
    with pytest.raises(ConfigError, match="no-such-task"):
        travelled(sampling=SAMPLING)
    assert not [thread for thread in threading.enumerate() if thread.name == "drivetrain-sessions"]


def test_failures_in_a_row_are_slowed_down(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    factory = make("lost", "plain")

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("drivetrain.rollout.openenv.factory._sleep", sleep)
    for task in ("lost", "lost", "lost", "lost", "lost", "plain", "plain"):
        session = factory.create(prompt(task), seed=1, episode_id=task)
        with contextlib.suppress(EpisodeUngraded):
            session.wait_for_completion()
        session.close()
    assert waited == [1.0, 2.0, 4.0]


# TRL's own loop ------------------------------------------------------------------------------------------------------


def in_process(factory: Any, tiny_model: ModelDir, tasks: list[str], **options: Any) -> Any:
    pytest.importorskip("trl")
    from datasets import Dataset
    from transformers import AutoTokenizer

    from drivetrain.training.inprocess import InProcessWorker

    tokenizer = AutoTokenizer.from_pretrained(str(tiny_model.path))
    return InProcessWorker(
        **{
            "harness_session_factory": factory,
            "model_name": str(tiny_model.path),
            "dataset": Dataset.from_list([{"prompt": prompt(task)} for task in tasks]),
            "reward_funcs": [],
            "processing_class": tokenizer,
            "eos_token_ids": [2],
            "num_generations": 2,
            "max_inflight_tasks": 4,
            "temperature": 0.8,
            **options,
        }
    )


def collect(worker: Any, done: Callable[[list[Any]], bool], within_s: float = 60.0) -> list[Any]:
    samples: list[Any] = []
    deadline = time.monotonic() + within_s
    while not done(samples):
        assert time.monotonic() < deadline, [sample.group_id for sample in samples]
        try:
            samples.append(worker.rollout_buffer.get(timeout=0.2))
        except queue.Empty:
            worker.check_health(60.0)
    return samples


@pytest.mark.case("E7")
def test_trls_loop_keeps_running_over_forks_timeouts_crashes_and_ungraded_rollouts(
    make: Make, tiny_model: ModelDir, runners: list[ScriptedRunner]
) -> None:
    tasks = ["plain", "forks", "crash", "slow", "lost", "ungraded", "silent"]
    factory = make()
    worker = in_process(factory, tiny_model, tasks)
    worker.update_model_version(3)
    worker.start()
    try:
        # The second round of the data set: the first one has been survived.
        samples = collect(worker, lambda seen: any(sample.group_id >= len(tasks) + 4 for sample in seen))
        worker.check_health(60.0)
    finally:
        worker.stop()
    trained = {tasks[sample.group_id % len(tasks)] for sample in samples}
    assert trained == {"plain", "forks", "slow"}, "the others train nothing"
    assert {sample.model_version for sample in samples} == {3}
    results = {result.rollout_id: result for result in factory.run.results()}
    for group in (0, 1, 3):
        of_group = [sample for sample in samples if sample.group_id == group]
        assert sorted({round(sample.advantage, 3) for sample in of_group}) == [-1.0, 1.0]
        for copy, advantage in ((0, -1.0), (1, 1.0)):
            rows = results[f"g{group}.{tasks[group]}.pi.{copy}"].rows
            ours = sorted(_full(row) for row in rows)
            theirs = sorted(
                (sample.input_ids.tolist(), sample.completion_mask.tolist())
                for sample in of_group
                if round(sample.advantage, 3) == advantage
            )
            assert theirs == ours, "TRL builds the rows that we would have given"
    assert len([sample for sample in samples if sample.group_id == 1]) == 2 * 3, "three rows per forked rollout"
    assert runners[0].running == 0


def _full(row: HarnessTrace) -> tuple[list[int], list[int]]:
    return [*row.prompt_ids, *row.response_ids], [*([0] * len(row.prompt_ids)), *row.loss_mask]


def test_a_worker_reports_what_ended_its_loop(make: Make, tiny_model: ModelDir) -> None:
    pytest.importorskip("trl")
    from drivetrain.training.inprocess import WorkerFailed

    with pytest.raises(ConfigError, match=r"temperature is 0\.5"):
        in_process(make("plain"), tiny_model, ["plain"], temperature=0.5).start()

    class NoTrace:
        """A session that breaks OpenEnv's contract: TRL ends its loop over it."""

        def create(self, task: Any, seed: int, episode_id: str) -> Any:
            return self

        def close(self) -> None:
            pass

    worker = in_process(lambda sampling: NoTrace(), tiny_model, ["plain"])
    worker.start()
    try:
        deadline = time.monotonic() + 30
        with pytest.raises(WorkerFailed, match="fetch_training_trace"):
            while time.monotonic() < deadline:
                worker.check_health(60.0)
                time.sleep(0.02)
    finally:
        worker.stop()


def test_sessions_live_on_one_loop(make: Make) -> None:
    """Sixteen at a time from a pool's threads, as TRL does it."""
    factory = make("plain", "forks")

    def one(index: int) -> float | None:
        session = factory.create(prompt(("plain", "forks")[index % 2]), seed=index // 4, episode_id=str(index))
        try:
            session.wait_for_completion()
            assert session.fetch_training_trace().turns
            return session.verify([]).env_reward
        finally:
            session.close()

    with ThreadPoolExecutor(16) as pool:
        rewards = list(pool.map(one, range(32)))
    assert sorted(rewards) == [0.0] * 16 + [1.0] * 16
