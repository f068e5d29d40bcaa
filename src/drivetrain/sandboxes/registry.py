"""Sandbox backends by name."""

from __future__ import annotations

import difflib
from importlib import import_module
from importlib.metadata import entry_points

from drivetrain.errors import ConfigError
from drivetrain.sandboxes.protocol import SandboxBackend

ENTRY_POINT_GROUP = "drivetrain.sandboxes"

# name -> module:class; imported only when asked for.
_BUILTIN = {
    "local": "drivetrain.sandboxes.local:LocalBackend",
    "docker": "drivetrain.sandboxes.docker:DockerBackend",
    "e2b": "drivetrain.sandboxes.e2b:E2BBackend",
    "hf": "drivetrain.sandboxes.hf:HFBackend",
}


def backend_names() -> list[str]:
    """Every name :func:`get_backend` knows: the built-in ones and those of installed packages."""
    return sorted({*_BUILTIN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def get_backend(name: str) -> SandboxBackend:
    """A new backend with its default options.

    Third parties register a callable without required arguments in the entry point group ``drivetrain.sandboxes``; a
    built-in name cannot be taken over.

    Raises:
        ConfigError: no such name, or the registered object is no backend.
        MissingDependency: what the backend needs is not installed (local: when the first sandbox is created).
    """
    if name in _BUILTIN:
        module, _, attribute = _BUILTIN[name].partition(":")
        factory = getattr(import_module(module), attribute)
    else:
        points = entry_points(group=ENTRY_POINT_GROUP, name=name)
        if not points:
            known = backend_names()
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {close[0]!r}? " if close else ""
            raise ConfigError(f"There is no sandbox backend {name!r}.", fix=f"{hint}Known: {', '.join(known)}.")
        factory = next(iter(points)).load()
    backend = factory()
    if not isinstance(backend, SandboxBackend):
        raise ConfigError(f"What is registered as sandbox backend {name!r} is not a SandboxBackend.")
    return backend
