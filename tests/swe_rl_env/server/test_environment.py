"""``SWEEnvironment`` in this process: limits, choice of a task, and what an agent may do wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from openenv.core.env_server.types import Action
from pydantic import ValidationError

from drivetrain.errors import ConfigError
from swe_rl_env.models import SWEAction, SWEObservation
from swe_rl_env.server.catalogue import Catalogue, ResetOptions
from swe_rl_env.server.errors import EpisodeError
from swe_rl_env.server.host import Host
from swe_rl_env.server.perform import shorten
from swe_rl_env.server.settings import Settings, settings_from
from swe_rl_env.server.swe_environment import SWEEnvironment
from tests.swe_rl_env.server.kit import TASK, Watched, wait_until


class Env(SWEEnvironment):
    """Blocking, with a backend that counts."""

    def __init__(self, **settings: Any) -> None:
        self.backend = Watched()
        self.host = Host(Settings(**settings), backend=self.backend)
        super().__init__(self.host)

    def bash(self, command: str, timeout_s: float | None = None) -> SWEObservation:
        return self.step(SWEAction.bash(command, timeout_s))


@pytest.fixture
def env(request: pytest.FixtureRequest) -> Iterator[Env]:
    made = Env(**getattr(request, "param", {}))
    yield made
    made.close()
    made.host.close()
    assert not made.backend.open


@pytest.mark.real
def test_what_an_agent_does_wrong_it_can_put_right(env: Env) -> None:
    first = env.reset(task=TASK)
    here = first.workdir
    wrote = env.step(SWEAction.write("new/ä.txt", "grüß\n"))
    assert (wrote.error, env.step(SWEAction.read(f"{here}/new/ä.txt")).stdout) == ("", "grüß\n")
    env.bash("chmod 755 new/ä.txt; ln -s ä.txt new/link")
    env.step(SWEAction.write("new/link", "changed\n"))
    assert env.bash("stat -c %a new/ä.txt; cat new/ä.txt").stdout == "755\nchanged\n", "mode and link are kept"
    for path, why in (
        ("none.txt", "There is no file"),
        ("new", "could not be read"),
        ("/dev/zero", "could not be read"),
        ("../../etc/none", "There is no file"),
    ):
        seen = env.step(SWEAction.read(path))
        assert (why in seen.error, seen.done, seen.stdout) == (True, False, ""), seen
    env.bash("printf '\\377' > binary")
    assert "not UTF-8" in env.step(SWEAction.read("binary")).error
    assert "could not be written" in env.step(SWEAction.write("/usr/x", "no")).error
    assert "are the most" in env.step(SWEAction.write("big", "x" * ((1 << 20) + 1))).error
    bad = env.step(SWEAction.apply_patch("nonsense"))
    assert bad.exit_code and "patch" in bad.stderr
    slow = env.bash("sleep 60", timeout_s=0.3)
    assert (slow.timed_out, slow.done) == (True, False)
    loud = env.bash("head -c 300000 /dev/zero | tr '\\0' a; echo; echo the end; exit 7")
    assert (loud.exit_code, loud.output_truncated) == (7, True)
    assert len(loud.stdout) < 40_000 and loud.stdout.endswith("the end\n") and "bytes left out" in loud.stdout
    assert env.bash("cd /; X=1; pwd").stdout == "/\n"
    assert env.bash("pwd; echo $X").stdout == f"{here}\n\n", "each command is a new shell"


@pytest.mark.real
def test_an_agent_cannot_void_its_episode(env: Env) -> None:
    """Nothing it does to its checkout makes a failure of the machinery, which would spare it the zero."""
    here = env.reset(task=TASK).workdir
    env.bash(f"cd / && rm -rf {here}")
    for action in (
        SWEAction.bash("ls"),
        SWEAction.read("setup.py"),
        SWEAction.write("/proc/x", ""),
        SWEAction.apply_patch("nonsense"),
    ):
        seen = env.step(action)
        assert (seen.done, seen.status) == (False, "running"), seen
    last = env.step(SWEAction.submit())
    assert (last.reward, last.status) == (0.0, "ok"), last


@pytest.mark.real
@pytest.mark.parametrize("env", [{"max_steps": 2}], indirect=True)
def test_the_last_step_is_graded(env: Env, xmltodict: Any) -> None:
    first = env.reset(task=TASK)
    assert first.steps_left == 2
    seen = env.step(SWEAction.apply_patch(xmltodict.gold_patch.decode()))
    assert (seen.steps_left, seen.reward) == (1, None)
    last = env.bash("echo done")
    assert (last.stdout, last.done, last.reward, last.status) == ("done\n", True, 1.0, "truncated")
    with pytest.raises(EpisodeError, match="episode_over"):
        env.bash("true")
    assert not env.backend.open


@pytest.mark.real
@pytest.mark.parametrize("env", [{"episode_timeout_s": 0.5, "idle_timeout_s": 60}], indirect=True)
def test_what_comes_too_late_is_not_done(env: Env) -> None:
    env.reset(task=TASK)
    time.sleep(0.6)
    late = env.bash("echo done")
    assert (late.stdout, late.done, late.reward, late.status) == ("", True, 0.0, "truncated")
    assert "time was over" in late.error


@pytest.mark.real
@pytest.mark.parametrize("env", [{"idle_timeout_s": 0.5}], indirect=True)
def test_an_idle_episode_is_closed_and_a_busy_one_is_not(env: Env) -> None:
    env.reset(task=TASK)
    assert env.bash("sleep 1; echo still here").stdout == "still here\n"
    wait_until(lambda: not env.backend.open)
    with pytest.raises(EpisodeError) as closed:
        env.bash("true")
    assert closed.value.code == "closed"
    assert env.state.reward is None


@pytest.mark.real
async def test_close_ends_a_step_that_runs(env: Env) -> None:
    await env.reset_async(task=TASK)
    step = asyncio.ensure_future(env.step_async(SWEAction.bash("sleep 200")))
    await asyncio.to_thread(wait_until, lambda: any(episode.users for episode in env.host._live))
    await asyncio.to_thread(env.close)
    with pytest.raises(EpisodeError, match="closed"):
        await step
    assert not env.backend.open
    with pytest.raises(EpisodeError, match="closed"):
        await env.reset_async(task=TASK)


def test_before_a_reset_there_is_nothing(env: Env) -> None:
    assert (env.state.task, env.state.step_count, env.state.reward) == (None, 0, None)
    with pytest.raises(EpisodeError, match="no_episode"):
        env.bash("ls")
    assert env.get_metadata().name == "swe_rl_env"
    assert not env.backend.made


def test_a_seed_chooses_a_task_and_always_the_same() -> None:
    catalogue = Catalogue(Settings())
    chosen = [catalogue.choose(ResetOptions.of(seed=seed)).instance_id for seed in range(12)]
    assert chosen == [catalogue.choose(ResetOptions.of(seed=seed)).instance_id for seed in range(12)]
    assert len(set(chosen)) > 4
    third = catalogue.split("all")[2]
    assert catalogue.choose(ResetOptions.of(split="all", index=2)) is third
    assert catalogue.choose(ResetOptions.of(seed=1, task_id=third.instance_id)) is third
    only = Catalogue(Settings(tasks=(TASK,)))
    assert [task.instance_id for task in only.tasks] == [TASK]
    with pytest.raises(EpisodeError, match="unknown_task"):
        only.choose(ResetOptions.of(task=third.instance_id))
    with pytest.raises(EpisodeError, match="misconfigured"):
        Catalogue(Settings(source="/nowhere.jsonl")).split("all")


def test_settings_come_from_the_environment_and_nothing_is_guessed() -> None:
    assert settings_from({"PATH": "/bin"}) == Settings()
    given = {"SWE_ENV_TASKS": f"{TASK}, pypi__parse-1.20.1", "SWE_ENV_MAX_STEPS": "7", "SWE_ENV_IDLE_TIMEOUT_S": "9.5"}
    made = settings_from(given)
    assert (made.tasks, made.max_steps, made.idle_timeout_s) == ((TASK, "pypi__parse-1.20.1"), 7, 9.5)
    for wrong in ({"SWE_ENV_MAX_STEP": "7"}, {"SWE_ENV_MAX_STEPS": "many"}, {"SWE_ENV_MAX_STEPS": "0"}):
        with pytest.raises(ConfigError, match="do not fit"):
            settings_from(wrong)


def test_an_action_has_the_fields_of_its_type() -> None:
    assert isinstance(SWEAction.submit(), Action)
    for wrong in (
        {"type": "bash"},
        {"type": "bash", "command": "ls", "path": "x"},
        {"type": "write", "path": "x"},
        {"type": "read", "path": "a\0b"},
        {"type": "bash", "command": "x" * 100_001},
        {"type": "bash", "command": "ls", "timeout_s": float("nan")},
        {"type": "bash", "command": "ls", "more": 1},
    ):
        with pytest.raises(ValidationError) as refused:
            SWEAction.model_validate(wrong)
        assert refused.value.json(), "OpenEnv sends it as JSON"


def test_output_keeps_both_ends() -> None:
    assert shorten(b"abc", 3) == ("abc", False)
    text, cut = shorten(b"a" * 50 + b"b" * 50, 10)
    assert (text, cut) == ("aaaaa\n[... 90 bytes left out ...]\nbbbbb", True)
    assert "�" in shorten("ä".encode() * 9, 5)[0]


def test_an_error_survives_as_text() -> None:
    error = EpisodeError("closed", "It was idle: 9 s.", fix="Reset.")
    again = EpisodeError.parse(str(error))
    assert again is not None
    assert (again.code, str(again)) == ("closed", str(error))
    assert EpisodeError.parse("something else: closed") is None
