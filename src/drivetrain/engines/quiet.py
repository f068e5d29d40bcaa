"""Keep the progress bars of transformers off other people's terminals."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def no_progress_bars() -> Iterator[None]:
    """Bars off inside, as before outside. Process-wide, like the switch itself."""
    from transformers.utils import logging

    switch: Any = logging
    before = switch.is_progress_bar_enabled()
    switch.disable_progress_bar()
    try:
        yield
    finally:
        if before:
            switch.enable_progress_bar()
