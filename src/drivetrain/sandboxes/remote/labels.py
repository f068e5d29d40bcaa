"""Our label on a provider's box: metadata of short strings that say whose it is and until when."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

import msgspec

from drivetrain.sandboxes.label import Label, same_world, started

KEY_OWNER = "drivetrain-owner"
KEY_ID = "drivetrain-id"
KEY_LABEL = "drivetrain-label"
DEADLINE_GRACE_S = 120.0


def owner_key(scope: str) -> str:
    """This user on this machine, and the backend's scope: what the reaper asks the provider for."""
    return "-".join([str(os.getuid()), socket.gethostname(), *([scope] if scope else [])])


def to_metadata(label: Label, scope: str) -> dict[str, str]:
    """The label as metadata."""
    return {
        KEY_OWNER: owner_key(scope),
        KEY_ID: label.id,
        KEY_LABEL: msgspec.json.encode(label).decode(),
    }


def from_metadata(metadata: Mapping[str, str], scope: str) -> Label | None:
    """The label in a box's metadata; None when it is not ours."""
    try:
        label = msgspec.json.decode(metadata.get(KEY_LABEL, ""), type=Label)
    except msgspec.MsgspecError:
        return None
    return label if metadata.get(KEY_ID) == label.id and metadata.get(KEY_OWNER) == owner_key(scope) else None


def is_left_over(label: Label) -> bool:
    """Whether its owner is dead (as far as that can be told from here) or its deadline long past."""
    if time.time() > label.deadline + DEADLINE_GRACE_S:
        return True
    return same_world(label) and started(label.owner_pid) != label.owner_started
