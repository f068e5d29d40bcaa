"""Every backend that goes through the suite. A new one: a module with a :class:`~.base.Kit`, and its name here.

``DRIVETRAIN_SANDBOXES=local,docker`` runs these backends only, and fails where one of them cannot run here.
"""

from __future__ import annotations

import functools
import os
from importlib import import_module

from tests.conformance.sandbox.kits.base import Kit

# name -> module:class
_KITS = {
    "local": "tests.conformance.sandbox.kits.local:LocalKit",
    "docker": "tests.conformance.sandbox.kits.docker:DockerKit",
    "e2b": "tests.conformance.sandbox.kits.e2b:E2BKit",
    "hf": "tests.conformance.sandbox.kits.hf:HFKit",
}


def wanted() -> list[str] | None:
    """The backends that the caller names; None when all run that can."""
    named = os.environ.get("DRIVETRAIN_SANDBOXES")
    return named.split(",") if named else None


def known_kits() -> list[str]:
    """Names of all backends with a kit."""
    return list(_KITS)


def kit_names() -> list[str]:
    """Names of the backends to run."""
    return wanted() or list(_KITS)


@functools.cache
def get_kit(name: str) -> Kit:
    """The kit of this process."""
    module, _, attribute = _KITS[name].partition(":")
    kit: Kit = getattr(import_module(module), attribute)()
    return kit
