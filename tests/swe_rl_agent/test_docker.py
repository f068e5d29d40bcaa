"""Agents in containers of a real Docker: the bundle mounted read-only, no network, the gateway through its socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.sandboxes import Mount, SandboxHandle, SandboxSpec
from drivetrain.tokens.codec import TokenCodec
from swe_rl_agent import CLIHarness
from tests.conformance.sandbox.kits.docker import BASE_IMAGE, DockerKit

from .agents_kit import WAYS
from .conftest import Boxes
from .native_kit import attempts_elsewhere, make_bench
from .test_every_agent import LongBench

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/libstdc++.so.6")
"""Node needs it. Every image with apt has it; the test image is smaller than that."""

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def docker() -> Iterator[DockerKit]:
    kit = DockerKit()
    if why := kit.missing() or ("" if LIBRARY.exists() else f"there is no {LIBRARY}"):
        pytest.skip(why)
    kit.start()
    yield kit
    kit.close()


@pytest.fixture
async def containers(docker: DockerKit, tmp_path: Path) -> AsyncIterator[Boxes]:
    """Sandboxes that start from Debian's image, named as ``--image`` names one."""
    root = tmp_path / "root"
    backend = docker.make(root)

    @asynccontextmanager
    async def make(agent: CLIHarness, socket: Path) -> AsyncIterator[SandboxHandle]:
        mounts = (*agent.mounts(), Mount(source=LIBRARY.resolve(), target=str(LIBRARY)))
        spec = SandboxSpec(image=BASE_IMAGE, mounts=mounts, network="gateway", gateway_socket=socket)
        box = await backend.create(spec)
        try:
            touched = await box.exec(["touch", f"{agent.bundle.target}/new"])
            assert touched.exit_code != 0, "the bundle is read-only"
            yield box
        finally:
            await box.close()

    yield make
    await backend.aclose()
    assert docker.left(root) == []


@pytest.mark.agent_claim("docker")
@pytest.mark.parametrize("name", ["pi", "claude-code", "codex"])
async def test_a_task_in_a_container_is_one_exact_chain(
    name: str, containers: Boxes, socket_path: Path, tiny_model: ModelDir, codec: TokenCodec
) -> None:
    way = WAYS[name]
    bench = make_bench(name, None, containers, socket_path.parent, tiny_model, codec, LongBench)
    done = await bench.run(way.script, deadline_s=200.0)
    assert (done.outcome.stop, done.outcome.exit_code) == ("completed", 0), done.summary()
    assert done.files["answer.txt"] == b"right\n"
    done.assert_one_exact_chain(5)
    assert attempts_elsewhere(bench.network) == {}
