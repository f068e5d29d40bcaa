"""The inside of the dial-in relay as one file, and how to start it."""

from __future__ import annotations

import functools
import io
import secrets
import zipfile
from pathlib import Path

_ROOM = "dialin"
_MODULES = ("wire", "session", "endpoint", "carrier", "websocket", "inside")
_MAIN = f"from {_ROOM}.inside import main\n\nmain()\n"


def new_secret() -> str:
    """A fresh secret for one sandbox; printable, 256 bits."""
    return secrets.token_urlsafe(32)


@functools.cache
def inside_script() -> bytes:
    """The inside as one file for ``python3``: a zip (not compressed) of the modules it needs; always the same bytes."""
    folder = Path(__file__).parent
    files = {"__main__.py": _MAIN, f"{_ROOM}/__init__.py": ""}
    files |= {f"{_ROOM}/{name}.py": (folder / f"{name}.py").read_text() for name in _MODULES}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)  # the default date is a fixed one
    return out.getvalue()


def inside_argv(
    script: str,
    *,
    secret_file: str,
    relay_port: int,
    dial_port: int,
    python: str = "python3",
    dial_host: str = "0.0.0.0",
    resume_s: float = 60.0,
) -> list[str]:
    """The command that runs the inside; it ends when it is killed.

    Args:
        script: inside path of :func:`inside_script`'s bytes.
        secret_file: inside path of a file with the secret that only its owner can read (mode 0600), or ``-`` to read
            the secret from stdin.
        relay_port: loopback port for the harness; 0 for a free one.
        dial_port: port for the host, on ``dial_host``; 0 for a free one.
        resume_s: seconds for which streams outlive a lost link.
    """
    ports = ["--relay-port", str(relay_port), "--dial-port", str(dial_port), "--dial-host", dial_host]
    return [python, "-I", "-S", script, *ports, "--secret-file", secret_file, "--resume-s", str(resume_s)]
