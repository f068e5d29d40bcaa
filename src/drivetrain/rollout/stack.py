"""The parts a run needs, started in order and taken down in reverse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import drivetrain
from drivetrain.cache import Progress
from drivetrain.engines.models import ModelDir, resolve_model
from drivetrain.engines.open import open_engine, start_engine
from drivetrain.engines.probe import ProbeReport
from drivetrain.engines.protocol import Engine
from drivetrain.errors import ConfigError
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.model import load_codec
from drivetrain.gateway.server import GatewayServer
from drivetrain.rollout.config import REFERENCE_AGENTS, RolloutConfig
from drivetrain.rollout.episode import EpisodeRunner
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.selection import Selection
from drivetrain.rollout.socket_folder import socket_folder
from drivetrain.sandboxes.protocol import Limits, SandboxBackend, SandboxSpec
from drivetrain.sandboxes.registry import get_backend
from swe_rl_agent.harness import CLIHarness
from swe_rl_agent.registry import get_agent
from swe_rl_env.building.build import BuiltTask
from swe_rl_env.building.prepare import prepare_task
from swe_rl_env.tasks.catalog import find_task, get_task
from swe_rl_env.tasks.model import SweTask


async def build_tasks(
    tasks: Sequence[SweTask], backend: SandboxBackend, tell: Progress, cache: Path | None = None
) -> dict[str, BuiltTask]:
    """Build every task, or take it from the cache.

    Raises:
        ConfigError: an archive that is not what the task says.
        SandboxError: a task comes as an image that ``backend`` cannot start.
    """
    return {task.instance_id: await prepare_task(task, backend, cache, tell) for task in tasks}


@asynccontextmanager
async def open_stack(
    config: RolloutConfig,
    run: RunDir,
    tell: Progress,
    *,
    engine: Engine | None = None,
    model: ModelDir | None = None,
    tasks: Sequence[SweTask] | None = None,
) -> AsyncIterator[EpisodeRunner]:
    """Everything that episodes of a run share; gone when the context ends.

    All names are checked before anything is built, so that bad input leaves nothing half-written.

    Args:
        engine: a started engine to use instead of the one that ``config`` names; ``model`` is then its model.
        tasks: among which the names in ``config.tasks`` are looked up; None = the tasks of this package.

    Raises:
        ConfigError, MissingDependency: unknown task, agent, model or sandbox; a missing program; an engine server whose
            samples cannot be trained on.
        EngineError: an engine server is not ready in time.
    """
    wanted = [find_task(i, tasks) if tasks is not None else get_task(i) for i in dict.fromkeys(config.tasks)]
    backend = get_backend(config.sandbox)
    chosen = [get_agent(name, variant=config.variant) for name in config.agents if name not in REFERENCE_AGENTS]
    harnesses: dict[str, CLIHarness] = {harness.name: harness for harness in chosen}
    async with AsyncExitStack() as stack:
        stack.push_async_callback(backend.aclose)
        await _try_sandbox(backend, config.image)
        for harness in harnesses.values():
            await asyncio.to_thread(harness.prepare, None, tell)
        if config.needs_model and model is None:
            model = await asyncio.to_thread(resolve_model, config.model, None, tell)
        built = await build_tasks(wanted, backend, tell)
        gateway: Gateway | None = None
        socket: Path | None = None
        probe: ProbeReport | None = None
        if config.needs_model and model is not None:
            gateway, socket, probe = await _open_gateway(stack, config, run, tell, model, engine)
        selection = Selection.of(config.train_labels, {name: h.preset.labels for name, h in harnesses.items()})
        run.write_info(
            {
                "drivetrain": drivetrain.__version__,
                "config": config,
                "selection": selection,
                "model": {"name": model.name, "path": str(model.path)} if model is not None else None,
                "template_sha256": gateway.codec.template.sha256 if gateway is not None else None,
                "engine": gateway.engine.name if gateway is not None else None,
                "probe": probe.findings if probe is not None else None,
                "policy_version": gateway.engine.policy_version if gateway is not None else None,
                "agents": {name: harness.bundle.sha256 for name, harness in harnesses.items()},
            }
        )
        yield EpisodeRunner(
            config, backend, built, harnesses, run, gateway=gateway, gateway_socket=socket, selection=selection
        )


async def _try_sandbox(backend: SandboxBackend, image: str | None) -> None:
    """Start one sandbox and close it: a machine that cannot should say so before anything is downloaded.

    Raises:
        MissingDependency, SandboxError: why it cannot.
    """
    box = await backend.create(SandboxSpec(image=image, limits=Limits(ttl_s=60)))
    await box.close()


async def _open_gateway(
    stack: AsyncExitStack, config: RolloutConfig, run: RunDir, tell: Progress, model: ModelDir, engine: Engine | None
) -> tuple[Gateway, Path, ProbeReport | None]:
    codec = load_codec(model, reasoning=config.reasoning)
    if not codec.template.renders_tools:
        raise ConfigError(
            f"the chat template of {model.name} renders no tools, so the policy would not see the agent's tools.",
            fix="Put a tool-aware chat_template.jinja into the model directory.",
        )
    probe: ProbeReport | None = None
    if engine is None:
        spec = config.engine
        engine = open_engine(
            spec, model, dtype=config.dtype, threads=config.threads, max_batch=config.concurrency, tell=tell
        )
        stack.push_async_callback(engine.aclose)
        tell(f"connecting to {', '.join(spec.urls)}" if spec.is_remote else f"loading {model.name}")
        probe = await start_engine(engine, spec, codec, tell)
    folder = stack.enter_context(socket_folder())
    gateway = Gateway(engine, codec, run.journal, model=model.name)
    server = GatewayServer(gateway)
    stack.push_async_callback(server.aclose)
    await server.listen_unix(folder / "gateway.sock")
    return gateway, folder / "gateway.sock", probe
