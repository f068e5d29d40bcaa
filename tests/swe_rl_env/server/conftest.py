"""One server for the tests that do not change it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("openenv.core.env_server")

from tests.swe_rl_env.server.kit import Served, serve


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    with serve(max_concurrent_envs=6) as running:
        yield running
