"""PID 1 of a container: connects to the owner's socket, then is ``init.py``.

Started as ``python -I -S connect.py SOCKET``. The owner accepts this one connection and takes the name away.
"""

# ruff: noqa: PTH100, PTH120
from __future__ import annotations

import _socket
import os
import sys


def main() -> None:
    control = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
    control.connect(sys.argv[1])
    sys.argv[1] = str(control.detach())
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import init  # type: ignore[import-not-found]

    init.main()


if __name__ == "__main__":
    main()
