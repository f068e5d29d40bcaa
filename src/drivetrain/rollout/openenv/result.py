"""What a run of the adapter returns: OpenEnv's result, the training rows, and how the agent ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from openenv.core.harness import HarnessRolloutResult, RolloutEvent

from drivetrain.engines.model_step import openenv_message
from drivetrain.errors import InfrastructureError
from drivetrain.gateway.sessions import Session
from drivetrain.rollout.openenv.tools import SessionTools
from drivetrain.rollout.selection import Selection
from drivetrain.trace.conversation import request_of
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.sample import HarnessTrace
from swe_rl_agent.harness import CLIHarness, HarnessOutcome


@dataclass
class CLIRolloutResult(HarnessRolloutResult):  # type: ignore[misc]  # openenv ships no types
    """OpenEnv's result and what it has no field for.

    ``traces`` are the training rows (ungraded: ``reward`` is None until the caller has verified), one per chain, with
    their loss masks. The inherited ``prompt_ids``, ``completion_ids`` and ``logprobs`` are those of the first row;
    its completion holds the environment's tokens too, so train with ``traces[0].loss_mask``, never without.
    ``graph`` is the whole recorded rollout; None for a black-box run. ``outcome`` is how the agent ended.
    """

    traces: list[HarnessTrace] = field(default_factory=list)
    graph: TraceGraph | None = None
    outcome: HarnessOutcome | None = None


class HarnessRunFailed(InfrastructureError):
    """The agent or the model behind it failed; the rollout is ungraded. ``result`` holds what there is of it."""

    def __init__(self, what: str, result: CLIRolloutResult, *, fix: str = "") -> None:
        super().__init__(what, fix=fix)
        self.result = result


def recorded_result(
    recorded: Session, outcome: HarnessOutcome, host: SessionTools, harness: CLIHarness
) -> CLIRolloutResult:
    """The result of a white-box run."""
    graph, name = recorded.graph, harness.name
    selection = Selection.of(Selection().train_labels, {name: harness.preset.labels})
    rows = selection.rows(graph, name, reward=None, session_id=recorded.id)
    stopped = recorded.events.get("budget_stop", 0) > 0
    first = rows[0] if rows else HarnessTrace(prompt_ids=[], response_ids=[], loss_mask=[], response_logprobs=[])
    return CLIRolloutResult(
        messages=_messages(graph),
        tool_trace=list(host.trace),
        events=[*_turn_events(graph), *_tool_events(host)],
        done=host.done or (outcome.stop == "completed" and not stopped),
        metrics={
            **_metrics(outcome, host),
            "turns": len(graph),
            "truncated": stopped or outcome.stop in ("deadline", "max_turns", "length", "context_overflow"),
            "forks": sum(bool(turn.fork_reason) for turn in graph),
        },
        prompt_ids=list(first.prompt_ids),
        completion_ids=list(first.response_ids),
        logprobs=list(first.response_logprobs),
        traces=rows,
        graph=graph,
        outcome=outcome,
    )


def unrecorded_result(
    messages: Sequence[dict[str, Any]], outcome: HarnessOutcome, host: SessionTools
) -> CLIRolloutResult:
    """The result of a black-box run: nothing was intercepted, so there are no turns."""
    return CLIRolloutResult(
        messages=list(messages),
        tool_trace=list(host.trace),
        events=_tool_events(host),
        done=host.done or outcome.stop == "completed",
        metrics=_metrics(outcome, host),
        outcome=outcome,
    )


def refuse_failure(outcome: HarnessOutcome, result: CLIRolloutResult) -> None:
    """Raise :class:`HarnessRunFailed` when the run says nothing about the policy (design invariant 8)."""
    if outcome.infrastructure:
        raise HarnessRunFailed(f"The agent ended with {outcome.stop}: {outcome.detail}.", result)


def _messages(graph: TraceGraph) -> list[dict[str, Any]]:
    """The longest conversation, in OpenAI's form, its last answer included."""
    turns = list(graph)
    if not turns:
        return []
    last = max(turns, key=lambda turn: (len(graph.path(turn)), turn.id))
    return [openenv_message(message) for message in (*request_of(graph, last), last.reply.as_message())]


def _turn_events(graph: TraceGraph) -> list[RolloutEvent]:
    return [
        RolloutEvent(
            "model_response",
            {
                "turn": turn.id,
                "content": turn.reply.content,
                "tool_calls": [
                    {"id": call.id, "name": call.name, "arguments": call.arguments} for call in turn.reply.tool_calls
                ],
            },
        )
        for turn in graph
    ]


def _tool_events(host: SessionTools) -> list[RolloutEvent]:
    return [
        RolloutEvent(
            "tool_call",
            {"tool_name": entry.tool_name, "arguments": dict(entry.arguments), "done": entry.result.done},
        )
        for entry in host.trace
    ]


def _metrics(outcome: HarnessOutcome, host: SessionTools) -> dict[str, Any]:
    return {
        "stop": outcome.stop,
        "exit_code": outcome.exit_code,
        "duration_s": outcome.duration_s,
        "tool_calls": len(host.trace),
        "tool_calls_refused": host.refused,
        "versions": dict(outcome.versions),
    }
