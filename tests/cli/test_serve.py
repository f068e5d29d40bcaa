"""``drivetrain serve``: what its help teaches, and that bad combinations end before a model is loaded or a key made."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from drivetrain.cli.main import app
from drivetrain.engines.models import ModelDir
from drivetrain.gateway.policy import SessionPolicy
from tests.gateway.certificates import write_certificate


def serve(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, ["serve", *arguments], env={"COLUMNS": "200", **(env or {})})


def test_help_teaches_keys_addresses_and_budgets() -> None:
    text = " ".join(serve("--help").output.split())
    policy = SessionPolicy(model="m")
    for word in (
        "$DRIVETRAIN_ADMIN_KEY",
        "$DRIVETRAIN_TRAINER_KEY",
        "api_key",
        "x-goog-api-key",
        "--tls-cert",
        "--allow-public",
        "127.0.0.1",
        f"max_turns {policy.max_turns}",
        f"max_tokens_per_turn {policy.max_tokens_per_turn}",
        "on_budget",
    ):
        assert word in text, word


@pytest.mark.case("D13")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "0.0.0.0"], "refusing to listen on 0.0.0.0"),
        (["--admin-host", "192.0.2.1"], "refusing to listen on 192.0.2.1"),
        (["--host", "example.org"], "refusing to listen on example.org"),
        (["--tls-cert", "cert.pem"], "--tls-key is missing"),
        (["--tls-key", "key.pem"], "--tls-cert is missing"),
        (["--tls-cert", "nowhere.pem", "--tls-key", "nowhere.key"], "no TLS certificate at nowhere.pem"),
        (["--port", "8300", "--admin-port", "8300"], "both 8300"),
        (["--port", "70000"], "65535"),
    ],
)
def test_bad_combinations(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = serve(*arguments)
    assert done.exit_code == 2
    assert says in done.output + done.stderr + capfd.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("env", "arguments", "says"),
    [
        ({"DRIVETRAIN_ADMIN_KEY": "short"}, [], "admin key is shorter than 16"),
        ({"DRIVETRAIN_ADMIN_KEY": "a" * 40, "DRIVETRAIN_TRAINER_KEY": "short"}, [], "trainer key is shorter than 16"),
        ({"DRIVETRAIN_ADMIN_KEY": "a" * 40, "DRIVETRAIN_TRAINER_KEY": "a" * 40}, [], "is the admin key"),
        ({"DRIVETRAIN_ADMIN_KEY": "a" * 20}, ["--admin-host", "0.0.0.0", "--allow-public"], "shorter than 32"),
    ],
)
def test_bad_keys(env: dict[str, str], arguments: list[str], says: str, tmp_path: Path, tiny_model: ModelDir) -> None:
    (tmp_path / "script.json").write_text('["hi"]')
    done = serve(
        *arguments,
        *("--model", str(tiny_model.path), "--script", str(tmp_path / "script.json")),
        *("--journal", str(tmp_path / "gateway" / "journal.sqlite")),
        env=env,
    )
    assert done.exit_code == 2
    assert says in done.output + done.stderr
    assert not (tmp_path / "gateway").exists()


def test_admin_key_file_that_others_can_read(tmp_path: Path, tiny_model: ModelDir) -> None:
    (tmp_path / "script.json").write_text('["hi"]')
    (tmp_path / "admin.key").write_text("k" * 40)
    (tmp_path / "admin.key").chmod(0o644)
    options = ("--model", str(tiny_model.path), "--script", str(tmp_path / "script.json"))
    done = serve(*options, "--journal", str(tmp_path / "journal.sqlite"))
    assert done.exit_code == 2
    assert "can be read by other users" in done.output + done.stderr


def test_certificate_and_key_that_do_not_belong_together(tmp_path: Path) -> None:
    write_certificate(tmp_path / "one")
    write_certificate(tmp_path / "two")
    done = serve("--tls-cert", str(tmp_path / "one" / "cert.pem"), "--tls-key", str(tmp_path / "two" / "key.pem"))
    assert done.exit_code == 2
    assert "cannot be used" in done.output + done.stderr
