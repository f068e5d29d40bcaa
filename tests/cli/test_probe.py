"""``drivetrain probe``: exit status, table, JSON, and what it refuses."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import Result
from typer.testing import CliRunner

from drivetrain.cli.main import app
from drivetrain.engines.models import ModelDir
from drivetrain.engines.probe_checks import CHECKS
from tests.cli.served import hosted
from tests.engines import table_engine
from tests.engines.sglang.double import Quirks, Server
from tests.engines.table_engine import Faults, TableEngine
from tests.engines.vllm.double import VLLMDouble


def probe(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["probe", *arguments], env={"COLUMNS": "300"})


@pytest.fixture(autouse=True)
def small_table(monkeypatch: pytest.MonkeyPatch, tiny_model: ModelDir) -> None:
    """The doubles' table has the tiny model's vocabulary."""
    monkeypatch.setattr(table_engine, "VOCAB", tiny_model.vocab_size)


def test_help_teaches() -> None:
    text = " ".join(probe("--help").output.split())
    for word in ("stop token", "raw", "Exits with 0 only when", "Nothing is cached", "--embedded", "--api", "--json"):
        assert word in text, word


@pytest.mark.case("B4")
def test_a_sound_server(tiny_model: ModelDir) -> None:
    with hosted(Server()) as url:
        done = probe(url, "--model", str(tiny_model.path))
    assert done.exit_code == 0, done.output
    assert "trainable: samples of this engine can be trained on" in done.output
    for check in CHECKS:
        assert check.name in done.output


@pytest.mark.case("B4")
def test_raw_log_probs_as_json(tiny_model: ModelDir) -> None:
    server = Server(Quirks(faults=Faults(raw=True)))
    with hosted(server) as url:
        first = probe(url, "--model", str(tiny_model.path), "--api", "sglang", "--json")
        server.table.faults = Faults()  # it is started anew, set up well
        second = probe(url, "--model", str(tiny_model.path), "--api", "sglang", "--json")
    assert first.exit_code == 1
    found: dict[str, Any] = msgspec.json.decode(first.stdout)
    assert (found["engine"], found["kind"], found["trainable"]) == ("sglang:table", "sglang", False)
    assert found["identity"] == {"template": "unknown", "tokenizer": "unknown"}
    by_name = {finding["check"]: finding for finding in found["findings"]}
    assert by_name["temperature"]["status"] == "failed"
    assert "raw" in by_name["temperature"]["what"]
    assert "unset SGLANG_RETURN_ORIGINAL_LOGPROB" in by_name["temperature"]["fix"]
    assert second.exit_code == 0, second.stdout  # nothing was remembered


def test_the_table_says_how_to_fix(tiny_model: ModelDir) -> None:
    with hosted(Server(Quirks(no_logprobs=True))) as url:
        done = probe(url, "--model", str(tiny_model.path))
    assert done.exit_code == 1
    assert "not trainable: counts" in done.output
    assert "let routers pass them on" in done.output


def test_a_vllm_server_is_recognised_and_its_template_compared(tiny_model: ModelDir) -> None:
    server = VLLMDouble(TableEngine(), template="{{ messages }}", vocab_size=tiny_model.vocab_size)
    with hosted(server, "stop") as url:
        done = probe(url, "--model", str(tiny_model.path))
    assert done.exit_code == 2
    said = done.output + done.stderr
    assert "the chat template of engine vllm:policy" in said
    assert hashlib.sha256(b"{{ messages }}").hexdigest() in said
    assert server.requests == []


def test_the_embedded_engine(tiny_model: ModelDir) -> None:
    pytest.importorskip("torch")
    done = probe("--embedded", str(tiny_model.path))
    assert done.exit_code == 0, done.output
    assert "engine embedded:tiny" in done.output


def test_nobody_there(tiny_model: ModelDir) -> None:
    done = probe("http://127.0.0.1:9", "--model", str(tiny_model.path), "--boot-timeout", "0.1")
    assert done.exit_code == 1
    assert "not ready within 0.1 s" in done.output + done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name one engine"),
        (["http://127.0.0.1:9", "--embedded", "m"], "name one engine"),
        (["http://127.0.0.1:9"], "--model DIR"),
        (["--embedded", "m", "--api", "vllm"], "--model and --api are about servers"),
        (["http://127.0.0.1:9", "--model", "m", "--api", "tgi"], "vllm, sglang"),
        (["http://127.0.0.1:9", "--model", "nowhere"], "neither a bundled model nor a directory"),
        (["127.0.0.1:9", "--model", "{tiny}"], "no address of an engine server"),
    ],
)
def test_bad_input(arguments: list[str], says: str, tiny_model: ModelDir, tmp_path: Path) -> None:
    done = probe(*(argument.replace("{tiny}", str(tiny_model.path)) for argument in arguments))
    assert done.exit_code == 2
    assert says in done.output + done.stderr
