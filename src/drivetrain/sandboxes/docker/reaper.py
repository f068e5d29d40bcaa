"""Removes containers, folders and snapshots of dead owners: only those with our label, of this user, root and host."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

from drivetrain.sandboxes.docker.engine import Engine
from drivetrain.sandboxes.docker.labels import ROOT, SANDBOX, SNAPSHOT, read_labels
from drivetrain.sandboxes.label import PREFIX, Label, read_label
from drivetrain.sandboxes.local.reaper import DEADLINE_GRACE_S, owner_is_gone


def is_over(label: Label) -> bool:
    """Whether nobody may still want this sandbox: a dead owner, or a deadline well past."""
    return owner_is_gone(label) or time.time() > label.deadline + DEADLINE_GRACE_S


async def reap(engine: Engine, root: Path) -> list[str]:
    """Remove what is over; the ids of sandboxes and snapshots removed.

    Raises:
        SandboxError: the engine failed.
    """
    reaped: set[str] = set()
    for container in await engine.containers(f"{ROOT}={root}"):
        label = read_labels(SANDBOX, container["Labels"], root)
        if label is not None and is_over(label):
            await engine.remove(container["Id"])
            reaped.add(label.id)
    for folder in await asyncio.to_thread(_dead_folders, root):
        await engine.remove(folder.name)  # an owner killed between the folder and the container leaves none
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        reaped.add(folder.name)
    reaped |= await _reap_snapshots(engine, root)
    return sorted(reaped)


def _dead_folders(root: Path) -> list[Path]:
    try:
        folders = [entry for entry in root.iterdir() if entry.name.startswith(PREFIX) and not entry.is_symlink()]
    except OSError:
        return []
    labels = [(folder, read_label(folder)) for folder in folders]
    return [folder for folder, label in labels if label is not None and label.id == folder.name and is_over(label)]


async def _reap_snapshots(engine: Engine, root: Path) -> set[str]:
    """A snapshot has no deadline: it ends with its owner. One made from another is removed before that one."""
    left: dict[str, str] = {}
    for image in await engine.images(f"{ROOT}={root}"):
        label = read_labels(SNAPSHOT, image.get("Labels"), root)
        if label is not None and owner_is_gone(label):
            left[image["Id"]] = label.id
    reaped: set[str] = set()
    progress = True
    while left and progress:
        progress = False
        for image_id in list(left):
            if await engine.remove_image(image_id):
                reaped.add(left.pop(image_id))
                progress = True
    return reaped
