"""A very long prompt is rendered and encoded aside: nobody else waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from drivetrain.messages import Call, Message, ToolSpec
from tests.gateway.conftest import StartRig


async def test_others_are_served_while_a_long_prompt_is_encoded(
    start_rig: StartRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start_rig(["short answer"])
    long_session, _ = await rig.session()
    other_session, _ = await rig.session()
    codec, encoding, go_on = rig.gateway.codec, threading.Event(), threading.Event()
    render = codec.first_prompt

    def slow(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Any:
        if len(messages[0].content) > 100_000:
            encoding.set()
            assert go_on.wait(20)
        return render(messages, tools)

    monkeypatch.setattr(codec, "first_prompt", slow)
    long = Call("test", "m", (Message("user", "word " * 30_000),))
    counting = asyncio.create_task(rig.gateway.count(long_session, long))
    await asyncio.to_thread(encoding.wait, 20)
    served = await rig.gateway.serve(other_session, Call("test", "m", (Message("user", "hello"),)), b"other")
    assert served.reply.content == "short answer"
    assert not counting.done()
    go_on.set()
    assert await counting > 30_000
