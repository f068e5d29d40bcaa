"""Dummy conversations are rendered once for many turns, and never shared between turns that render differently."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.messages import Message, ToolCall, ToolSpec
from drivetrain.tokens.template import Anchored, ChatTemplate, shared_start

TOOLS = (ToolSpec("bash", "runs it", {"type": "object", "properties": {}}),)
SOURCE = """{%- for tool in tools or [] %}[{{ tool | tojson }}]{% endfor %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or '' }}{% for call in m.tool_calls or [] %}<call>{{ call.function | tojson }} ID</call>{% endfor -%}
<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def template(shown: str) -> ChatTemplate:
    return ChatTemplate(SOURCE.replace("ID", shown))


def behind(chat: ChatTemplate, call_id: str, name: str = "bash") -> Anchored | None:
    call = ToolCall(call_id, name, "{}")
    return chat.behind_turn([Message("tool", f"output of {call_id}", tool_call_id=call_id)], TOOLS, [call])


@pytest.mark.parametrize("shown", ["", "{{ call.id }}", "{{ call.id[:9] }}", "{{ call.id[-9:] }}"])
def test_every_turn_has_its_own_rendering(shown: str) -> None:
    chat = template(shown)
    for number in (1, 2, 1, 3):
        call_id = f"call_{number}{number}{number}_of_turn_{number}"
        found = behind(chat, call_id)
        assert found is not None
        assert found == behind(template(shown), call_id)  # as if it were the first


def test_one_rendering_a_turn_where_ids_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = template("")
    renderings: list[int] = []
    render = ChatTemplate.render

    def counted(self: ChatTemplate, *arguments: object, **options: object) -> str:
        renderings.append(1)
        return render(self, *arguments, **options)  # type: ignore[arg-type]

    behind(chat, "call_first_of_all")
    monkeypatch.setattr(ChatTemplate, "render", counted)
    for number in range(20):
        behind(chat, f"call_number_{number}")
    assert len(renderings) == 20
    behind(chat, "call_of_another", name="read")
    assert len(renderings) == 22


@given(st.text("ab", max_size=6), st.text("ab", max_size=6))
def test_shared_start(left: str, right: str) -> None:
    found = shared_start(left, right)
    assert left.startswith(found)
    assert right.startswith(found)
    longer = len(found) + 1
    assert left[:longer] != right[:longer] or longer > min(len(left), len(right))
