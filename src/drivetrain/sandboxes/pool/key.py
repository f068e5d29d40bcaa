"""Which specs a warm sandbox may stand in for.

Applied when a sandbox is handed out, so not in the key: ``env`` (the pool adds it to every command, and a waiting
sandbox holds no secrets), ``labels``, and the exact ``ttl_s`` (the pool closes the sandbox at it). Everything else is.
"""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path
from typing import Any

import msgspec

from drivetrain.sandboxes.protocol import SandboxSpec

WARM_LABELS = {"pool": "warm"}


def covering_ttl(ttl_s: float) -> float:
    """The next power of two, seconds: specs whose times to live are near share warm sandboxes."""
    return 2.0 ** math.ceil(math.log2(ttl_s)) if 0 < ttl_s < math.inf else ttl_s


def warm_spec(spec: SandboxSpec, spare_s: float) -> SandboxSpec:
    """What to start ahead for requests like ``spec``; lives ``spare_s`` seconds longer than any of them asks for."""
    limits = msgspec.structs.replace(spec.limits, ttl_s=covering_ttl(spec.limits.ttl_s) + spare_s)
    return msgspec.structs.replace(spec, env={}, labels=WARM_LABELS, limits=limits)


def spec_key(spec: SandboxSpec) -> str:
    """Hash of what a warm sandbox must have been started with.

    A mounted file or folder that was replaced meanwhile, or a gateway that was restarted, makes another key: the
    sandbox would still have the old one.
    """
    sources = [_identity(mount.source, content=not mount.writable) for mount in spec.mounts]
    gateway = None if spec.gateway_socket is None else _identity(spec.gateway_socket, content=True)
    what = (warm_spec(spec, 0.0), sources, gateway)
    return hashlib.sha256(msgspec.json.encode(what, enc_hook=_encode, order="deterministic")).hexdigest()


def _identity(path: Path, *, content: bool) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_mtime_ns) if content else (status.st_dev, status.st_ino)


def _encode(value: Any) -> str:
    if isinstance(value, os.PathLike):
        return os.fsencode(value).hex()
    raise TypeError(f"{type(value).__name__} in a sandbox spec")
