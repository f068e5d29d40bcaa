"""Images by reference: found, or pulled once however many sandboxes want one, with progress and back-off."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from drivetrain.cache import Progress
from drivetrain.sandboxes.docker.engine import Engine, EngineError
from drivetrain.sandboxes.end import end
from drivetrain.sandboxes.protocol import SandboxStartError

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_TRIES = 4  # for failures that are no rate limit: it may be a flaw of a moment, or the network has no way there


class ImageNotFound(SandboxStartError):
    """Neither the engine nor the registry has this image."""


class ImageRefused(SandboxStartError):
    """The registry wants (other) credentials for this image."""


class RegistryBusy(SandboxStartError):
    """The registry limited our rate, or failed, until the deadline of the pull."""


class Image(msgspec.Struct, frozen=True):
    """An image the engine has. ``digest`` is the registry's where it is known, else the engine's id."""

    id: str
    digest: str
    env: dict[str, str]
    labels: dict[str, str] = {}


class Images:
    """Finds and pulls images.

    Args:
        progress: receives a line at most each second while an image is pulled.
        auth: user name, password and the like for the registry (Engine API: X-Registry-Auth).
        timeout_s: how long a pull may take, retries included.
    """

    def __init__(self, engine: Engine, *, progress: Progress, auth: Mapping[str, str] | None, timeout_s: float) -> None:
        self._engine = engine
        self._progress = progress
        self._auth = auth
        self._timeout_s = timeout_s
        self._pulls: dict[str, asyncio.Task[None]] = {}

    async def ensure(self, reference: str, *, pull: bool = True) -> Image:
        """The image, pulled when it is missing.

        Raises:
            ImageNotFound: there is no such image.
            ImageRefused: the registry wants credentials.
            RegistryBusy: rate limits or failures until the deadline.
            SandboxError: the engine failed.
        """
        found = await self._engine.image(reference)
        if found is None and pull:
            await self._pull_once(reference)
            found = await self._engine.image(reference)
        if found is None:
            raise ImageNotFound(f"There is no image {reference!r}.", fix="Check its name and tag.")
        return _image(found)

    async def _pull_once(self, reference: str) -> None:
        """Join the pull that runs, or start one; a cancelled caller does not stop it for the others."""
        task = self._pulls.get(reference)
        if task is None:
            task = self._pulls[reference] = asyncio.create_task(self._pull(reference))
            task.add_done_callback(lambda done: self._finished(reference, done))
        await asyncio.shield(task)

    def _finished(self, reference: str, task: asyncio.Task[None]) -> None:
        self._pulls.pop(reference, None)
        if not task.cancelled():
            task.exception()  # nobody has to be waiting

    async def close(self) -> None:
        """Stop pulling."""
        await end(*self._pulls.values())

    async def _pull(self, reference: str) -> None:
        until = time.monotonic() + self._timeout_s
        pause = _FIRST_PAUSE_S
        failures = 0
        while True:
            try:
                await self._try_to_pull(reference, max(until - time.monotonic(), 0.001))
                return
            except EngineError as error:
                limited = _is_rate_limit(error)
                if not limited:
                    _raise_for_good(reference, error)
                    failures += 1
                wait = pause * random.uniform(0.75, 1.25)
                if failures == _TRIES or time.monotonic() + wait > until:
                    raise RegistryBusy(
                        f"Could not pull {reference}: {error.said}.",
                        fix="Log in to the registry for a higher rate, use a mirror, or pull the image beforehand."
                        if limited
                        else "Check the engine's way to the registry, or pull the image beforehand.",
                    ) from error
                self._progress(f"pulling {reference}: {error.said}; again in {wait:.1f} s")
                await asyncio.sleep(wait)
                pause = min(pause * 2, _LONGEST_PAUSE_S)

    async def _try_to_pull(self, reference: str, timeout_s: float) -> None:
        layers = _Layers()
        said_at = 0.0
        self._progress(f"pulling {reference}")
        async for message in self._engine.pull(reference, self._auth, timeout_s):
            layers.note(message)
            if time.monotonic() - said_at >= 1.0 and layers.total:
                said_at = time.monotonic()
                self._progress(f"pulling {reference}: {layers}")


class _Layers:
    """Sums up a pull's messages, which are per layer."""

    def __init__(self) -> None:
        self._sizes: dict[str, tuple[int, int]] = {}
        self._done: set[str] = set()

    @property
    def total(self) -> int:
        return len(self._sizes) + len(self._done - self._sizes.keys())

    def note(self, message: Mapping[str, Any]) -> None:
        layer, status = message.get("id"), message.get("status")
        detail = message.get("progressDetail") or {}
        if not layer:
            return
        if status == "Downloading" and detail.get("total"):
            self._sizes[layer] = (int(detail.get("current", 0)), int(detail["total"]))
        elif status in ("Pull complete", "Already exists"):
            self._done.add(layer)
            if layer in self._sizes:
                self._sizes[layer] = (self._sizes[layer][1],) * 2

    def __str__(self) -> str:
        now, size = (sum(pair[i] for pair in self._sizes.values()) / 1e6 for i in (0, 1))
        return f"{now:.1f} of {size:.1f} MB, {len(self._done)} of {self.total} layers done"


def _is_rate_limit(error: EngineError) -> bool:
    """Whether more patience helps. The engine has one status (500) for most of what a registry says."""
    said = error.said.lower()
    return error.status == 429 or "toomanyrequests" in said or "too many requests" in said


def _raise_for_good(reference: str, error: EngineError) -> None:
    """Raise when trying again cannot help."""
    said = error.said.lower()
    if "unauthorized" in said or "authentication required" in said or error.status in (401, 403):
        raise ImageRefused(
            f"The registry refuses {reference}: {error.said}.",
            fix="Pass registry_auth, or pull it with `docker login`.",
        ) from error
    missing = ("manifest unknown", "not found", "does not exist", "no such image", "name unknown")
    if error.status == 404 or any(word in said for word in missing):
        raise ImageNotFound(
            f"There is no image {reference!r}: {error.said}.",
            fix="Check its name and tag; a private one needs registry_auth.",
        ) from error
    if error.status in (400, 900) or "invalid reference" in said:
        raise error


def _image(found: Mapping[str, Any]) -> Image:
    digests = found.get("RepoDigests") or []
    digest = str(digests[0]).rpartition("@")[2] if digests else str(found["Id"])
    config = found.get("Config") or {}
    env = [str(each).partition("=") for each in config.get("Env") or []]
    return Image(
        id=str(found["Id"]),
        digest=digest,
        env={name: value for name, _, value in env},
        labels=dict(config.get("Labels") or {}),
    )
