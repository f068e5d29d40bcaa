"""Every cheat, for real: an agent's commands in its workspace, the patch taken from it, a fresh sandbox to grade in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from drivetrain.sandboxes import SandboxBackend
from swe_rl_env import BuiltTask, Grade, grade_workspace, open_workspace, oracle
from tests.swe_rl_env.cheats.attacks import EPISODES, Episode


async def play(episode: Episode, built: BuiltTask, backend: SandboxBackend) -> Grade:
    """The attacks of an episode one after the other, then the verdict."""
    workspace = await open_workspace(backend, built)
    try:
        if episode.fixed:
            await oracle(workspace, built)
        for attack in episode.attacks:
            await workspace.sandbox.exec(["/bin/sh", "-c", attack.does], cwd=workspace.repo, env=workspace.env)
        _, grade = await grade_workspace(workspace, built, backend, timeout_s=episode.timeout_s)
    finally:
        await workspace.close()
    return grade


@pytest.mark.case("G2", "G3", "G8", "G9")
@pytest.mark.parametrize("episode", EPISODES, ids=lambda e: e.name)
async def test_cheat(build: Callable[[str], BuiltTask], backend: SandboxBackend, episode: Episode) -> None:
    grade = await play(episode, build(episode.task), backend)
    assert (grade.reward, grade.reason) == (episode.reward, episode.reason), (grade.detail, grade.log_tail)
    found = {(f.kind, f.path) for f in grade.findings} | {(f.kind, "") for f in grade.findings}
    missed = episode.found() - found
    assert not missed, sorted(found)


def test_the_suite_is_as_large_as_it_says() -> None:
    names = [attack.name for episode in EPISODES for attack in episode.attacks]
    assert len(names) == len(set(names)) >= 60
    assert {e.reason for e in EPISODES if e.reward} == {"resolved"}
