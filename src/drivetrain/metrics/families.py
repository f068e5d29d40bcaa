"""Metrics of a gateway in Prometheus's terms. docs/metrics.md lists them; a test compares.

Labels are bounded: dialects, reasons, codes, states; never a session, a rollout or a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

import drivetrain
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.fence_types import FenceState
from drivetrain.metrics.lag import LoopLag
from drivetrain.metrics.tally import Distribution, Totals
from drivetrain.metrics.watch import GatewayWatch


class GatewayCollector(Collector):
    """Reads a gateway whenever its registry is asked."""

    def __init__(self, watch: GatewayWatch, lag: LoopLag) -> None:
        self._watch = watch
        self._lag = lag

    def describe(self) -> Iterator[Metric]:
        """Nothing ahead: a registry would otherwise collect once to learn the names."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Every family, from the state of now."""
        self._watch.read()
        gateway, totals = self._watch.gateway, self._watch.totals
        about = {"version": drivetrain.__version__, "engine": gateway.engine.name, "model": gateway.model}
        yield InfoMetricFamily("drivetrain_gateway", "What is served, and by which version.", value=about)
        yield from _sessions(gateway, totals)
        yield from _tokens(totals)
        yield from _engine(gateway, totals)
        yield from _fence(gateway)
        yield from _journal(gateway, totals)
        yield _histogram(
            "drivetrain_event_loop_lag_seconds",
            "By how much the event loop was late, measured twice a second.",
            self._lag.seconds,
        )


def _sessions(gateway: Gateway, totals: Totals) -> Iterator[Metric]:
    yield _by("drivetrain_sessions", "Sessions, by state.", "state", gateway.sessions.by_state(), gauge=True)
    yield _counter("drivetrain_sessions_opened", "Sessions opened.", totals.opened)
    yield _counter("drivetrain_sessions_sealed", "Sessions sealed.", totals.sealed)
    held = sum(session.retained_bytes for session in gateway.sessions.open_sessions())
    yield _gauge("drivetrain_session_turns_bytes", "Ids, log-probs and text of open sessions in memory.", held)
    yield _gauge("drivetrain_requests_in_flight", "Requests of harnesses being served.", gateway.admission.requests)
    yield _gauge("drivetrain_request_body_bytes", "Size of their bodies together.", gateway.admission.body_bytes)
    turns = CounterMetricFamily("drivetrain_turns", "Turns committed.", labels=("dialect", "finish_reason"))
    for (dialect, finish), count in sorted(totals.turns.items()):
        turns.add_metric((dialect, finish), count)
    yield turns
    yield _counter("drivetrain_turns_delivered", "Turns whose reply reached the harness.", totals.delivered)
    yield _by("drivetrain_forks", "Turns that left their chain, by reason.", "reason", totals.forks)
    yield _by("drivetrain_session_events", "What happened in sessions and is no turn.", "kind", totals.events)
    yield _by("drivetrain_refusals", "Requests of harnesses that were refused, by code.", "code", gateway.refused)


def _tokens(totals: Totals) -> Iterator[Metric]:
    yield _counter("drivetrain_prompt_tokens", "Prompt tokens of committed turns.", totals.prompt_tokens)
    yield _counter("drivetrain_sampled_tokens", "Sampled tokens of committed turns.", totals.sampled_tokens)
    yield _counter(
        "drivetrain_trained_tokens", "Sampled tokens of sealed sessions that rows train.", totals.trained_tokens
    )
    yield _by("drivetrain_masked_tokens", "Sampled tokens of sealed sessions left out.", "reason", totals.masked_tokens)


def _engine(gateway: Gateway, totals: Totals) -> Iterator[Metric]:
    status = gateway.fence.status()
    yield _gauge("drivetrain_engine_calls_in_flight", "Calls the engine is serving.", status.in_flight)
    yield _gauge("drivetrain_engine_calls_waiting", "Calls that wait at the closed gate.", status.waiting)
    yield _histogram("drivetrain_engine_call_seconds", "From dispatch to the last token.", totals.engine_s)
    yield _histogram(
        "drivetrain_first_token_seconds", "From dispatch to the first token, if known.", totals.first_token_s
    )
    yield _histogram("drivetrain_gate_wait_seconds", "From the gate to dispatch.", totals.queue_s)
    yield _gauge("drivetrain_policy_version", "Version of the weights that serve.", status.policy_version)


def _fence(gateway: Gateway) -> Iterator[Metric]:
    status = gateway.fence.status()
    states = {state: int(state == status.state) for state in get_args(FenceState)}
    yield _by("drivetrain_fence_state", "1 for the state of the weight-sync gate.", "state", states, gauge=True)
    yield _gauge("drivetrain_fence_failed", "1 while a pause has failed.", int(bool(status.failed)))
    yield _counter("drivetrain_fence_pauses", "Pauses that came about.", status.counts.pauses)
    yield _counter("drivetrain_fence_pauses_failed", "Pauses that failed or never ended.", status.counts.failed)
    yield _counter("drivetrain_fence_drains_late", "Drains that missed their deadline.", status.counts.timeouts)
    yield _counter("drivetrain_fence_calls_aborted", "Calls aborted for a weight update.", status.counts.aborted)
    yield _counter(
        "drivetrain_fence_paused_seconds", "Time during which the gate was not open.", gateway.fence.paused_s
    )


def _journal(gateway: Gateway, totals: Totals) -> Iterator[Metric]:
    journal = gateway.journal
    yield _gauge("drivetrain_journal_size_bytes", "Journal and its write-ahead log on disk.", size_of(journal.path))
    yield _counter("drivetrain_journal_commits", "Transactions.", journal.counts.commits)
    yield _counter("drivetrain_journal_entries", "Entries in them.", journal.counts.entries)
    yield _gauge("drivetrain_journal_blocked", "1 while the storage takes nothing.", int(bool(journal.blocked)))
    yield _counter("drivetrain_journal_blocked_seconds", "Time during which it took nothing.", journal.blocked_s)
    yield _histogram("drivetrain_commit_seconds", "From the last token to the journal's queue.", totals.commit_s)


def size_of(journal: Path) -> int:
    """Bytes of a journal and its write-ahead log on disk."""
    files = (journal, journal.with_name(journal.name + "-wal"))
    return sum(path.stat().st_size for path in files if path.exists())


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _by(name: str, text: str, label: str, values: Mapping[Any, int], *, gauge: bool = False) -> Metric:
    kind = GaugeMetricFamily if gauge else CounterMetricFamily
    family = kind(name, text, labels=(label,))
    for key, value in sorted(values.items()):
        family.add_metric((key,), value)
    return family


def _histogram(name: str, text: str, seen: Distribution) -> Metric:
    return HistogramMetricFamily(name, text, buckets=seen.cumulative(), sum_value=seen.total)
