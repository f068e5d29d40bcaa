"""Where the double of Hugging Face listens: chosen before ``huggingface_hub`` is imported, which reads it only then."""

from __future__ import annotations

import os
import socket
import sys

LIVE = "DRIVETRAIN_LIVE_HF"


def reserve() -> None:
    """A free port of this process, as the SDK's endpoint; no test reaches the real one unless it is asked for."""
    if "huggingface_hub" in sys.modules or os.environ.get(LIVE):
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{probe.getsockname()[1]}"
