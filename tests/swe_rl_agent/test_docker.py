"""Agents in containers of a real Docker: the bundle mounted read-only, no network, the gateway through its socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.sandboxes import Mount, SandboxHandle, SandboxSpec
from drivetrain.tokens.codec import TokenCodec
from swe_rl_agent import CLIHarness, list_agents
from tests.conformance.sandbox.kits.docker import BARE_IMAGE, BASE_IMAGE, DockerKit

from .agents_kit import WAYS
from .conftest import Agents, Boxes
from .native_kit import attempts_elsewhere, make_bench, tool_results
from .test_every_agent import LongBench

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

CXX_RUNTIME = tuple(f"/usr/lib/x86_64-linux-gnu/{name}" for name in ("libstdc++.so.6", "libgcc_s.so.1"))


@pytest.fixture(scope="module")
def docker() -> Iterator[DockerKit]:
    kit = DockerKit()
    if why := kit.missing():
        pytest.skip(why)
    kit.start()
    yield kit
    kit.close()


@pytest.fixture
async def containers(docker: DockerKit, tmp_path: Path) -> AsyncIterator[Boxes]:
    """Sandboxes that start from Debian's image, named as ``--image`` names one, whose own C++ runtime is no use."""
    root = tmp_path / "root"
    backend = docker.make(root)
    useless = tmp_path / "useless.so"
    useless.write_bytes(b"no library\n")

    @asynccontextmanager
    async def make(agent: CLIHarness, socket: Path) -> AsyncIterator[SandboxHandle]:
        mounts = (*agent.mounts(), *(Mount(source=useless, target=library) for library in CXX_RUNTIME))
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
@pytest.mark.parametrize("name", list_agents())
async def test_a_task_in_a_container_is_one_exact_chain(
    name: str, containers: Boxes, socket_path: Path, tiny_model: ModelDir, codec: TokenCodec
) -> None:
    """The bundle needs nothing of the image but glibc; the commands of the agent do not see how it finds the rest."""
    way = WAYS[name]
    bench = make_bench(name, None, containers, socket_path.parent, tiny_model, codec, LongBench)
    done = await bench.run(way.script)
    killed = {137, 143} if bench.agent.preset.linger_s else set()  # it may stay after its last word
    assert done.outcome.stop == "completed" and done.outcome.exit_code in {0, *killed}, done.summary()
    assert done.files["answer.txt"] == b"right\n"
    done.assert_one_exact_chain(5)
    assert attempts_elsewhere(bench.network) == {}
    results = tool_results(done)
    assert "HOME=" in results and "LD_LIBRARY_PATH" not in results and "LD_PRELOAD" not in results


async def test_an_image_without_glibc_is_said_to_be_one(docker: DockerKit, tmp_path: Path, agent_of: Agents) -> None:
    """Codex, which is static, starts there all the same."""
    backend = docker.make(tmp_path / "root")
    agent, static = agent_of("pi"), agent_of("codex")
    box = await backend.create(SandboxSpec(image=BARE_IMAGE, mounts=(*agent.mounts(), *static.mounts())))
    try:
        started = await box.exec([f"{static.bundle.target}/bin/codex", "--version"])
        assert (started.exit_code, started.stdout.split()[-1:]) == (0, [static.bundle.version.encode()]), started
        outcome = await agent.run(
            box,
            task="Do nothing.",
            base_url="http://127.0.0.1:1",
            api_key="0123456789",
            model="policy",
            context_length=8192,
            cwd=box.workdir,
            deadline_s=60.0,
            max_output_tokens=512,
        )
    finally:
        await box.close()
        await backend.aclose()
    assert (outcome.stop, outcome.infrastructure) == ("crashed", True)
    assert f"pi {agent.bundle.version} needs glibc 2.28 or newer, and this image has none" in outcome.detail
