"""Our label on a provider's box: short plain strings that say whose it is and until when."""

from __future__ import annotations

import math
import os
import re
import socket
import time
from collections.abc import Mapping

from drivetrain.sandboxes.label import Label, same_world, started

KEY_OWNER = "drivetrain-owner"
KEY_ID = "drivetrain-id"
_KEY_BOOT = "drivetrain-boot"
_KEY_PIDS = "drivetrain-pids"
_KEY_PROCESS = "drivetrain-process"
_KEY_DEADLINE = "drivetrain-deadline"
_KEY_CALLER = "drivetrain-label-"
DEADLINE_GRACE_S = 120.0


def owner_key(scope: str) -> str:
    """This user on this machine, and the backend's scope: what the reaper asks the provider for."""
    return "-".join([str(os.getuid()), socket.gethostname(), *([scope] if scope else [])])


def to_metadata(label: Label, scope: str) -> dict[str, str]:
    """The label as metadata; providers limit what a value may be, so there is no JSON in it."""
    return {
        **{_KEY_CALLER + name: value for name, value in label.labels.items()},
        KEY_OWNER: owner_key(scope),
        KEY_ID: label.id,
        _KEY_BOOT: label.boot,
        _KEY_PIDS: "".join(re.findall(r"\d", label.pid_namespace)),
        _KEY_PROCESS: f"{label.owner_pid}-{label.owner_started}",
        _KEY_DEADLINE: str(math.ceil(label.deadline)),
    }


def from_metadata(metadata: Mapping[str, str], scope: str) -> Label | None:
    """The label in a box's metadata; None when it is not ours."""
    try:
        pid, _, start = metadata[_KEY_PROCESS].partition("-")
        label = Label(
            id=metadata[KEY_ID],
            host=socket.gethostname(),
            boot=metadata[_KEY_BOOT],
            pid_namespace=f"pid:[{metadata[_KEY_PIDS]}]",
            owner_pid=int(pid),
            owner_started=int(start),
            deadline=float(metadata[_KEY_DEADLINE]),
            labels={
                name.removeprefix(_KEY_CALLER): value
                for name, value in metadata.items()
                if name.startswith(_KEY_CALLER)
            },
        )
    except (KeyError, ValueError):
        return None
    return label if metadata.get(KEY_OWNER) == owner_key(scope) else None


def is_left_over(label: Label) -> bool:
    """Whether its owner is dead (as far as that can be told from here) or its deadline long past."""
    if time.time() > label.deadline + DEADLINE_GRACE_S:
        return True
    return same_world(label) and started(label.owner_pid) != label.owner_started
