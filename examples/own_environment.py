"""Bring your own environment: a task made of two versions of your code, before and after a fix.

    python examples/own_environment.py --before v1 --after v2 --tests tests --statement "Dividing by zero crashes." \\
        --fail-to-pass tests/test_calc.py::test_zero --pass-to-pass tests/test_calc.py::test_half --out mine.jsonl
    python examples/own_environment.py            # an example of two files

The task is then checked: the fix must score 1, doing nothing must score 0. Use it with `--source mine.jsonl` in
`rollout`, `train` and `eval`, or serve it (docs/environment.md). The archives lie in the cache folder of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from drivetrain.cache import cache_root
from drivetrain.rollout.config import RolloutConfig, episodes_of
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.runner import run_rollouts
from drivetrain.rollout.stack import open_stack
from swe_rl_env.building.build import commit_base, diff_between
from swe_rl_env.sources.generated import publish
from swe_rl_env.tasks.loading import load_source, parse_source

EXAMPLE = {
    "before/calc.py": "def half(number):\n    return number // 2\n",
    "before/tests/test_calc.py": "import calc\n\n\ndef test_even():\n    assert calc.half(4) == 2\n",
    "after/calc.py": "def half(number):\n    return number / 2\n",
    "after/tests/test_calc.py": "import calc\n\n\ndef test_even():\n    assert calc.half(4) == 2\n\n\n"
    "def test_odd():\n    assert calc.half(3) == 1.5\n",
}


def main() -> None:
    """Make the row, and check the task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--id", default="mine__calc-1", help="the task's name")
    parser.add_argument("--before", type=Path, help="folder with the code before the fix")
    parser.add_argument("--after", type=Path, help="folder with the code after it")
    parser.add_argument("--tests", default="tests", help="what the agent does not see of the second: a path in it")
    parser.add_argument("--statement", default="`half(3)` returns 1.", help="what the agent is told")
    parser.add_argument("--fail-to-pass", action="append", help="test that the fix makes pass; may be repeated")
    parser.add_argument("--pass-to-pass", action="append", help="test that passes before and after; may be repeated")
    parser.add_argument("--out", type=Path, help="write the row here, .jsonl")
    args = parser.parse_args()
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if args.before is None:
            for name, text in EXAMPLE.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text)
            args.before, args.after = folder / "before", folder / "after"
            args.fail_to_pass, args.pass_to_pass = ["tests/test_calc.py::test_odd"], ["tests/test_calc.py::test_even"]
        source = args.out or folder / "tasks.jsonl"
        source.write_text(json.dumps(row(args)) + "\n", encoding="utf-8")
        asyncio.run(check(source, folder / "run"))


def row(args: argparse.Namespace) -> dict[str, Any]:
    """The task as a row: two archives, and the two patches between them."""
    before, after = files_of(args.before), files_of(args.after)
    hidden = sorted(path for path in after if path == args.tests or path.startswith(f"{args.tests}/"))
    fixed = sorted(path for path in {*before, *after} if path not in hidden and before.get(path) != after.get(path))
    with TemporaryDirectory() as temporary:
        repo = Path(temporary) / "repo"
        commit = commit_base({path: (False, data) for path, data in before.items()}, repo)
        target = {path: (False, data) for path, data in after.items()}
        tests, gold = diff_between(repo, target, tuple(hidden)), diff_between(repo, target, tuple(fixed))
    name = args.id.replace("__", "-")
    columns = {}
    for which, version, files in (("base", "1", before), ("fix", "2", after)):
        archive = publish(name, version, files, cache_root())
        columns |= {f"{which}_version": version, f"{which}_sdist": archive.filename}
        columns[f"{which}_sdist_sha256"] = archive.sha256
    return {
        "instance_id": args.id,
        "repo": name,
        "language": "python",
        "license": "unknown",
        "base_commit": commit,
        "problem_statement": args.statement,
        "FAIL_TO_PASS": args.fail_to_pass,
        "PASS_TO_PASS": args.pass_to_pass or [],
        "install_config": {
            "base_image_name": "python:3.11",
            "pip_packages": ["pytest==7.4.4", "iniconfig==2.0.0", "packaging==24.2", "pluggy==1.5.0"],
            "pip_args": ["--no-deps"],
            "env": {"PYTHONPATH": "{workdir}", "PYTHONDONTWRITEBYTECODE": "1"},
            "test_cmd": ["python -m pytest -p no:cacheprovider -rA --tb=no -q --color=no --rootdir=."],
            "log_parser": "pytest_nodeid_exact",
            "timeout_s": 300,
        },
        "registry": "local",
        **columns,
        "gold_patch_paths": fixed,
        "test_patch_paths": hidden,
        "patch_sha256": hashlib.sha256(gold).hexdigest(),
        "test_patch_sha256": hashlib.sha256(tests).hexdigest(),
    }


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


async def check(source: Path, run: Path) -> None:
    """Grade the reference fix and doing nothing."""
    tasks = list(load_source(parse_source(str(source)), purpose="train", force=False).tasks)
    config = RolloutConfig(tasks=tuple(task.instance_id for task in tasks), agents=("oracle", "noop"))
    async with open_stack(config, RunDir.create(run), print, tasks=tasks) as runner:
        results = await run_rollouts(runner, episodes_of(config), concurrency=1)
    for result in results:
        print(f"{result.agent}: reward {result.reward}, {result.grade.get('reason', result.error)}")
    if [result.reward for result in results] != [1.0, 0.0]:
        raise SystemExit("the task is not fit: the fix must score 1, and doing nothing 0.")


if __name__ == "__main__":
    main()
