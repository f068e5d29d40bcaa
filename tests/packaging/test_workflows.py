"""The workflows call the Makefile's targets, those that exist, and CI's own script calls the same."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_workflows_call_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called: set[str] = set()
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert files
    for file in files:
        for job in yaml.safe_load(file.read_text())["jobs"].values():
            commands = [step["run"] for step in job["steps"] if "run" in step]
            made = [command.split()[1] for command in commands if command.startswith("make ")]
            assert made, f"{file.name}: a job that makes nothing"
            assert len(commands) - len(made) <= 1, f"{file.name}: work belongs into the Makefile"
            called |= set(made)
    assert called <= targets
    own = set(re.findall(r"^make ([a-z-]+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE))
    assert own <= called
