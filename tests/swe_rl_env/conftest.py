"""Built tasks and a real local sandbox. Tasks are fetched once into the default cache (network on the first run)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import lru_cache

import pytest
import pytest_asyncio

from drivetrain.sandboxes import SandboxBackend, get_backend
from swe_rl_env import BuiltTask, build_task, get_task

Build = Callable[[str], BuiltTask]


@lru_cache
def _built(instance_id: str) -> BuiltTask:
    return build_task(get_task(instance_id))


@pytest.fixture(scope="session")
def build() -> Build:
    return _built


@pytest.fixture(scope="session")
def xmltodict(build: Build) -> BuiltTask:
    return build("pypi__xmltodict-0.14.2")


@pytest.fixture(scope="session")
def shell_quote(build: Build) -> BuiltTask:
    return build("npm__shell-quote-1.8.3")


@pytest_asyncio.fixture
async def backend() -> AsyncIterator[SandboxBackend]:
    backend = get_backend("local")
    yield backend
    await backend.aclose()
