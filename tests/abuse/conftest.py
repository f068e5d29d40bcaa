"""A gateway to abuse; no socket unless a test wants one."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.gateway.conftest import start_rig

__all__ = ["start_rig"]


class Complaints(logging.Handler):
    """Every record of level WARNING and above, from anywhere in the process."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(f"{record.name}: {record.getMessage()} {record.exc_text or record.exc_info or ''}")


@pytest.fixture
def complaints() -> Iterator[list[str]]:
    """What was logged during the test; a test that asks for it looks at it."""
    handler = Complaints()
    logging.getLogger().addHandler(handler)
    yield handler.found
    logging.getLogger().removeHandler(handler)
