"""What goes wrong between here and Hugging Face."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from drivetrain.errors import ConfigError
from drivetrain.sandboxes import SandboxGone, SandboxSpec, SandboxStartError, SandboxUnsupported
from drivetrain.sandboxes.hf import HFBackend
from drivetrain.sandboxes.remote.labels import KEY_OWNER, owner_key
from tests.sandboxes.doubles import box as boxes
from tests.sandboxes.doubles.e2b_server import Faults
from tests.sandboxes.doubles.hf_server import TOKEN, HFServer, shared_server


@pytest.fixture(scope="module")
def hf_server() -> Iterator[HFServer]:
    constants = pytest.importorskip("huggingface_hub.constants")
    if reason := boxes.missing():
        pytest.skip(reason)
    if not constants.ENDPOINT.startswith("http://127.0.0.1:"):
        pytest.skip(f"the SDK is bound to {constants.ENDPOINT}")
    with shared_server() as made:
        yield made


@pytest.fixture
async def hf(hf_server: HFServer, tmp_path: Path) -> AsyncIterator[HFBackend]:
    hf_server.faults = Faults()
    made = HFBackend(token=TOKEN, scope=tmp_path.name, relay_port=0, dial_port=0)
    yield made
    hf_server.faults = Faults()
    await made.aclose()
    mine = owner_key(tmp_path.name)
    left = [job for job in hf_server.jobs.values() if job.stage == "RUNNING" and job.labels.get(KEY_OWNER) == mine]
    assert left == [], "a Job is left"


OPEN = SandboxSpec(network="open")


@pytest.mark.case("F7")
async def test_a_command_runs_once_whatever_happens_to_the_calls(hf: HFBackend, hf_server: HFServer) -> None:
    box = await hf.create(OPEN)
    for number, fault in enumerate(["502 exec", "sever exec", "502 write", "lose write", "429 exec"], 1):
        hf_server.faults.left[fault] = 1
        done = await box.exec(["sh", "-c", "echo a line >> log; wc -l < log"])
        assert (done.exit_code, done.stdout) == (0, b"%d\n" % number), fault
        assert hf_server.faults.left[fault] == 0, "the fault did not happen"


async def test_a_lost_reply_to_create_is_no_second_job(hf: HFBackend, hf_server: HFServer) -> None:
    before = len(hf_server.jobs)
    hf_server.faults.left["lose post"] = 1
    box = await hf.create(OPEN)
    assert (await box.exec(["echo", "here"])).stdout == b"here\n"
    assert len(hf_server.jobs) == before + 1


async def test_a_job_that_ends_is_a_sandbox_that_is_gone(hf: HFBackend, hf_server: HFServer) -> None:
    box = await hf.create(OPEN)
    job = await box.start(["sleep", "100"])
    hf_server.vanish(box.provider_id)  # type: ignore[attr-defined]
    with pytest.raises(SandboxGone):
        await job.wait(60)
    with pytest.raises(SandboxGone):
        await box.exec(["true"])


async def test_credentials_and_images_are_named(hf_server: HFServer, hf: HFBackend) -> None:
    with pytest.raises(ConfigError, match="HF_TOKEN"):
        await HFBackend(token="hf_wrong").create(OPEN)
    with pytest.raises(SandboxStartError, match="no-such-image"):
        await hf.create(SandboxSpec(image="no-such-image", network="open"))


async def test_a_network_that_cannot_be_closed_is_refused(hf: HFBackend) -> None:
    with pytest.raises(SandboxUnsupported, match="allow_open"):
        await hf.create(SandboxSpec())


async def test_without_a_token_it_says_so_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    backend = HFBackend()
    with pytest.raises(ConfigError, match="there is no token"):
        await asyncio.wait_for(backend.reap(), 10)
    await backend.aclose()
