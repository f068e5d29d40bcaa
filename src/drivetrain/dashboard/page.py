"""The page: built files of ``frontend/dashboard``, and what a browser may do with them."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources

from drivetrain.viewer.page import page_program, page_style

_TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "html": "text/html"}
FILES = ("dashboard.js", "dashboard.css", "icon.svg")
"""What the page loads; nothing else of the folder is served."""


@cache
def asset(name: str) -> tuple[bytes, str, str]:
    """Bytes, media type and entity tag of a built file."""
    data = (resources.files("drivetrain.dashboard") / "assets" / name).read_bytes()
    media = _TYPES[name.rpartition(".")[2]]
    return data, media, f'"{hashlib.sha256(data).hexdigest()[:32]}"'


def security_headers(*, trace: bool = False) -> dict[str, str]:
    """No script, style or connection but the page's own; with ``trace`` the viewer's program and style too, by hash."""
    script = f" {_hash(page_program())}" if trace else ""
    style = f" {_hash(page_style())}" if trace else ""
    policy = [
        "default-src 'none'",
        f"script-src 'self'{script}",
        f"style-src 'self'{style}",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    return {
        "Content-Security-Policy": "; ".join(policy),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
