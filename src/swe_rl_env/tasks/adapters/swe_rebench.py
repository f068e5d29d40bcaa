"""SWE-rebench (the first version): SWE-bench's columns plus ``install_config``, lists as lists, Python."""

from __future__ import annotations

from typing import Any

from swe_rl_env.tasks.adapters.base import Row, Unusable, copied, in_testbed, instance_image, json_value, test_files
from swe_rl_env.tasks.adapters.swe_bench import _COLUMNS
from swe_rl_env.tasks.adapters.swe_bench_runs import fill


def swe_rebench(row: Row) -> dict[str, Any]:
    """A row of SWE-rebench.

    The command of ``install_config`` names no files; upstream appends those that the test patch leaves behind, data
    files excepted (``make_eval_script_list_py`` in swebench/harness/test_spec/python.py of SWE-rebench/SWE-bench-fork,
    commit 39316f79). FAIL_TO_FAIL and PASS_TO_FAIL are not graded and stay in ``extra``. The licence stands in
    ``license_name``, a difficulty of 1 to 3 in ``meta.llm_score.difficulty_score``.

    Raises:
        Unusable: there is no ``install_config``.
    """
    config = json_value(row.get("install_config"))
    if not isinstance(config, dict):
        raise Unusable("install_config is missing, so neither test command nor parser is known")
    commands = config.get("test_cmd")
    commands = [commands] if isinstance(commands, str) else list(commands or ())
    files = fill("{files}", test_files(row), "")
    known = {k: config[k] for k in ("log_parser", "docker_specs", "base_image_name", "timeout_s") if config.get(k)}
    env = json_value(config.get("env_vars"))
    return {
        **copied(row, *_COLUMNS, "meta", "FAIL_TO_FAIL", "PASS_TO_FAIL", "requirements", "environment"),
        "language": row.get("language") or "python",
        "license": row.get("license") or row.get("license_name"),
        "image_name": row.get("image_name")
        or row.get("docker_image")
        or instance_image(row, "swerebench/sweb.eval.x86_64.", "_1776_"),
        "workdir": "/testbed",
        "install_config": {
            **known,
            "test_cmd": [in_testbed(f"{command} {files}".strip()) for command in commands],
            "env": {str(k): str(v) for k, v in env.items()} if isinstance(env, dict) else {},
        },
    }
