"""OpenEnv 0.10's ``TrainingTrace``: what ``fetch_training_trace()`` returns and TRL's harness worker trains on.

Shapes and rules: openenv 0.10.0, ``openenv.core.harness.training`` and ``capture.validate.validate_training_turn``;
facts in openenv.md section 1.8 and trl.md section 5.3. An exception of ``ValueError`` kind out of
``fetch_training_trace()`` stops TRL's whole rollout worker, so nothing here raises for a fault of one rollout: the
faulty turn is masked or left out, and named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from drivetrain.errors import MissingDependency
from drivetrain.trace.export.chains import branch_order
from drivetrain.trace.export.openai import conversation, message_dict, tool_dict
from drivetrain.trace.export.selection import trained_turns, why_untrained
from drivetrain.trace.findings import RolloutCode, RowCode, TurnCode
from drivetrain.trace.graph import TraceGraph, reply_message
from drivetrain.trace.hashes import prompt_digest
from drivetrain.trace.sample import HarnessTrace
from drivetrain.trace.turn import Ids, Turn
from drivetrain.trace.validate import check_turn

if TYPE_CHECKING:
    from openenv.core.harness.training import TrainingTrace

SCHEMA_VERSION = 1


class ExportFinding(msgspec.Struct, frozen=True):
    """A turn that is not exported as it should be. ``masked``: kept as context; ``left_out``: not in the trace."""

    code: TurnCode | RowCode | RolloutCode | Literal["refused_by_openenv"]
    turn: int
    effect: Literal["masked", "left_out"]
    detail: str

    def __str__(self) -> str:
        return f"{self.code} at turn {self.turn} ({self.effect.replace('_', ' ')}): {self.detail}"


def trace_dict(
    graph: TraceGraph, rows: Sequence[HarnessTrace] | None = None, *, only_trainable: bool = False
) -> tuple[dict[str, Any], list[ExportFinding]]:
    """A ``TrainingTrace`` as plain dicts, without importing openenv.

    Each turn is listed once, branch by branch, parents first (:func:`~drivetrain.trace.export.chains.branch_order`).
    Per turn, with P prompt and C sampled tokens: ``prompt_token_ids`` (P), ``completion_token_ids`` (C),
    ``per_token_logps`` (C), ``loss_mask`` (P + C; 0 over the prompt, 1 over what is trained). Turns that ``rows`` (by
    default those of ``rows_of``) do not train are context with mask 0 and their reason in ``metadata["untrained"]``;
    ``only_trainable`` drops them. A turn without valid log-probs is masked, with 0.0 as filler.

    Returns:
        The trace, and one finding per fault. A fault of the rollout never raises.
    """
    turns: list[dict[str, Any]] = []
    findings: list[ExportFinding] = []
    trained = trained_turns(graph, rows)
    for chain, turn in branch_order(graph, trained):
        prompt = graph.prompt_ids(turn)
        faults = _faults(turn, prompt)
        findings += faults
        untrained = why_untrained(turn, trained) or (faults[0].code if faults else "")
        if any(fault.effect == "left_out" for fault in faults) or (only_trainable and untrained):
            continue
        turns.append(_turn_dict(graph, turn, prompt, chain, untrained))
    return {"schema_version": SCHEMA_VERSION, "turns": turns}, findings


def training_trace(
    graph: TraceGraph, rows: Sequence[HarnessTrace] | None = None, *, only_trainable: bool = False
) -> tuple[TrainingTrace, list[ExportFinding]]:
    """:func:`trace_dict` as OpenEnv's strict pydantic object; a turn that OpenEnv refuses is left out and named.

    Raises:
        MissingDependency: openenv is not installed.
    """
    try:
        from openenv.core.harness.training import TrainingTrace, TrainingTurn
    except ImportError as error:
        raise MissingDependency(
            f"OpenEnv's training models cannot be imported ({error}).", fix="Run: pip install 'drivetrain[openenv]'."
        ) from error
    plain, findings = trace_dict(graph, rows, only_trainable=only_trainable)
    turns = []
    for entry in plain["turns"]:
        try:
            turns.append(TrainingTurn(**entry))
        except ValueError as error:
            number = entry["metadata"]["turn"]
            findings.append(ExportFinding("refused_by_openenv", number, "left_out", str(error)))
    return TrainingTrace(turns=turns), findings


def node_id(graph: TraceGraph, turn_id: int) -> str:
    """Name of a turn that is unique over rollouts: the session's public tag and the turn's number."""
    return f"{graph.session_tag}-{turn_id}"


def _faults(turn: Turn, prompt: Ids) -> list[ExportFinding]:
    found: list[ExportFinding] = []
    if len(prompt) == 0:
        found.append(ExportFinding("empty_prompt", turn.id, "left_out", "there is no prompt"))
    elif prompt.min() < 0 or np.any(turn.sampled_ids < 0):
        found.append(ExportFinding("token_out_of_range", turn.id, "left_out", "a token id is negative"))
    found += [
        ExportFinding(finding.code, turn.id, "masked", finding.detail)
        for finding in check_turn(turn)
        if finding.code != "token_out_of_range"
    ]
    if len(prompt) != turn.prompt_len:
        detail = f"{len(prompt)} rebuilt, {turn.prompt_len} sent"
        found.append(ExportFinding("prompt_length", turn.id, "masked", detail))
    elif prompt_digest(prompt) != turn.prompt_sha256:
        detail = "the rebuilt prompt is not what was sent"
        found.append(ExportFinding("prompt_mismatch", turn.id, "masked", detail))
    return found


def _turn_dict(graph: TraceGraph, turn: Turn, prompt: Ids, chain: int, untrained: str) -> dict[str, Any]:
    path = graph.path(turn)
    spoken = [message for message, _, _ in conversation(graph, path)]
    sound = len(turn.logprobs) == len(turn.sampled_ids) and bool(
        np.all(np.isfinite(turn.logprobs) & (turn.logprobs <= 0))
    )
    return {
        "node_id": node_id(graph, turn.id),
        "prompt_token_ids": prompt.tolist(),
        "completion_token_ids": turn.sampled_ids.tolist(),
        "per_token_logps": turn.logprobs.tolist() if sound else [0.0] * len(turn.sampled_ids),
        "loss_mask": [0] * len(prompt) + [0 if untrained else 1] * len(turn.sampled_ids),
        "request": {
            "messages": [message_dict(message) for message in spoken[:-1]],
            "tools": [tool_dict(tool) for tool in graph.tools_of(turn)],
        },
        "response": {
            "choices": [{"message": message_dict(reply_message(turn)), "finish_reason": turn.finish_reason}],
        },
        "metadata": _metadata(graph, turn, chain, untrained),
    }


def _metadata(graph: TraceGraph, turn: Turn, chain: int, untrained: str) -> dict[str, Any]:
    return {
        "node_id": node_id(graph, turn.id),
        "turn": turn.id,
        "parent": None if turn.parent is None else node_id(graph, turn.parent),
        "chain": chain,
        "link": turn.link,
        "fork_reason": turn.fork_reason,
        "fork_detail": turn.fork_detail,
        "label": turn.label,
        "untrained": untrained,
        "delivered": turn.delivered,
        "policy_version_start": turn.policy_version_start,
        "policy_version_end": turn.policy_version_end,
        "finish_reason": turn.finish_reason,
        "n_tools": turn.n_tools,
        "model": turn.reply.model,
        "engine": turn.engine,
        "dialect": turn.dialect,
        "sampling_params": msgspec.to_builtins(turn.effective),
        "requested_sampling_params": msgspec.to_builtins(turn.requested),
        "notes": list(turn.notes),
        "prompt_sha256": turn.prompt_sha256.hex(),
        "started_at": float(turn.started_at),
        "completed_at": float(turn.completed_at),
    }
