"""Weights that move behind the gate: AsyncGRPO's ``weight_transfer``, and GRPOTrainer's ``vllm_generation``.

TRL 1.16 calls, per update, ``pause``, ``send_weights``, ``resume`` and then the worker's ``update_model_version(n)``
(trl.md sections 5.1 and 6). The version is known only there, so the gate opens there: what was sampled before carries
the old version, what is sampled after it the new one, and no call runs in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from drivetrain.engines.fingerprint import Fingerprint
from drivetrain.errors import ConfigError
from drivetrain.rollout.gate import Drain, Gate


class WeightTransfer(Protocol):
    """TRL's ``WeightTransferProtocol``: what moves the weights."""

    def init_weight_transfer(self) -> None:
        """Set up; once, before the first update."""

    def pause(self) -> None:
        """Make the server ready for other weights."""

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Send (name, tensor) pairs."""

    def resume(self) -> None:
        """Let the server go on."""

    def destroy(self) -> None:
        """Let go; once, at the end."""


class Versioned(Protocol):
    """What a worker tells of TRL's ``update_model_version``."""

    def attach(self) -> None:
        """A worker will call :meth:`publish`."""

    def publish(self, policy_version: int) -> None:
        """The weights served now are this version."""


class FencedWeights:
    """``AsyncGRPOTrainer(weight_transfer=FencedWeights(inner, gate))``; its worker must publish to it
    (:class:`~drivetrain.training.inprocess.InProcessWorker` or
    :class:`~drivetrain.training.fenced_worker.FencedRolloutWorker` with ``weights=`` this).

    Args:
        inner: what moves the weights, e.g. TRL's ``WeightTransferClient``.
        gate: of the gateway that serves the agents.
        drain: what becomes of calls in flight.
        fingerprint: called after an update; what it says of a fixed text the servers must say too before the gate opens
            (:func:`drivetrain.engines.fingerprint_torch.fingerprint_of`). For a transfer that can fail in silence.

    Raises (from :meth:`pause`):
        FenceTimeout, FenceBusy, EngineError: the gate could not be closed; the weights were not touched.
    """

    def __init__(
        self,
        inner: WeightTransfer,
        gate: Gate,
        *,
        drain: Drain | None = None,
        fingerprint: Callable[[], Fingerprint] | None = None,
    ) -> None:
        self._fingerprint = fingerprint
        self._held = False
        self._inner = inner
        self._gate = gate
        self._drain = drain or Drain()
        self._attached = False
        self._sent = False
        self._paused = False

    def attach(self) -> None:
        """See :class:`Versioned`."""
        self._attached = True

    def init_weight_transfer(self) -> None:
        """Set the inner transfer up.

        Raises:
            ConfigError: no worker publishes versions, so that the gate would never open.
        """
        if not self._attached:
            raise ConfigError(
                "nobody would open the gate after an update: the rollout worker publishes no versions.",
                fix="Give the worker weights=..., as FencedRolloutWorker and InProcessWorker take it.",
            )
        self._inner.init_weight_transfer()

    def pause(self) -> None:
        """Close the gate, then pause the server."""
        self._held = self._gate.pause(self._drain)
        self._paused, self._sent = True, False
        self._inner.pause()

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Send. When it fails the gate stays closed: nobody knows what the weights are."""
        self._inner.send_weights(iterator)
        self._sent = True

    def resume(self) -> None:
        """Nothing yet: a server that went on now would sample with weights that have no version."""

    def publish(self, policy_version: int) -> None:
        """Open the gate with ``policy_version`` and let the server go on: before that where nothing is held, so that it
        can be asked for the fingerprint; together where calls are held, so that none goes on under the old version.

        A version that is told while nothing is paused (a trainer that resumes from a checkpoint) is that of the next
        update's predecessor; nothing happens.

        Raises:
            ConfigError: no weights were sent since the pause.
            WeightsMismatch: a server's weights are not those of the fingerprint; the gate stays closed.
        """
        if not self._paused:
            return
        if not self._sent:
            raise ConfigError(f"version {policy_version} was published, but its weights were not sent.")
        told = self._fingerprint() if self._fingerprint is not None else None
        if not self._held:
            self._inner.resume()
        self._gate.resume(policy_version, told)
        self._paused = False
        if self._held:
            self._inner.resume()

    def destroy(self) -> None:
        """Let the inner transfer go."""
        self._inner.destroy()


class AdapterVersions:
    """For TRL's adapter sync, in which a LoRA adapter ``trl-policy-vN`` is loaded per update and TRL talks to the
    server itself: calls from then on go to the new adapter, those in flight go on under the old name.

    In loop-owning mode TRL tells nobody the new name, and a call under the model's own name is served the base weights,
    in silence (trl.md section 6). The engine must be named so: ``EngineSpec(model="trl-policy-v{version}")``.

    Args:
        gate: of the gateway that serves the agents.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def attach(self) -> None:
        """See :class:`Versioned`."""

    def publish(self, policy_version: int) -> None:
        """The adapter of this version is loaded; use it."""
        self._gate.advance(policy_version)


class FencedSync:
    """Stands before GRPOTrainer's ``vllm_generation`` (server mode): ``sync_weights`` runs while the gate is closed.

    Everything else of the wrapped object stays reachable. See :func:`fence_generation`.
    """

    def __init__(self, trainer: Any, inner: Any, gate: Gate, drain: Drain) -> None:
        self._trainer = trainer
        self._inner = inner
        self._gate = gate
        self._drain = drain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def sync_weights(self) -> None:
        """Close the gate, let TRL send the weights, open it as version ``global_step``.

        Every rank has a gateway and a gate of its own: no rank's calls run before all gates are closed, and none goes
        on before the weights are there. When it fails the gates stay closed.
        """
        everyone = self._trainer.accelerator.wait_for_everyone
        self._gate.pause(self._drain)
        everyone()
        self._inner.sync_weights()
        everyone()
        self._gate.resume(int(self._trainer.state.global_step))


def fence_generation(trainer: Any, gate: Gate, *, drain: Drain | None = None) -> None:
    """Put the gate around the weight updates of a GRPOTrainer that was built with ``use_vllm=True``; on every rank.

    Raises:
        ConfigError: the trainer uses no vLLM server: in colocate mode the engine is no server that an agent could call.
    """
    inner = getattr(trainer, "vllm_generation", None)
    if inner is None or getattr(trainer, "vllm_mode", "") != "server":
        raise ConfigError(
            "this trainer has no vLLM server whose updates could be fenced.",
            fix="Build it with use_vllm=True and vllm_mode='server', or call attach_engine.",
        )
    trainer.vllm_generation = FencedSync(trainer, inner, gate, drain or Drain())
