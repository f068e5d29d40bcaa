"""``drivetrain rollout --resume``: finished rollouts are kept, an unfinished one starts anew, nothing counts twice."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

import drivetrain.cli.rollout as command
from drivetrain.cli.main import app
from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.errors import ConfigError
from drivetrain.journal.reader import JournalReader
from drivetrain.journal.writer import Journal
from drivetrain.rollout.audit import audit_run
from drivetrain.rollout.config import RolloutConfig, episodes_of
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.resume import ResumedRun, counted_sessions
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.stack import open_stack
from tests.cli.test_export import add, moves
from tests.rollout.conftest import tool_call
from tests.swe_rl_agent.test_custom_agent import example
from tests.trace.test_graph_properties import play

TASK = "pypi__xmltodict-0.14.2"


def resume(run: RunDir, *options: str) -> Any:
    return CliRunner().invoke(app, ["rollout", "--resume", str(run.path), *options])


def noop_run(path: Path, n: int) -> RunDir:
    """A run of the noop agent of which nothing has been done yet."""
    config = RolloutConfig(tasks=(TASK,), agents=("noop",), n=n)
    info = {"config": config, "selection": {"train_labels": config.train_labels, "label_rules": {}}, "agents": {}}
    none = dict.fromkeys(("model", "template_sha256", "engine", "policy_version"))
    run = RunDir.create(path)
    run.write_info({**info, **none})
    return run


def result(rollout_id: str, reward: float | None = 0.25) -> RolloutResult:
    return RolloutResult(
        rollout_id=rollout_id, session_id="", task_id=TASK, agent="noop", group=0, status="ok", reward=reward
    )


@pytest.mark.real
def test_what_is_missing_is_run(tmp_path: Path) -> None:
    run = noop_run(tmp_path / "run", 3)
    run.append(result(f"{TASK}.noop.1"))
    with (run.path / "results.jsonl").open("ab") as file:
        file.write(b'{"rollout_id": "torn')  # killed while it wrote
    done = resume(run, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["results"]
    assert [each["rollout_id"] for each in found] == [f"{TASK}.noop.{number}" for number in range(3)]
    assert [each["reward"] for each in found] == [0.0, 0.25, 0.0], "the finished one is kept as it was"
    assert "1 of 3 rollouts are there already" in done.stderr
    assert len(RunDir.open(run.path).info()["resumed"]) == 1
    before = (run.path / "results.jsonl").read_bytes()
    assert resume(run).exit_code == 0
    assert (run.path / "results.jsonl").read_bytes() == before, "nothing is left to do"


def test_rows_without_a_result_are_dropped(tmp_path: Path) -> None:
    """A process killed between a rollout's rows and its result leaves rows that nobody counts."""
    run = noop_run(tmp_path / "run", 2)
    kept, lost = f"{TASK}.noop.0", f"{TASK}.noop.1"
    row = {"prompt_ids": [1], "response_ids": [2], "loss_mask": [1], "response_logprobs": [-1.0], "metadata": {}}
    lines = [json.dumps({"rollout_id": name, "row": row}) for name in (kept, lost)]
    (run.path / "rows.jsonl").write_text("\n".join([*lines, '{"rollout_id": "to']))
    (run.path / "results.jsonl").write_bytes(msgspec.json.encode(result(kept)) + b"\n")
    again = ResumedRun(run.path)
    assert [spec.rollout_id for spec in again.missing()] == [lost]
    again.append(msgspec.structs.replace(result(lost), rows=[]))
    assert {each.rollout_id: len(each.rows) for each in again.results()} == {kept: 1, lost: 0}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["-n", "4"], "-n does not go with --resume"),
        (["--temperature", "0.5"], "--temperature does not go with --resume"),
        (["-a", "pi"], "--agent does not go with --resume"),
    ],
)
def test_other_settings_are_refused(options: list[str], says: str, tmp_path: Path) -> None:
    run = noop_run(tmp_path / "run", 1)
    done = resume(run, *options)
    assert done.exit_code == 2 and says in done.stderr
    assert CliRunner().invoke(app, ["rollout", "--resume", str(tmp_path / "nowhere")]).exit_code == 2


def test_settings_from_elsewhere_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration file that was changed meanwhile does not change the run."""
    run = noop_run(tmp_path / "run", 1)
    run.append(result(f"{TASK}.noop.0"))
    monkeypatch.setenv("DRIVETRAIN_ROLLOUT_AGENT", "pi")
    assert resume(run).exit_code == 0


def test_a_changed_model_is_refused(tmp_path: Path) -> None:
    again = ResumedRun(noop_run(tmp_path / "run", 1).path)
    with pytest.raises(ConfigError, match=r"policy_version was None .* and is 3 now"):
        again.write_info({**again.info(), "policy_version": 3})
    assert "resumed" not in again.info()


async def test_a_run_that_is_going_on_is_refused(tmp_path: Path) -> None:
    run = noop_run(tmp_path / "run", 1)
    journal = Journal(run.journal)
    try:
        with pytest.raises(ConfigError, match="a process is working on"):
            ResumedRun(run.path)
    finally:
        journal.close()
    ResumedRun(run.path)


async def test_sessions_of_stopped_attempts_do_not_count(tmp_path: Path) -> None:
    run = noop_run(tmp_path / "run", 1)
    journal = Journal(run.journal)
    await add(run, journal, "one", play(moves("continue")), reward=1.0)
    for session, rollout, at in (("s-old", "one", -1.0), ("s-first", "two", 1.0), ("s-second", "two", 2.0)):
        await journal.add_session(
            session, key_digest=session.encode(), policy=b"", labels={"rollout": rollout}, created_at=at
        )
    journal.close()
    sessions = JournalReader(run.journal).sessions()
    assert [session.id for session in counted_sessions(sessions, run.results())] == ["s-one", "s-second"]
    shown = CliRunner().invoke(app, ["trace", "show", str(run.path), "one", "--json"])
    assert json.loads(shown.stdout)["session"] == "s-one"
    stats = CliRunner().invoke(app, ["trace", "stats", str(run.path), "--json"])
    assert set(json.loads(stats.stdout)["rollouts"]) == {"one", "two"}


@pytest.mark.real
async def test_an_agent_stopped_in_the_middle_starts_anew(
    tmp_path: Path, tiny_model: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two rollouts finishes; the second is cancelled after its first model call, then run again."""
    (tmp_path / "my-agent").mkdir()
    (tmp_path / "my-agent" / "agent.py").write_text(example("program"))
    (tmp_path / "my.toml").write_text(example("preset"))
    config = RolloutConfig(tasks=(TASK,), agents=(str(tmp_path / "my.toml"),), n=2, concurrency=1)
    run = RunDir.create(tmp_path / "run")
    slow = [tool_call("bash", command="sleep 0.5")] * 3
    engine = ScriptedEngine.from_lines(slow, tiny_model, then="I give up.", context_length=100_000)
    async with open_stack(config, run, lambda _: None, engine=engine, model=tiny_model) as runner:
        first, second = episodes_of(config)
        await runner.run(first)
        going_on = asyncio.ensure_future(runner.run(second))
        reader = JournalReader(run.journal)
        while not any(await asyncio.to_thread(_turns, reader, second.rollout_id)):
            assert not going_on.done(), "the second rollout was to be stopped before its end"
            await asyncio.sleep(0.02)
        going_on.cancel()
        await asyncio.gather(going_on, return_exceptions=True)
    assert [each.rollout_id for each in run.results()] == [first.rollout_id]

    def same_engine(*arguments: Any, **options: Any) -> Any:
        return open_stack(*arguments, **options, engine=engine, model=tiny_model)

    monkeypatch.setattr(command, "open_stack", same_engine)
    done = await asyncio.to_thread(resume, run, "--json")
    assert done.exit_code == 0, done.output
    results = run.results()
    assert [each.rollout_id for each in results] == [first.rollout_id, second.rollout_id]
    assert all(audit.problems == [] for audit in audit_run(run))
    sessions = JournalReader(run.journal).sessions()
    assert [each.labels["rollout"] for each in sessions] == [first.rollout_id, second.rollout_id, second.rollout_id]
    assert {each.state for each in sessions} == {"sealed"}
    assert results[1].session_id == sessions[2].id
    listed = json.loads(CliRunner().invoke(app, ["trace", "stats", str(run.path), "--json"]).stdout)
    assert listed["total"]["turns"] == sum(each.turns for each in results)


def _turns(reader: JournalReader, rollout_id: str) -> list[int]:
    return [
        len(reader.graph(session.id, "t"))
        for session in reader.sessions()
        if session.labels.get("rollout") == rollout_id
    ]
