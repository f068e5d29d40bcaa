"""Adapters, sources and what is refused. Nothing here needs a network."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from drivetrain.errors import ConfigError, MissingDependency
from swe_rl_env.tasks import reading
from swe_rl_env.tasks.adapters import Unusable, adapt, detect, is_evaluation_set
from swe_rl_env.tasks.loading import Source, load_source, parse_source, tasks_from_rows
from swe_rl_env.tasks.model import SweTask

from .rows import COMMIT, F2P, P2P, multi_swe_row, nemo_row, rebench_v1_row, swe_bench_row, swe_gym_row, v2_row

Row = dict[str, Any]


def one(row: Row, **options: Any) -> SweTask:
    loaded = tasks_from_rows([("row", row)], **options)
    assert loaded.rejected == ()
    return loaded.tasks[0]


def reason(row: Row, **options: Any) -> str:
    loaded = tasks_from_rows([("row", row)], **options)
    assert loaded.tasks == () and len(loaded.rejected) == 1
    return f"{loaded.rejected[0].code}: {loaded.rejected[0].reason}"


@pytest.mark.parametrize(
    ("row", "dataset", "image", "command"),
    [
        (v2_row(), "swe-rebench-v2", "docker.io/swerebenchv2/acme-abacus:12-0123456", "pytest -rA tests"),
        (
            rebench_v1_row(),
            "swe-rebench",
            "swerebench/sweb.eval.x86_64.acme_1776_abacus-12",
            "pytest --no-header -rA tests/test_core.py",
        ),
        (
            swe_bench_row(),
            "swe-bench",
            "swebench/sweb.eval.x86_64.acme_1776_abacus-12:latest",
            "pytest -rA tests/test_core.py",
        ),
        (
            swe_gym_row(),
            "swe-gym",
            "xingyaoww/sweb.eval.x86_64.acme_s_abacus-12:latest",
            "pytest -rA tests/test_core.py",
        ),
        (multi_swe_row(), "multi-swe", "mswebench/acme_m_abacus:pr-12", "go test -v ./..."),
    ],
)
def test_formats_are_told_apart_by_their_columns(row: Row, dataset: str, image: str, command: str) -> None:
    task = one(row)
    assert (task.dataset, task.image) == (dataset, image)
    assert task.install.test_cmd[0].endswith(command)
    assert task.base_commit == COMMIT
    assert task.created_at in ("2024-01-02T03:04:05Z", None)
    if dataset in ("swe-rebench", "swe-bench", "swe-gym"):
        assert task.workdir == "/testbed"
        assert task.install.test_cmd[0].startswith(". /opt/miniconda3/bin/activate testbed && ")
        assert (task.private.fail_to_pass, task.private.pass_to_pass) == (tuple(F2P), tuple(P2P))
    assert "SECRET" not in json.dumps(task.public.__struct_fields__) + task.public.problem_statement


def test_what_the_first_swe_rebench_calls_by_other_names() -> None:
    task = one(rebench_v1_row())
    assert (task.license, task.difficulty) == ("Apache License 2.0", "2")


@pytest.mark.parametrize(
    ("repo", "version", "command", "parser"),
    [
        ("pallets/flask", "2.0", "pytest -rA tests/a_test.py tests/conftest.py", "parse_log_pytest"),
        ("psf/requests", "2.3", "pytest -rA tests/a_test.py tests/conftest.py", "parse_log_pytest_options"),
        ("matplotlib/matplotlib", "3.7", "pytest -rA tests/a_test.py tests/conftest.py", "parse_log_matplotlib"),
        (
            "astropy/astropy",
            "1.3",
            "pytest -rA -vv -o console_output_style=classic --tb=no -p no:nose tests/a_test.py tests/conftest.py",
            "parse_log_pytest_v2",
        ),
        ("astropy/astropy", "5.0", "pytest -rA tests/a_test.py tests/conftest.py", "parse_log_pytest_v2"),
        ("django/django", "1.9", "./tests/runtests.py --verbosity 2 a_test conftest", "parse_log_django"),
        (
            "django/django",
            "4.2",
            "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 a_test conftest",
            "parse_log_django",
        ),
        ("python/mypy", "1.0", "pytest -n0 -rA -k 'newCase or other'", "parse_log_pytest"),
        ("Project-MONAI/MONAI", "1.0", "pytest -rA tests/a_test.py tests/conftest.py", "parse_log_pytest"),
    ],
)
def test_what_the_mother_set_runs(repo: str, version: str, command: str, parser: str) -> None:
    """As in the benchmarks' code: files that the patch leaves behind, data files excepted."""
    patch = "".join(f"diff --git a/{p} b/{p}\n{mode}@@ -1 +1 @@\n-a\n+[case newCase]\n+[case other]\n" for p, mode in (
        ("tests/a_test.py", ""), ("tests/conftest.py", "new file mode 100644\n"), ("tests/data.json", ""),
        ("tests/old_test.py", "deleted file mode 100644\n"),
    ))  # fmt: skip
    task = one(swe_bench_row(repo=repo, version=version, test_patch=patch))
    assert task.install.test_cmd == [f". /opt/miniconda3/bin/activate testbed && {command}"]
    assert task.install.log_parser == parser
    old = repo == "django/django" and version == "1.9"
    assert task.install.env.get("PYTHONIOENCODING") == ("utf8" if old else None)


def test_multi_swe_lists_and_statement() -> None:
    task = one(multi_swe_row())
    assert task.instance_id == "acme__abacus-12"
    assert task.private.fail_to_pass == ("core.add", "core.new"), "a null entry is no test"
    assert task.private.pass_to_pass == ("core.zero",)
    assert task.public.problem_statement == "Adding subtracts\n\n1 + 2 gives -1."
    assert (task.public.language, task.difficulty) == ("go", "easy")
    assert one(multi_swe_row(instance_id="acme/abacus:pr-12")).instance_id == "acme__abacus-12"


def test_a_row_without_a_command_needs_one_from_the_caller() -> None:
    row = multi_swe_row()
    del row["install_config"]
    assert "no test command" in reason(row)
    given = {"test_cmd": ["go test ./..."], "log_parser": "parse_log_gotest"}
    assert one(row, install_config=given).install.test_cmd == ["go test ./..."]


@pytest.mark.parametrize("inner", [v2_row(), swe_gym_row(), rebench_v1_row()])
def test_wrapped_rows_are_unwrapped(inner: Row) -> None:
    assert one(nemo_row(inner)).instance_id == inner["instance_id"]
    assert one(nemo_row(inner)).dataset == one(inner).dataset
    assert one(nemo_row(inner, "SWE-bench/SWE-bench_Verified")).evaluation_only


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"expected_action": "x", "instance_id": "a", "repo": "a/b"}, "no environment task"),
        ({"expected_output_json": "{}", "repo_name": "x"}, "R2E-Gym"),
        ({"eval_script": "exit 0", "instance_id": "a", "repo": "a/b"}, "exit code"),
        ({"instance_id": "a", "image_name": "x", "patch": "p", "repo": "a/b"}, "SWE-smith"),
        ({"question": "x"}, "no known format"),
        (nemo_row({}) | {"expected_action": "x"}, "no environment task"),
        (v2_row(problem_statement=""), "problem_statement is empty"),
        (v2_row(base_commit=None), "base_commit"),
        (v2_row(FAIL_TO_PASS=None), "FAIL_TO_PASS is empty"),
        (rebench_v1_row(install_config=None), "swe-"),
    ],
)
def test_nothing_is_dropped_silently(row: Row, says: str) -> None:
    if says == "swe-":
        assert detect(row) == "swe-bench", "without its configuration it is graded as its mother set"
        return
    assert says in reason(row)


def test_a_wrong_format_name() -> None:
    with pytest.raises(ConfigError, match="Known: archives"):
        adapt(v2_row(), "swe-rebench-v3")  # type: ignore[arg-type]
    with pytest.raises(Unusable):
        detect({})


def test_twice_the_same_id_is_reported() -> None:
    loaded = tasks_from_rows([("a:1", v2_row()), ("a:2", v2_row())])
    assert len(loaded.tasks) == 1
    assert [(r.where, r.code) for r in loaded.rejected] == [("a:2", "duplicate_id")]


@pytest.mark.parametrize(
    ("name", "split", "held"),
    [
        ("princeton-nlp/SWE-bench_Verified", None, True),
        ("SWE-bench/SWE-bench_Lite", "test", True),
        ("ScaleAI/SWE-bench_Pro", None, True),
        ("princeton-nlp/SWE-bench", "test", True),
        ("princeton-nlp/SWE-bench", "train", False),
        ("ByteDance-Seed/Multi-SWE-bench", None, True),
        ("nebius/SWE-rebench-V2", None, False),
        ("SWE-Gym/SWE-Gym", None, False),
        ("nebius/SWE-rebench", None, False),
    ],
)
def test_benchmarks_by_name(name: str, split: str | None, held: bool) -> None:
    assert is_evaluation_set(name, split) is held


def write_jsonl(path: Path, *rows: Row) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_benchmarks_are_no_training_data_unless_forced(tmp_path: Path) -> None:
    verified = write_jsonl(
        tmp_path / "v.jsonl", swe_bench_row(difficulty="<15 min fix"), swe_bench_row(instance_id="b")
    )
    source = parse_source(str(verified))
    assert len(load_source(source).tasks) == 2
    with pytest.raises(ConfigError, match="1 of 2 tasks belong to a public benchmark"):
        load_source(source, purpose="train")
    assert len(load_source(source, purpose="train", force=True).tasks) == 2
    trainable = write_jsonl(tmp_path / "t.jsonl", swe_gym_row())
    assert len(load_source(parse_source(str(trainable)), purpose="train").tasks) == 1


def write_parquet(path: Path, *rows: Row) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path)


def test_folders_files_and_splits(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "one" / "train.jsonl", v2_row(), v2_row(instance_id="b", problem_statement=" "))
    loaded = load_source(parse_source(str(tmp_path / "one")))
    assert [t.instance_id for t in loaded.tasks] == ["acme__abacus-12"]
    assert [(r.where, r.instance_id) for r in loaded.rejected] == [("train.jsonl:2", "b")]
    for split in ("train", "test"):
        write_parquet(tmp_path / "two" / "data" / f"{split}-00000-of-00001.parquet", v2_row(instance_id=split))
    with pytest.raises(ConfigError, match=r"several splits.*test, train"):
        load_source(parse_source(str(tmp_path / "two")))
    assert [t.instance_id for t in load_source(parse_source(f"{tmp_path / 'two'}#test")).tasks] == ["test"]
    with pytest.raises(ConfigError, match="no split 'dev'"):
        load_source(parse_source(f"{tmp_path / 'two'}#dev"))


def test_parquet_gives_the_same_task_as_json(tmp_path: Path) -> None:
    write_parquet(tmp_path / "rows.parquet", v2_row(), v2_row(instance_id="b", interface=None))
    first, second = load_source(parse_source(str(tmp_path / "rows.parquet"))).tasks
    assert first == one(v2_row())
    assert second.public.interface is None
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not")
    with pytest.raises(ConfigError, match="as Parquet"):
        load_source(parse_source(str(tmp_path / "bad.parquet")))


def test_hub_names() -> None:
    parsed = parse_source("hub:nebius/SWE-rebench-V2@475dd5e#train")
    assert parsed == Source(kind="hub", place="nebius/SWE-rebench-V2", revision="475dd5e", split="train")
    assert parse_source("hub:a/b/config").config == "config"
    assert parse_source(None).kind == "packaged"
    for wrong in ("hub:x", "hub:", "hub:a//b"):
        with pytest.raises(ConfigError, match="names no data set"):
            parse_source(wrong)
    with pytest.raises(ConfigError, match="no task file"):
        parse_source("/nowhere.jsonl")


def test_a_hub_set_is_read_at_its_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    write_parquet(tmp_path / "data" / "train-00000-of-00001.parquet", v2_row())
    asked: list[Any] = []

    def snapshot(name: str, **options: Any) -> str:
        asked.append((name, options["repo_type"], options["revision"]))
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    loaded = load_source(parse_source("hub:nebius/SWE-rebench-V2@475dd5e"))
    assert [t.instance_id for t in loaded.tasks] == ["acme__abacus-12"]
    assert asked == [("nebius/SWE-rebench-V2", "dataset", "475dd5e")]
    assert load_source(parse_source("hub:SWE-bench/SWE-bench_Verified")).tasks[0].evaluation_only


@pytest.mark.parametrize(("missing", "source"), [("pyarrow", "rows.parquet"), ("huggingface_hub", "hub:a/b")])
def test_a_missing_package_is_named(missing: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.parquet").touch()
    real = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name.split(".")[0] == missing:
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependency, match=f"{missing}.*pip install"):
        if source.startswith("hub:"):
            list(reading.read_hub("a/b", None, None, None))
        else:
            list(reading.read_local(tmp_path / source))


def test_the_packaged_rows_go_the_same_way() -> None:
    loaded = load_source(parse_source(None), purpose="train")
    assert len(loaded.tasks) == 31 and loaded.rejected == ()
