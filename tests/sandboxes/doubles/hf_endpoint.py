"""Where the double of Hugging Face listens: chosen before ``huggingface_hub`` is imported, which reads it only then."""

from __future__ import annotations

import os
import socket
import sys

_held: list[socket.socket] = []

LIVE = "DRIVETRAIN_LIVE_HF"


def reserve() -> None:
    """A free port of this process, as the SDK's endpoint; no test reaches the real one unless it is asked for."""
    if "huggingface_hub" in sys.modules or os.environ.get(LIVE):
        return
    # Bound and never listening: nobody else is given the port, and the double may share it.
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    place.bind(("127.0.0.1", 0))
    _held.append(place)
    os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{place.getsockname()[1]}"
