"""Removes containers, folders and snapshots of dead owners: only those with our label, of this user, root and host."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from drivetrain.sandboxes.docker.engine import Engine
from drivetrain.sandboxes.docker.labels import ROOT, SANDBOX, SNAPSHOT, read_labels
from drivetrain.sandboxes.label import LABEL_FILE, PREFIX, Label, read_label
from drivetrain.sandboxes.local.reaper import DEADLINE_GRACE_S, UNLABELLED_AGE_S, owner_is_gone, remove_tree


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
        await asyncio.to_thread(remove_tree, folder)
        reaped.add(folder.name)
    reaped |= await _reap_snapshots(engine, root)
    return sorted(reaped)


def _dead_folders(root: Path) -> list[Path]:
    try:
        folders = [entry for entry in root.iterdir() if entry.name.startswith(PREFIX) and not entry.is_symlink()]
    except OSError:
        return []
    return [folder for folder in folders if _is_dead(folder)]


def _is_dead(folder: Path) -> bool:
    label = read_label(folder)
    if label is not None:
        return label.id == folder.name and is_over(label)
    try:  # its owner was killed before the label was there, or after everything else had gone
        old = time.time() - folder.stat().st_mtime > UNLABELLED_AGE_S
        return old and {entry.name for entry in folder.iterdir()} <= {LABEL_FILE + ".new"}
    except OSError:
        return False


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
