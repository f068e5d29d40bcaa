"""Each session says what becomes of earlier reasoning: kept as sampled, or as the template would write it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.messages import Call, Message
from drivetrain.tokens.codec import TokenCodec
from drivetrain.tokens.template import ChatTemplate

STRIPS = (  # ChatML that leaves out the reasoning of every turn but the last message's
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content and loop.last %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
Policy = Literal["keep", "template"]


async def second(gateway: Gateway, policy: Policy | None) -> tuple[bool, str]:
    """Whether the second turn of a conversation continues the first, and why not."""
    session, _ = await gateway.open_session(SessionPolicy(model="m", reasoning=policy))
    first = Message("user", "one")
    served = await gateway.serve(session, Call("test", "m", (first,)), b"1")
    again = (first, served.reply.as_message(), Message("user", "two"))
    counted = await gateway.count(session, Call("test", "m", again))
    await gateway.serve(session, Call("test", "m", again), b"2")
    turns = list(session.graph)
    assert counted == turns[1].prompt_len
    prompt = gateway.codec.tokenizer.decode(session.graph.prompt_ids(turns[1]).tolist())
    assert ("<think>why</think>" in prompt) is (turns[1].link == "linear")
    return turns[1].link == "linear", turns[1].fork_reason


@pytest.mark.case("A9")
@pytest.mark.parametrize("of_codec", ["keep", "template"])
async def test_policy_of_the_session(tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path, of_codec: Policy) -> None:
    own = TokenCodec(
        codec.tokenizer, ChatTemplate(STRIPS), stop_ids=codec.stop_ids, parser="think+text", reasoning=of_codec
    )
    engine = ScriptedEngine(tiny_model, lambda *_: "<think>why</think>so", context_length=100_000)
    gateway = Gateway(engine, own, tmp_path / "journal.sqlite", model="m")
    kept, rendered_anew = (True, ""), (False, "template_not_append_only")
    assert await second(gateway, "keep") == kept
    assert await second(gateway, "template") == rendered_anew
    assert await second(gateway, None) == (kept if of_codec == "keep" else rendered_anew)
    await gateway.aclose()
