"""``--engine`` and its companions in rollout, serve and train, and what a run records of them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
from click.testing import Result
from typer.testing import CliRunner

from drivetrain.cli.main import app
from drivetrain.engines.models import ModelDir
from drivetrain.engines.open import EngineSpec
from drivetrain.errors import ConfigError
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.messages import Call, Message
from drivetrain.rollout.config import RolloutConfig
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.stack import _open_gateway
from tests.cli.served import hosted
from tests.engines import table_engine
from tests.engines.sglang.double import Quirks, Server
from tests.engines.table_engine import Faults

TASK = "pypi__xmltodict-0.14.2"
URL = "http://127.0.0.1:9"


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", **(env or {})})


@pytest.mark.parametrize("command", ["rollout", "serve"])
def test_help_names_the_options(command: str) -> None:
    text = run(command, "--help").output
    for option in ("--engine", "--engine-url", "--engine-api-key-env", "--engine-model", "--no-probe", "--threads"):
        assert option in text, option


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--engine", "vlm"], "Engines: embedded, vllm, sglang"),
        (["--engine-url", URL], "--engine vllm or --engine sglang"),
        (["--engine", "vllm"], "--engine-url http://host:port"),
        (["--engine", "sglang", "--engine-url", "nowhere"], "no address of an engine server"),
        (["--engine", "sglang", "--engine-url", URL, "--threads", "2"], "Leave --threads out"),
        (["--engine", "sglang", "--engine-url", URL, "--engine-api-key-env", "sk-1!"], "no name of an environment"),
    ],
)
@pytest.mark.parametrize("command", [["rollout", "-a", "pi", "-t", TASK], ["serve"]])
def test_combinations_that_make_no_sense(
    command: list[str],
    arguments: list[str],
    says: str,
    tiny_model: ModelDir,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*command, "--model", str(tiny_model.path), *arguments)
    assert done.exit_code == 2
    assert says in done.output + done.stderr
    assert "sk-1" not in done.output + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_dtype_is_checked() -> None:
    done = run("rollout", "-a", "pi", "-t", TASK, "--dtype", "float8")
    assert done.exit_code == 2
    assert "float32, bfloat16" in done.output + done.stderr


def test_a_script_and_a_server(tiny_model: ModelDir, tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text('["hi"]')
    options = ("--script", str(tmp_path / "script.json"), "--engine", "vllm", "--engine-url", URL)
    done = run("serve", "--model", str(tiny_model.path), *options, "--journal", str(tmp_path / "j.sqlite"))
    assert done.exit_code == 2
    assert "both say what samples" in done.output + done.stderr


def test_live_training_and_a_server() -> None:
    pytest.importorskip("trl")
    done = run("train", "-t", TASK, "-a", "pi", "--engine", "vllm")
    assert done.exit_code == 2
    assert "sends no weights to a server" in done.output + done.stderr


@pytest.mark.case("B4")
def test_serve_refuses_a_server_that_cannot_be_trained_on(
    tiny_model: ModelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it listens and before a journal is there."""
    monkeypatch.setattr(table_engine, "VOCAB", tiny_model.vocab_size)
    journal = tmp_path / "gateway" / "journal.sqlite"
    with hosted(Server(Quirks(faults=Faults(raw=True)))) as url:
        options = ("--engine", "sglang", "--engine-url", url, "--journal", str(journal))
        done = run("serve", "--model", str(tiny_model.path), *options, env={"DRIVETRAIN_ADMIN_KEY": "a" * 40})
    assert done.exit_code == 2
    assert "log-probs are raw" in done.output + done.stderr
    assert not journal.exists()


async def test_a_run_samples_from_the_server_and_records_it_without_its_key(
    tiny_model: ModelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_engine, "VOCAB", tiny_model.vocab_size)
    monkeypatch.setenv("ENGINE_KEY", "sk-secret")
    server = Server(Quirks(api_key="sk-secret"), context=4096)
    spec = EngineSpec(kind="sglang", urls=(await server.start(),), api_key_env="ENGINE_KEY", boot_timeout_s=5)
    config = RolloutConfig(tasks=(TASK,), agents=("pi",), engine=spec)
    run_dir = RunDir.create(tmp_path / "run")
    told: list[str] = []
    async with AsyncExitStack() as stack:
        gateway, _, report = await _open_gateway(stack, config, run_dir, told.append, tiny_model, None)
        assert report is not None and not report.blocking
        session, _key = await gateway.open_session(SessionPolicy(model=gateway.model, max_tokens_per_turn=5))
        served = await gateway.serve(session, Call("openai_chat", "m", (Message("user", "hi"),)), b"{}")
        assert served.turn is not None
        assert served.turn.engine == "sglang:table"
        assert server.calls[-1]["input_ids"] == session.graph.prompt_ids(served.turn).tolist()
    await server.aclose()
    assert any("probing sglang:table" in line for line in told)
    recorded = msgspec.json.encode(config).decode()
    assert '"kind":"sglang"' in recorded and spec.urls[0] in recorded and "ENGINE_KEY" in recorded
    assert "sk-secret" not in recorded
    assert b"sk-secret" not in run_dir.journal.read_bytes()


def test_a_config_checks_its_engine() -> None:
    with pytest.raises(ConfigError, match="threads is an option of the embedded engine"):
        RolloutConfig(tasks=(TASK,), agents=("pi",), engine=EngineSpec(kind="vllm", urls=(URL,)), threads=2)
