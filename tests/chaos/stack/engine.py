"""The engine of a chaos run, a process of its own: vLLM's wire, and a policy that answers with the mark it was sent.

Run as ``python -m tests.chaos.stack.engine MODEL PORT``.
"""

from __future__ import annotations

import asyncio
import sys

from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply
from tests.chaos.stack.parent import die_with_parent
from tests.chaos.stack.words import answer, dice, last_mark
from tests.engines.vllm.double import VLLMDouble

_FASTEST_S, _SPREAD_S = 0.15, 0.6


def policy(_ids: list[int], text: str, _index: int) -> ScriptedReply:
    """The answer to the last mark of a prompt; how long it takes depends on the mark as well."""
    call = last_mark(text)
    return ScriptedReply(text=answer(call), delay_s=_FASTEST_S + _SPREAD_S * (dice(call) % 1000) / 1000)


async def serve(model: str, port: int) -> None:
    engine = ScriptedEngine(model, policy)
    double = VLLMDouble(engine, vocab_size=1 << 20)
    double._port = port
    await double.start()
    print("ready", flush=True)
    while True:  # what a double remembers for assertions would grow for ever
        await asyncio.sleep(5)
        double.requests.clear()
        double.headers.clear()
        engine.calls[:] = [call for call in engine.calls if call.outcome == "pending"]


if __name__ == "__main__":
    die_with_parent()
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
