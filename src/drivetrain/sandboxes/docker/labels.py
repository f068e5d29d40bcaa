"""Labels of our containers and images on the engine: whose they are, and until when."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from drivetrain.sandboxes.label import Label

_PREFIX = "dev.drivetrain."
SANDBOX = f"{_PREFIX}sandbox"
SNAPSHOT = f"{_PREFIX}snapshot"
ROOT = f"{_PREFIX}root"
_USER = f"{_PREFIX}user"
_OVERLAYS = f"{_PREFIX}overlays"


def make_labels(kind: str, label: Label, root: Path, overlays: Sequence[str] = ()) -> dict[str, str]:
    """Labels of a container (``kind`` is SANDBOX) or of a snapshot's image (SNAPSHOT).

    All names are always set: an image passes its labels on to its containers, and a container to its image.

    Args:
        overlays: places in a snapshot that hold the content of overlay mounts as it was.
    """
    values = {SANDBOX: "", SNAPSHOT: ""}
    values[kind] = msgspec.json.encode(label).decode()
    places = msgspec.json.encode(list(overlays)).decode()
    return {**values, ROOT: str(root), _USER: str(os.getuid()), _OVERLAYS: places}


def kept_overlays(labels: Mapping[str, str]) -> frozenset[str]:
    """Targets of overlay mounts whose content an image has already."""
    try:
        return frozenset(msgspec.json.decode(labels.get(_OVERLAYS, "[]"), type=list[str]))
    except msgspec.MsgspecError:
        return frozenset()


def read_labels(kind: str, labels: Mapping[str, str] | None, root: Path) -> Label | None:
    """The label; None when it is not of this kind, this root, this user and this host."""
    labels = labels or {}
    if labels.get(ROOT) != str(root) or labels.get(_USER) != str(os.getuid()):
        return None
    try:
        label = msgspec.json.decode(labels.get(kind, ""), type=Label)
    except msgspec.MsgspecError:
        return None
    return label if label.host == socket.gethostname() else None


def as_changes(labels: Mapping[str, str]) -> list[str]:
    """The labels as Dockerfile lines, as ``commit`` wants them."""
    return [f"LABEL {name}={_quote(value)}" for name, value in labels.items()]


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("\n", " ")
    return f'"{escaped}"'
