"""Token cases (docs/cases.md, A) through the gateway: ids are handed over as sampled, never made from text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply, fake_logprob
from drivetrain.messages import Message, ToolCall
from drivetrain.tokens.codec import TokenCodec
from drivetrain.tokens.shapes import PROBE_TOOLS
from drivetrain.trace.export.openenv import trace_dict
from drivetrain.trace.export.parquet import StoredRow, read_parquet, write_parquet
from drivetrain.trace.sample import rows_of
from drivetrain.trace.validate import check_graph, check_rows
from tests.gateway.conftest import BASH, StartRig, bash_call
from tests.gateway.raw import eventually
from tests.tokens.corpus import NAMES, check_of, templates, tokenizer

USER = {"role": "user", "content": "fix the bug"}


@pytest.mark.case("A1")
async def test_rows_hold_what_was_sampled_and_no_rendering(
    start_rig: StartRig, tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path
) -> None:
    """Ids that the tokenizer would never make reach every trainer as they are, with the log-prob of each."""
    odd = [codec.tokenizer.encode(char)[0] for char in "echo done"] + [codec.boundary.close_id]
    assert codec.tokenizer.encode(codec.tokenizer.decode(odd)) != odd
    rig = await start_rig(engine=ScriptedEngine(tiny_model, lambda *_: ScriptedReply(token_ids=odd)))
    session, client = await rig.session()
    history = [USER]
    for _ in range(3):
        done = await client.chat.completions.create(model="m", messages=history)  # type: ignore[arg-type]
        history += [{"role": "assistant", "content": done.choices[0].message.content or ""}, USER]
    await eventually(lambda: all(turn.delivered for turn in session.graph))
    expected = [(token, np.float32(fake_logprob(at, token))) for _ in range(3) for at, token in enumerate(odd)]
    (row,) = rows_of(session.graph)
    write_parquet(tmp_path / "rows", [StoredRow(rollout_id="r", task_id="t", agent="a", group=0, status="ok", row=row)])
    for one in (row, read_parquet(tmp_path / "rows")[0].row):
        slots = zip(one.response_ids, one.response_logprobs, one.loss_mask, strict=True)
        assert [(token, np.float32(logprob)) for token, logprob, mask in slots if mask] == expected
    turns = trace_dict(session.graph)[0]["turns"]
    assert [
        (token, np.float32(logprob))
        for turn in turns
        for token, logprob in zip(turn["completion_token_ids"], turn["per_token_logps"], strict=True)
    ] == expected


@pytest.mark.case("A5", "A12")
async def test_what_stands_between_a_turn_and_its_result(start_rig: StartRig, codec: TokenCodec) -> None:
    """The end token is sampled, there once and trained; the newline behind it is context."""
    rig = await start_rig([bash_call("ls"), "done"])
    session, client = await rig.session()
    done = await client.chat.completions.create(model="m", messages=[USER], tools=[BASH])  # type: ignore[list-item]
    said = done.choices[0].message
    assert said.tool_calls
    history = [USER, said, {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "a.py"}]
    await client.chat.completions.create(model="m", messages=history, tools=[BASH])  # type: ignore[arg-type]
    await eventually(lambda: all(turn.delivered for turn in session.graph))
    first, second = session.graph
    assert first.sampled_ids[-1] == codec.boundary.close_id
    text = codec.tokenizer.decode(session.graph.prompt_ids(second).tolist())
    assert "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\na.py" in text
    (row,) = rows_of(session.graph)
    behind = len(first.sampled_ids)
    assert row.loss_mask[behind - 1 : behind + 1] == [1, 0]
    assert codec.tokenizer.decode(row.response_ids[behind : behind + 1]).startswith("\n")
    assert row.loss_mask[behind:].index(1) == len(second.delta_ids)
    assert row.response_ids[-1] == codec.boundary.close_id and row.loss_mask[-1] == 1


@pytest.mark.case("A12")
async def test_a_cut_turn_is_closed_as_context(start_rig: StartRig, codec: TokenCodec) -> None:
    rig = await start_rig(["a long answer " * 20, "done"])
    session, client = await rig.session(max_tokens_per_turn=10)
    done = await client.chat.completions.create(model="m", messages=[USER])  # type: ignore[list-item]
    said = {"role": "assistant", "content": done.choices[0].message.content or ""}
    await client.chat.completions.create(model="m", messages=[USER, said, USER])  # type: ignore[list-item]
    await eventually(lambda: all(turn.delivered for turn in session.graph))
    (row,) = rows_of(session.graph)
    assert codec.boundary.close_id not in row.response_ids[:10]
    assert (row.response_ids[10], row.loss_mask[9:11]) == (codec.boundary.close_id, [1, 0])


RESULTS = [Message("tool", f"text of {name}", tool_call_id=f"call0000{name}") for name in "12"]
CALLS = tuple(ToolCall(f"call0000{name}", "read_file", f'{{"path": "{name}.py"}}') for name in "12")


@pytest.mark.case("A6")
@pytest.mark.skipif(not NAMES, reason="TRL, whose templates are the corpus, is not installed")
@pytest.mark.parametrize("name", ["qwen3", "qwen2_5", "glm4moe"])
def test_parallel_results_are_rendered_as_one_block(name: str) -> None:
    """Two results appended are what a full rendering has between the calls and the next answer."""
    template = templates()[name]
    asked = [Message("user", "read both")]
    spoken = Message("assistant", "", "", CALLS)
    full = template.render([*asked, spoken, *RESULTS], PROBE_TOOLS)
    codec = TokenCodec(tokenizer(), template, check=check_of(name))
    close = codec.boundary.family.close_token
    delta = codec.continuation(tokenizer().encode(f"x{close}"), RESULTS, PROBE_TOOLS, CALLS)
    assert delta is not None
    appended = tokenizer().decode(delta)
    assert full.endswith(appended)
    assert appended.count("text of") == 2
    apart = [codec.continuation(tokenizer().encode(f"x{close}"), [r], PROBE_TOOLS, CALLS) for r in RESULTS]
    if name in ("qwen3", "qwen2_5"):  # these put all results of a turn under one header
        assert appended.count("<|im_start|>user") == 1
        assert delta != [token for one in apart for token in one or ()]


@pytest.mark.case("A8")
async def test_characters_split_over_tokens(start_rig: StartRig, tiny_model: ModelDir, codec: TokenCodec) -> None:
    """A character of several tokens is read whole; cut in its middle it is served as it is, and its ids stay."""
    euro = codec.tokenizer.encode("€")
    assert len(euro) == 3
    whole = [*codec.tokenizer.encode("costs 5 "), *euro, codec.boundary.close_id]
    replies = [ScriptedReply(token_ids=whole), ScriptedReply(token_ids=whole[:-2], finish_reason="length"), "fine"]
    rig = await start_rig(engine=ScriptedEngine.from_lines(replies, tiny_model))
    session, client = await rig.session()
    history = [USER]
    said = []
    for _ in range(3):
        done = await client.chat.completions.create(model="m", messages=history)  # type: ignore[arg-type]
        said.append(done.choices[0].message.content or "")
        history += [{"role": "assistant", "content": said[-1]}, USER]
    assert said[0] == "costs 5 €"
    assert said[1] == "costs 5 �" and codec.tokenizer.encode(said[1]) != whole[:-2]
    await eventually(lambda: all(turn.delivered for turn in session.graph))
    graph = session.graph
    assert [turn.link for turn in graph] == ["root", "linear", "linear"]
    assert [turn.sampled_ids.tolist() for turn in graph][:2] == [whole, whole[:-2]]
    last = graph.prompt_ids(graph[2]).tolist()
    assert last[: len(graph.ids_through(graph[1]))] == graph.ids_through(graph[1]).tolist()
    assert check_graph(graph) == check_rows(graph, rows_of(graph)) == []
