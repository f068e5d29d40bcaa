"""``HFBackend``: sandboxes as Hugging Face Jobs, through ``huggingface_hub`` (extra ``hf``)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from drivetrain.errors import ConfigError, MissingDependency
from drivetrain.sandboxes.protocol import (
    Feature,
    Reach,
    SandboxError,
    SandboxGone,
    SandboxSpec,
    SandboxUnsupported,
)
from drivetrain.sandboxes.remote.backend import Box, RemoteBackend
from drivetrain.sandboxes.remote.times import LEASE_S
from drivetrain.sandboxes.remote.transport import Busy, LinkLost, Reply, Transport

if TYPE_CHECKING:
    import huggingface_hub

logger = logging.getLogger(__name__)

DEFAULT_RELAY_PORT = 8399
DEFAULT_DIAL_PORT = 8398
DEFAULT_IMAGE = "python:3.12"
# A blocking call each; a sandbox with a command under way has one that waits.
THREADS = 64
_BUSY = (429, 503)
_LOST = (500, 502, 504)
_OVER = ("COMPLETED", "ERROR", "DELETED", "CANCELED")

Result = TypeVar("Result")


def _sdk() -> Any:
    try:
        import huggingface_hub
        from huggingface_hub import Sandbox  # noqa: F401 (recent versions only)
    except ImportError as error:
        raise MissingDependency(
            "The hf backend needs huggingface_hub 2.4 or newer.", fix="Install it: pip install 'drivetrain[hf]'."
        ) from error
    return huggingface_hub


def _after(error: Exception) -> float | None:
    """What a Retry-After header asks for, in seconds."""
    response = getattr(error, "response", None)
    value = response.headers.get("Retry-After", "") if response is not None else ""
    return float(value) if value.replace(".", "", 1).isdigit() else None


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    """The SDK's exceptions as ours."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except (errors.SandboxError, errors.HfHubHTTPError) as error:
        status = getattr(error, "status_code", None)
        if status is None and getattr(error, "response", None) is not None:
            status = error.response.status_code  # type: ignore[union-attr]
        text = f"Hugging Face could not {what}: {error}"
        if status in _BUSY:
            raise Busy(text, after_s=_after(error)) from error
        if status in (401, 403) or "token is required" in str(error):
            raise ConfigError(text, fix="Set HF_TOKEN to a token that may run Jobs.") from error
        if status in _LOST or "connection lost" in str(error) or "requested range" in str(error):
            raise LinkLost(text) from error
        if status == 404:
            raise FileNotFoundError(text) from error
        raise SandboxError(text) from error
    except (httpx2.HTTPError, OSError) as error:
        raise LinkLost(f"Hugging Face could not {what}: {error!r}.") from error


class HFTransport:
    """Implements ``Transport`` with one ``huggingface_hub.Sandbox``, whose client blocks: every call in a thread."""

    def __init__(self, backend: HFBackend, box: huggingface_hub.Sandbox) -> None:
        self._backend = backend
        self._box = box

    @property
    def id(self) -> str:
        """Id of the Job."""
        return self._box.id

    async def _call(self, what: str, call: Callable[[], Result]) -> Result:
        try:
            return await self._backend.thread(what, call)
        except (LinkLost, FileNotFoundError):
            # The proxy in front of a Job that has ended says the same as a bad connection.
            if await self._backend.is_over(self.id):
                raise SandboxGone(f"The sandbox is gone: its Job has ended ({what}).") from None
            raise

    async def run(self, argv: list[str], *, timeout_s: float) -> Reply:
        """Through the sandbox server in the Job; a failing command is no error."""
        done = await self._call(
            "run a command", lambda: self._box.run(argv, shell=False, timeout=timeout_s, check=False)
        )
        return Reply(done.exit_code if done.exit_code is not None else 137, done.stdout, done.stderr)

    async def put(self, path: str, data: bytes) -> None:
        """Through the sandbox server."""
        await self._call(f"write {path}", lambda: self._box.files.write(path, data))

    async def get(self, path: str) -> bytes:
        """Through the sandbox server."""
        return await self._call(f"read {path}", lambda: self._box.files.read(path))

    async def reach(self, port: int) -> Reach:
        """The Jobs proxy, then the sandbox server's."""
        return Reach(self._box.proxy_url_for(port, scheme=self._backend.scheme).rstrip("/"), self._box.proxy_headers)

    async def renew(self, lifetime_s: int) -> None:  # noqa: ARG002 (a Job's lifetime is fixed)
        """Any request puts the idle time-out off."""
        await self._call("extend the time-out", self._box.processes)

    async def snapshot(self) -> str:
        """Jobs have none."""
        raise SandboxUnsupported("Hugging Face sandboxes have no snapshots.")

    async def kill(self) -> None:
        """Cancel the Job."""
        await self._backend.cancel(self.id)
        self._box.close()


class HFBackend(RemoteBackend):
    """Implements ``SandboxBackend`` with one Hugging Face Job per sandbox. ``spec.image`` is a Docker image.

    An image needs python3 3.9+ and what the SDK says (/bin/sh; wget or curl; sha256sum). Jobs always reach the
    internet: a spec that forbids it is refused unless ``allow_open``. The endpoint is the SDK's (``HF_ENDPOINT``).

    Args:
        flavor: hardware of the Job.
        allow_open: accept ``network="none"`` and ``"gateway"`` although the internet stays open; said in the log.
        relay_port: TCP port inside at which a ``network="gateway"`` sandbox finds the gateway.
        dial_port: TCP port inside that is dialled from here.
        scope: ``reap`` leaves sandboxes of another scope alone (two runs of one user that share an account).
        namespace: user or organization whose Jobs they are; None for the token's.
        token: None for what the SDK finds (``HF_TOKEN``, login).
        start_timeout_s: how long a Job may take to come up.
    """

    name = "hf"
    features: frozenset[Feature] = frozenset({"image", "mount", "overlay", "pids_limit", "reach"})

    def __init__(
        self,
        *,
        flavor: str = "cpu-basic",
        allow_open: bool = False,
        relay_port: int = DEFAULT_RELAY_PORT,
        dial_port: int = DEFAULT_DIAL_PORT,
        scope: str = "",
        namespace: str | None = None,
        token: str | None = None,
        start_timeout_s: float = 180.0,
    ) -> None:
        super().__init__(relay_port=relay_port, dial_port=dial_port, scope=scope)
        self._flavor = flavor
        self._allow_open = allow_open
        self._namespace = namespace
        self._token = token
        self._start_timeout_s = start_timeout_s
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="hf-sandbox")

    @property
    def scheme(self) -> str:
        """Of sandboxes' URLs; an endpoint without TLS has sandboxes without."""
        return "https://" if _sdk().constants.ENDPOINT.startswith("https://") else "http://"

    async def thread(self, what: str, call: Callable[[], Result]) -> Result:
        """A blocking call of the SDK, with its exceptions as ours.

        Raises:
            ConfigError: there is no token, said before anything waits for a network.
        """

        def work() -> Result:
            if self._token is None and _sdk().get_token() is None:
                raise ConfigError(
                    f"Hugging Face cannot {what}: there is no token.", fix="Set HF_TOKEN to a token that may run Jobs."
                )
            with _translated(what):
                return call()

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _api(self) -> Any:
        return _sdk().HfApi(token=self._token)

    async def is_over(self, job_id: str) -> bool:
        """Whether the Job has ended; False when that cannot be asked."""
        try:
            job = await self.thread(
                "look at a Job", lambda: self._api().inspect_job(job_id=job_id, namespace=self._namespace)
            )
        except FileNotFoundError:
            return True
        except SandboxError:
            return False
        return str(getattr(job.status.stage, "value", job.status.stage)) in _OVER

    async def cancel(self, job_id: str) -> None:
        """End a Job; one that is gone is fine."""
        with contextlib.suppress(FileNotFoundError):
            await self.thread("cancel a Job", lambda: self._api().cancel_job(job_id=job_id, namespace=self._namespace))

    def _check(self, spec: SandboxSpec) -> None:
        super()._check(spec)
        if spec.network != "open" and not self._allow_open:
            raise SandboxUnsupported(
                f'Hugging Face Jobs always reach the internet; this spec asks for network="{spec.network}".',
                fix='Use network="open", HFBackend(allow_open=True), or a backend that can close it.',
            )

    def _warn(self, spec: SandboxSpec) -> None:
        if not self._warned and spec.network != "open":
            logger.warning('hf sandboxes reach the internet although the spec says network="%s"', spec.network)
        super()._warn(spec)

    async def _new_box(
        self,
        spec: SandboxSpec,
        metadata: dict[str, str],
        lifetime_s: int,  # noqa: ARG002 (the idle time-out is the lease)
    ) -> Transport:
        box = await self.thread(
            "create a sandbox",
            lambda: _sdk().Sandbox.create(
                spec.image or DEFAULT_IMAGE,
                flavor=self._flavor,
                idle_timeout=int(LEASE_S),
                labels=metadata,
                namespace=self._namespace,
                start_timeout=self._start_timeout_s,
                token=self._token,
            ),
        )
        return HFTransport(self, box)

    async def _adopt(self, box_id: str) -> Transport:
        box = await self.thread(
            "connect to a sandbox",
            lambda: _sdk().Sandbox.connect(box_id, namespace=self._namespace, token=self._token),
        )
        return HFTransport(self, box)

    async def _find(self, metadata: dict[str, str]) -> list[Box]:
        def find() -> list[Box]:
            api = self._api()
            namespace = self._namespace or api.whoami()["name"]
            jobs = api.list_jobs(labels=metadata, status=["RUNNING", "SCHEDULING"], namespace=namespace)
            return [Box(job.id, dict(job.labels or {})) for job in jobs]

        return await self.thread("list Jobs", find)

    async def _kill_box(self, box_id: str) -> None:
        await self.cancel(box_id)

    async def aclose(self) -> None:
        """Close every sandbox this backend still owns; idempotent."""
        await super().aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="hf-sandbox")
