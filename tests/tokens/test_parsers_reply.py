"""Reasoning reaches the harness apart from the text, and its loss on the way back changes nothing."""

from __future__ import annotations

import pytest

from drivetrain.tokens.codec import TokenCodec
from drivetrain.tokens.parse import get_parser
from tests.gateway.conftest import BASH, StartRig, bash_call, start_rig

__all__ = ["start_rig"]  # a fixture of the gateway's room


async def test_reasoning_is_sent_apart_and_may_be_dropped(
    start_rig: StartRig,
    codec: TokenCodec,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec, "parser", get_parser("think+hermes"))
    rig = await start_rig([f"<think>\nso\n</think>\n\n{bash_call('ls')}", "done"])
    session, client = await rig.session()
    history: list[dict[str, object]] = [{"role": "user", "content": "fix the bug"}]
    done = await client.chat.completions.create(model="m", messages=history, tools=[BASH])  # type: ignore[arg-type]
    message = done.choices[0].message
    assert message.model_extra is not None
    assert (message.model_extra["reasoning_content"], message.content) == ("so", "Let me look.")
    assert message.tool_calls
    history.append(
        {
            "role": "assistant",
            "content": message.content,
            "tool_calls": [call.model_dump() for call in message.tool_calls],
        }
    )
    history.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "a.py"})
    await client.chat.completions.create(model="m", messages=history, tools=[BASH])  # type: ignore[arg-type]
    assert [turn.link for turn in session.graph] == ["root", "linear"]
