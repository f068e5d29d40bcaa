"""Which adapter a row needs, and which sets are benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drivetrain.errors import ConfigError
from swe_rl_env.tasks.adapters.base import Adapter, Format, Row, Unusable, json_value
from swe_rl_env.tasks.adapters.multi_swe import multi_swe
from swe_rl_env.tasks.adapters.swe_bench import swe_bench, swe_gym
from swe_rl_env.tasks.adapters.swe_rebench import swe_rebench

FORMATS: dict[Format, Adapter] = {
    "archives": dict,
    "swe-rebench-v2": dict,
    "swe-rebench": swe_rebench,
    "swe-bench": swe_bench,
    "swe-gym": swe_gym,
    "multi-swe": multi_swe,
}

EVALUATION_SETS = (
    "swe-bench_verified",
    "swe-bench_lite",
    "swe-bench_multilingual",
    "swe-bench_multimodal",
    "swe-bench_pro",
    "multi-swe-bench",
    "swe-rebench-leaderboard",
)
"""Public benchmarks, by the second half of their names (case and ``-``/``_`` do not matter): no training data.

Of plain SWE-bench only the splits ``dev`` and ``test`` are; its ``train`` split has no images."""

# Columns that give a family away which is not supported, and why.
_REFUSED = (
    ("expected_action", "a single-step row (expected_action) is no environment task"),
    ("expected_output_json", "R2E-Gym compares a whole result map and has no FAIL_TO_PASS"),
    ("eval_script", "graded by the exit code of its own script, which is no proof"),
)
_WRAPPED = "instance_dict"


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def is_evaluation_set(dataset: str, split: str | None = None) -> bool:
    """Whether a hub data set (``owner/name`` or ``name``) is a benchmark."""
    name = _plain(dataset.rsplit("/", 1)[-1])
    if name == "swe-bench":
        return split in (None, "dev", "test")
    return any(name == known or name.startswith(f"{known}-") for known in map(_plain, EVALUATION_SETS))


def _refuse(row: Row) -> None:
    for column, reason in _REFUSED:
        if row.get(column):
            raise Unusable(reason)
    if row.get("patch") and not row.get("test_patch") and not row.get("base_commit") and "image_name" in row:
        raise Unusable("SWE-smith: its patch makes the defect, and there is no test patch")


def detect(row: Row) -> Format:
    """The format by columns.

    Raises:
        Unusable: no known format, or one that can never be a task here.
    """
    _refuse(row)
    if row.get("registry") is not None:
        return "archives"
    if "fix_patch" in row and "base" in row:
        return "multi-swe"
    if "instance_id" not in row or "repo" not in row:
        raise Unusable(f"no known format; its columns are {', '.join(sorted(map(str, row))[:12])}")
    config = json_value(row.get("install_config"))
    if isinstance(config, Mapping):
        return "swe-rebench-v2" if row.get("language") and row.get("image_name") and not _is_v1(row) else "swe-rebench"
    if "_s_" in str(row.get("image_name") or row.get("docker_image") or ""):
        return "swe-gym"
    if isinstance(row.get("FAIL_TO_PASS"), str) or "environment_setup_commit" in row:
        return "swe-bench"
    return "swe-gym"  # the one set of the family with lists and without a set-up commit


def _is_v1(row: Row) -> bool:
    return "environment_setup_commit" in row or "FAIL_TO_FAIL" in row


def adapt(row: Row, fmt: Format | None = None) -> tuple[dict[str, Any], str, bool]:
    """A row in V2's schema, its format, and whether it belongs to a benchmark as far as the row itself tells.

    Rows of NeMo Gym hold the instance as JSON in a string; they are unwrapped first.

    Raises:
        Unusable: see :func:`detect` and the adapters.
        ConfigError: no such format.
    """
    if fmt is not None and fmt not in FORMATS:
        raise ConfigError(f"There is no task format {fmt!r}.", fix=f"Known: {', '.join(FORMATS)}.")
    inner, dataset = _unwrap(row)
    chosen = fmt or detect(inner)
    # Verified is SWE-bench plus a difficulty in words.
    verified = chosen == "swe-bench" and bool(inner.get("difficulty"))
    return FORMATS[chosen](inner), chosen, verified or is_evaluation_set(dataset)


def _unwrap(row: Row) -> tuple[Row, str]:
    params = json_value(row.get("responses_create_params"))
    metadata = json_value(params.get("metadata")) if isinstance(params, Mapping) else None
    if not isinstance(metadata, Mapping) or _WRAPPED not in metadata:
        return row, ""
    _refuse(row)
    inner = json_value(metadata[_WRAPPED])
    if not isinstance(inner, Mapping):
        raise Unusable("responses_create_params.metadata.instance_dict is no JSON object")
    beside = {name: metadata[name] for name in ("instance_id", "base_commit") if metadata.get(name)}
    return {**beside, **inner}, str(metadata.get("dataset_name") or "")
