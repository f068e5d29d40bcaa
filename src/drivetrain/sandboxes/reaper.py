"""Removes what dead owners left behind, in every backend there is; no backend's trouble hides another's result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from drivetrain.errors import ConfigError, DrivetrainError, MissingDependency
from drivetrain.sandboxes.protocol import SandboxBackend
from drivetrain.sandboxes.registry import backend_names, get_backend

ReapOutcome = Literal["ok", "skipped", "failed"]


class ReapReport(msgspec.Struct, frozen=True, kw_only=True):
    """One backend. ``removed`` are ids; ``reason`` says why it was skipped or failed, and what to do about it."""

    backend: str
    outcome: ReapOutcome
    removed: tuple[str, ...] = ()
    reason: str = ""


async def reap_backends(
    names: Sequence[str] | None = None,
    *,
    timeout_s: float = 120.0,
    make: Callable[[str], SandboxBackend] = get_backend,
) -> list[ReapReport]:
    """Reap in the named backends, side by side; in all that are installed and configured when none are named.

    A backend that cannot work here (not installed, no engine, no credentials) is ``skipped``, or ``failed`` when it was
    named.

    Args:
        names: of backends; None for all.
        timeout_s: limit for each backend, seconds.
        make: the way from a name to a backend.

    Raises:
        ConfigError: a name that no backend has.
    """
    known = backend_names()
    wanted = known if names is None else list(dict.fromkeys(names))
    for name in wanted:
        if name not in known:
            get_backend(name)  # raises and says which there are
    return list(await asyncio.gather(*(_reap(name, make, timeout_s, named=names is not None) for name in wanted)))


async def _reap(name: str, make: Callable[[str], SandboxBackend], timeout_s: float, *, named: bool) -> ReapReport:
    try:
        async with asyncio.timeout(timeout_s):
            backend = await asyncio.to_thread(make, name)
            try:
                removed = await backend.reap()
            finally:
                await backend.aclose()
    except (MissingDependency, ConfigError, ImportError) as error:
        return ReapReport(backend=name, outcome="failed" if named else "skipped", reason=str(error))
    except TimeoutError:
        reason = f"It did not finish within {timeout_s:g} s. Look whether its engine or service answers, and try again."
        return ReapReport(backend=name, outcome="failed", reason=reason)
    except DrivetrainError as error:
        return ReapReport(backend=name, outcome="failed", reason=str(error))
    except Exception as error:  # a third party's backend, a bug: the others' results are not lost with it
        return ReapReport(backend=name, outcome="failed", reason=f"{type(error).__name__}: {error}")
    return ReapReport(backend=name, outcome="ok", removed=tuple(sorted(removed)))
