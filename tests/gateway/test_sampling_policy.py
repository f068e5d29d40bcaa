"""Rules per sampling knob: honour, clamp, override, refuse; what was asked and what was used are both recorded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

import msgspec
import openai
import pytest
from openai import AsyncOpenAI

from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import Sampling, honoured_knobs
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.errors import ConfigError
from drivetrain.gateway.knobs import DEFAULT_RULES, KNOBS, KnobName, KnobRule, check_supported
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.refusal import Refusal
from drivetrain.gateway.sampling import (
    GREEDY_TEMPERATURE,
    Effective,
    effective_sampling,
    refuse_untrainable,
    wanted_tokens,
)
from drivetrain.journal.reader import JournalReader
from drivetrain.messages import Call, RequestedSampling
from drivetrain.trace.sample import rows_of, sampled_by_reason, untrained_reason
from drivetrain.trace.validate import check_rows
from tests.gateway.conftest import StartRig

USER = {"role": "user", "content": "hi"}
ASKED: Mapping[KnobName, Any] = {
    "temperature": 0.2,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.1,
    "max_tokens": 10_000,
    "seed": 3,
    "stop": ("END",),
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "repetition_penalty": 1.2,
    "logit_bias": {"5": 1.0},
    "response_format": {"type": "json_object"},
    "tool_choice": "required",
    "n": 2,
    "logprobs": True,
    "reasoning_effort": "high",
}
"""For every knob something that a session does not do by itself."""
NEUTRAL: Mapping[KnobName, Any] = {
    "temperature": 0.7,
    "top_p": 1,
    "top_k": -1,
    "min_p": 0,
    "max_tokens": 64,
    "frequency_penalty": 0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1,
    "logit_bias": {},
    "response_format": {"type": "text"},
    "tool_choice": "auto",
    "n": 1,
    "logprobs": False,
}
"""What a session does anyway."""
ALL_KNOBS = frozenset(KNOBS)


def requested(values: Mapping[KnobName, Any]) -> RequestedSampling:
    own = {name: value for name, value in values.items() if name in RequestedSampling.__struct_fields__}
    rest = {str(name): value for name, value in values.items() if name not in own}
    return RequestedSampling(**own, extra=rest)


def policy(**fields: Any) -> SessionPolicy:
    return SessionPolicy(**{"model": "m", "temperature": 0.7, "max_tokens_per_turn": 64, "seed": 11, **fields})


def effective(values: Mapping[KnobName, Any], used: SessionPolicy) -> Effective:
    call = Call(dialect="d", model="m", messages=(), requested=requested(values))
    refuse_untrainable(call.requested, used, ALL_KNOBS)
    return effective_sampling(
        call, used, max_tokens=wanted_tokens(call.requested, used), stop_ids=(2,), identity="s-1:0"
    )


@pytest.mark.parametrize("knob", KNOBS)
@pytest.mark.parametrize("rule", get_args(KnobRule))
def test_every_rule_of_every_knob(knob: KnobName, rule: KnobRule) -> None:
    never = {"max_tokens", "n", "logprobs", "reasoning_effort"}
    if (rule == "honour" and knob in never) or (rule == "clamp" and knob != "max_tokens"):
        with pytest.raises(ConfigError, match=knob):
            policy(knobs={knob: rule})
        return
    used = policy(knobs={knob: rule})
    if rule == "refuse":
        with pytest.raises(Refusal) as caught:
            effective({knob: ASKED[knob]}, used)
        assert (caught.value.status, caught.value.code, caught.value.param) == (400, "unsupported", knob)
        if knob in NEUTRAL:
            effective({knob: NEUTRAL[knob]}, used)
        return
    plain, got = effective({}, used), effective({knob: ASKED[knob]}, used)
    assert got.record["rules"] == {knob: rule}
    if rule == "honour":
        assert got.record[knob] == ASKED[knob]
        assert got.notes == (() if knob == "seed" else ("sampling_not_pinned",))
        if knob not in ("temperature", "seed"):
            assert got.sampling.extra == {knob: ASKED[knob]}
    else:
        assert got.sampling == plain.sampling
        assert got.notes == ()


def test_defaults_pin_the_full_distribution() -> None:
    refused = {knob for knob, rule in DEFAULT_RULES.items() if rule == "refuse"}
    assert set(DEFAULT_RULES) == ALL_KNOBS
    assert refused == {"logit_bias", "response_format", "tool_choice", "n"}
    got = effective({knob: value for knob, value in ASKED.items() if knob not in refused}, policy())
    assert got.sampling == Sampling(max_tokens=64, temperature=0.7, seed=got.sampling.seed, stop_token_ids=(2,))
    assert got.sampling.seed != 3
    assert (got.record["top_p"], got.record["top_k"], got.record["min_p"]) == (1.0, 0, 0.0)
    assert got.notes == ()


@pytest.mark.parametrize(("asked", "used"), [(None, 64), (10, 10), (64, 64), (65, 64)])
def test_max_tokens_is_clamped(asked: int | None, used: int) -> None:
    assert wanted_tokens(RequestedSampling(max_tokens=asked), policy()) == used
    assert wanted_tokens(RequestedSampling(max_tokens=asked), policy(knobs={"max_tokens": "override"})) == 64


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        ("auto", False),
        ("none", False),
        ("required", True),
        ("any", True),
        ("validated", True),
        ({"type": "auto"}, False),
        ({"type": "none"}, False),
        ({"type": "any"}, True),
        ({"type": "tool", "name": "bash"}, True),
        ({"type": "function", "function": {"name": "bash"}}, True),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, True),
    ],
)
def test_a_forced_tool_is_recognised_in_every_spelling(choice: Any, forced: bool) -> None:
    if not forced:
        refuse_untrainable(requested({"tool_choice": choice}), policy())
        return
    with pytest.raises(Refusal, match="tool_choice"):
        refuse_untrainable(requested({"tool_choice": choice}), policy())


@pytest.mark.parametrize(("asked", "used"), [(0, GREEDY_TEMPERATURE), (0.3, 0.3), (2, 2.0)])
def test_an_honoured_temperature_keeps_full_support(asked: float, used: float) -> None:
    got = effective({"temperature": asked}, policy(knobs={"temperature": "honour"}))
    assert got.sampling.temperature == used == got.record["temperature"]


@pytest.mark.parametrize("asked", [-0.1, 2.1, math.nan, math.inf])
def test_an_honoured_temperature_must_make_sense(asked: float) -> None:
    with pytest.raises(Refusal, match="temperature"):
        effective({"temperature": asked}, policy(knobs={"temperature": "honour"}))


def test_an_honoured_temperature_that_is_the_sessions_own_is_trained() -> None:
    assert effective({"temperature": 0.7}, policy(knobs={"temperature": "honour"})).notes == ()


def test_seeds() -> None:
    own, honoured = policy(), policy(knobs={"seed": "honour"})
    assert effective({"seed": 3}, own).sampling.seed == effective({}, own).sampling.seed
    assert effective({"seed": 3}, honoured).sampling.seed == 3
    assert 0 <= (effective({"seed": -(2**70)}, honoured).sampling.seed or 0) < 2**62
    assert effective({}, honoured).sampling.seed == effective({}, own).sampling.seed


@pytest.mark.parametrize(
    ("knobs", "says"),
    [({"heat": "refuse"}, "'heat' is no knob"), ({"top_p": "obey"}, "'obey' is no rule for top_p")],
)
def test_unknown_names(knobs: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        policy(knobs=knobs)


def test_what_an_engine_can_do() -> None:
    check_supported({"temperature": "honour", "seed": "honour", "top_p": "override"}, "e", frozenset())
    check_supported({"top_p": "honour"}, "e", frozenset({"top_p"}))
    with pytest.raises(ConfigError, match="engine e cannot honour stop"):
        check_supported({"stop": "honour"}, "e", frozenset({"top_p"}))


class _AbleEngine(ScriptedEngine):
    honoured_knobs = frozenset({"top_p", "response_format", "stop"})


async def test_opening_a_session_refuses_what_the_engine_cannot(start_rig: StartRig, tiny_model: ModelDir) -> None:
    rig = await start_rig()
    assert honoured_knobs(rig.gateway.engine) == frozenset()
    with pytest.raises(ConfigError, match="cannot honour top_p"):
        await rig.session(knobs={"top_p": "honour"})
    able = await start_rig(
        engine=_AbleEngine.from_lines([], tiny_model, then="x"), journal=rig.journal.with_name("able.sqlite")
    )
    session, client = await able.session(knobs={"top_p": "honour"})
    journal = able.journal
    await able.server.aclose()
    # The same journal under an engine that cannot: the call is refused, nothing is silently ignored.
    again = await start_rig(journal=journal)
    client.base_url = f"{again.url}/v1"  # type: ignore[assignment]
    with pytest.raises(openai.BadRequestError, match="cannot honour top_p"):
        await client.chat.completions.create(model="m", messages=[USER], top_p=0.5)
    assert (await client.chat.completions.create(model="m", messages=[USER])).choices[0].message.content
    assert len(again.gateway.sessions.get(session.id).graph) == 1


async def test_a_turn_off_the_distribution_is_recorded_and_never_trained(
    start_rig: StartRig, tiny_model: ModelDir
) -> None:
    engine = _AbleEngine.from_lines(["one", "two", "three"], tiny_model)
    rig = await start_rig(engine=engine)
    session, client = await rig.session(knobs={"top_p": "honour", "temperature": "honour"}, temperature=0.7)
    history = [USER]
    for sampling in ({"top_p": 0.5}, {"temperature": 0.1}, {"temperature": 0.7, "top_p": 1.0}):
        history = await _continue(client, history, **sampling)
    assert [call.sampling.extra for call in engine.calls] == [{"top_p": 0.5}, {}, {"top_p": 1.0}]
    assert [call.sampling.temperature for call in engine.calls] == [0.7, 0.1, 0.7]
    turns = list(session.graph)
    assert [untrained_reason(turn) for turn in turns] == ["sampling_not_pinned", "sampling_not_pinned", ""]
    assert (turns[0].requested.top_p, turns[0].effective["top_p"]) == (0.5, 0.5)
    assert turns[0].effective["rules"] == {"top_p": "honour"}
    rows = rows_of(session.graph, session_id=session.id)
    assert [row.metadata["trained_turns"] for row in rows] == [[turns[2].id]]
    assert check_rows(session.graph, rows) == []
    stored = list(JournalReader(rig.journal).graph(session.id, session.graph.session_tag))
    assert [turn.effective for turn in stored] == [turn.effective for turn in turns]
    assert [turn.notes for turn in stored] == [turn.notes for turn in turns]


async def test_an_evaluation_is_never_trained(start_rig: StartRig) -> None:
    rig = await start_rig(["one", "two"])
    session, client = await rig.session(purpose="eval")
    await _continue(client, await _continue(client, [USER]))
    assert rows_of(session.graph) == []
    sampled = sum(len(turn.sampled_ids) for turn in session.graph)
    assert sampled_by_reason(session.graph) == {"eval_session": sampled}


@pytest.mark.parametrize("rule", ["override", "refuse"])
async def test_rules_decide_over_the_wire(start_rig: StartRig, rule: KnobRule) -> None:
    rig = await start_rig(["ok"])
    session, client = await rig.session(knobs={"response_format": rule, "n": rule, "logit_bias": rule})
    asked: dict[str, Any] = {"response_format": {"type": "json_object"}, "n": 2, "logit_bias": {"5": 1}}
    if rule == "refuse":
        for name, value in asked.items():
            with pytest.raises(openai.BadRequestError, match=name):
                await client.chat.completions.create(model="m", messages=[USER], **{name: value})
        assert len(session.graph) == 0
        return
    reply = await client.chat.completions.create(model="m", messages=[USER], **asked)
    assert len(reply.choices) == 1
    (turn,) = session.graph
    assert turn.effective["rules"] == dict.fromkeys(asked, "override")
    assert turn.requested.extra == asked
    assert untrained_reason(turn) == ""


def test_the_policy_travels_as_json() -> None:
    body = {"model": "m", "purpose": "eval", "knobs": {"temperature": "honour", "top_p": "refuse"}}
    read = msgspec.convert(body, SessionPolicy)
    assert read.rule("temperature") == "honour" and read.rule("seed") == "override"
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"model": "m", "knobs": {"heat": "honour"}}, SessionPolicy)


async def _continue(client: AsyncOpenAI, history: list[Any], **sampling: Any) -> list[Any]:
    reply = await client.chat.completions.create(model="m", messages=history, **sampling)
    return [*history, {"role": "assistant", "content": reply.choices[0].message.content}, USER]
