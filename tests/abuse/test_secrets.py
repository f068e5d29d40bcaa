"""A run leaves no secret behind: every file of it, every export and every log record is searched, at DEBUG.

Errors, the journal and exports of a gateway alone are searched in ``tests/gateway/test_redact.py``, what a sandbox
sees of its host in ``tests/conformance/sandbox/test_sandbox_secrets.py``.
"""

from __future__ import annotations

import gzip
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from drivetrain.cli.export import Format
from drivetrain.cli.main import app
from drivetrain.engines.protocol import EngineError
from drivetrain.engines.remote import RemoteClient
from drivetrain.gateway import sessions
from drivetrain.gateway.keys import mint_key
from drivetrain.gateway.redact import MASK
from drivetrain.journal.reader import JournalReader
from tests.engines.remote.server import Server, http, running
from tests.rollout.conftest import RunWith, run_with, tool_call

__all__ = ["run_with"]

PLANTED = {
    "HF_TOKEN": "hf_PLANTEDplantedPLANTED0001",
    "DRIVETRAIN_ADMIN_KEY": "dt-admin-PLANTED-planted-0002",
    "DRIVETRAIN_TRAINER_KEY": "dt-trainer-PLANTED-planted-0003",
    "VLLM_API_KEY": "sk-PLANTEDplantedPLANTED0004",
    "E2B_API_KEY": "e2b_PLANTEDplantedPLANTED0005",
    "WANDB_API_KEY": "PLANTEDplantedPLANTED0006",
}


class Everything(logging.Handler):
    """Every record of this process, as a log file would have it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(logging.Formatter("%(name)s %(message)s"))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def log() -> Iterator[list[str]]:
    root, handler = logging.getLogger(), Everything()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler.lines
    root.setLevel(before)
    root.removeHandler(handler)


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Each file as it is, unpacked, and each column of each table of a database (whose pages may split a value)."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        yield str(path), data
        if data[:2] == b"\x1f\x8b":
            yield f"{path} unpacked", gzip.decompress(data)
        if data[:15] == b"SQLite format 3":
            yield f"{path} rows", _rows(path)


def _rows(path: Path) -> bytes:
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        tables = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        values = [value for table in tables for row in database.execute(f"select * from {table}") for value in row]
        return b"\n".join(value if isinstance(value, bytes) else str(value).encode() for value in values)
    finally:
        database.close()


@pytest.mark.real
@pytest.mark.timeout(900)
async def test_a_run_leaves_no_secret_anywhere(
    run_with: RunWith, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: list[str]
) -> None:
    """The agent prints its environment and asks for its key in a file of the checkout; the host's secrets are set."""
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    minted: list[str] = []

    def mint(*scope: Any) -> str:
        minted.append(mint_key(*scope))
        return minted[-1]

    monkeypatch.setattr(sessions, "mint_key", mint)
    steal = (
        "env; cat /proc/[0-9]*/environ | tr '\\0' '\\n' | sort -u; grep -rhs dt-agent- ~ | tee ../key; ls -a ~ ../key"
    )
    finish = tool_call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    done = await run_with("mini-swe-agent", [tool_call("bash", command=steal), finish], max_tokens=2000)
    (result,) = done.results
    assert len(minted) == 1
    for chosen in Format:
        exported = CliRunner().invoke(app, ["trace", "export", str(done.run.path), "--format", chosen])
        assert exported.exit_code == 0, exported.output
        log.append(exported.output)
    seen = JournalReader(done.run.journal).graph(result.session_id, sessions.session_tag(result.session_id))
    printed = next(message.content for turn in seen for message in turn.messages if message.role == "tool")
    assert MASK in printed and "PATH=" in printed  # it was printed, and came back without the key
    found = [
        (place, secret[:12])
        for place, data in [*contents(done.run.path), ("the log", "\n".join(log).encode())]
        for secret in (*PLANTED.values(), *minted)
        if secret.encode() in data
    ]
    assert found == []
    assert sum(1 for _ in contents(done.run.path)) > 4
    assert any(line.startswith("drivetrain.") for line in log)  # the log was listened to


@pytest.mark.parametrize("body", [b'{"error": {"message": "Incorrect API key provided: %s"}}', b"who is %s?"])
async def test_an_engine_that_quotes_its_key(body: bytes) -> None:
    """What an engine server says of a failure reaches the harness; its key does not."""
    key = PLANTED["VLLM_API_KEY"]
    async with running(Server(http(401, body % key.encode()))) as (server,):
        client = RemoteClient(server.url, api_key=key)
        await client.open()
        with pytest.raises(EngineError) as error:
            await client.post("/x", {}, reply=Any)
        await client.aclose()
    assert "401" in str(error.value) and key not in f"{error.value!r} {error.value}"
