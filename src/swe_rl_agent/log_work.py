"""What a harness's own log says it did: an account that is not the gateway's (design section 7, "log reader").

The tool-call ids in it are ours (every harness measured returns them unchanged, some with a prefix of their own), so
that the log and the recorded turns can be compared call by call: :mod:`drivetrain.rollout.cross_check`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from swe_rl_agent.log_events import events_of
from swe_rl_agent.preset import EXIT_CODE


class LoggedWork(msgspec.Struct, frozen=True, kw_only=True):
    """``call_ids``: the tool calls that the harness says it was asked for, in order, as the log spells them; ``texts``:
    the policy's texts; ``output_tokens``: the total of its answers as the harness added up the reported usage. None =
    this log does not say. ``complete``: the log is whole and its harness ended by itself, so that what is not in it did
    not happen as far as the harness knows."""

    call_ids: tuple[str, ...] | None = None
    texts: tuple[str, ...] | None = None
    output_tokens: int | None = None
    complete: bool = True


class _Block(msgspec.Struct):
    type: str = ""
    id: str = ""
    text: str = ""


class _Usage(msgspec.Struct):
    output_tokens: int = 0
    output: int = 0


class _Said(msgspec.Struct):
    role: str = ""
    model: str = ""
    content: list[_Block] = []
    usage: _Usage = msgspec.field(default_factory=_Usage)


class _Turn(msgspec.Struct):
    type: str = ""
    message: _Said = msgspec.field(default_factory=_Said)


class _Total(msgspec.Struct):
    type: str = ""
    parent_tool_use_id: str | None = None
    usage: _Usage | None = None
    stats: _Usage | None = None


def _blocks(said: Sequence[_Said], call: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    blocks = [block for one in said for block in one.content]
    calls = tuple(block.id for block in blocks if block.type == call)
    return calls, tuple(block.text for block in blocks if block.type == "text" and block.text.strip())


def _total(stdout: bytes, mark: bytes) -> int | None:
    """Output tokens of the last event of this type that has them."""
    kind = mark.decode().strip('"')
    found: int | None = None
    for event in events_of(stdout, _Total, mark):
        usage = event.usage or event.stats
        if event.type == kind and usage is not None and not event.parent_tool_use_id:
            found = usage.output_tokens
    return found


def anthropic_work(stdout: bytes, native_log: bytes) -> LoggedWork:
    """Claude Code and Qwen Code: ``assistant`` events, one per block, and the usage of the ``result``."""
    del native_log
    events = events_of(stdout, _Turn, b'"assistant"')
    # Claude Code puts its own words about a failed call into an assistant message of no model.
    said = [event.message for event in events if event.type == "assistant" and event.message.model != "<synthetic>"]
    calls, texts = _blocks(said, "tool_use")
    return LoggedWork(call_ids=calls, texts=texts, output_tokens=_total(stdout, b'"result"'))


def pi_work(stdout: bytes, native_log: bytes) -> LoggedWork:
    """Pi: its ``message_end`` events of the assistant."""
    del native_log
    ended = events_of(stdout, _Turn, b'"message_end"')
    said = [event.message for event in ended if event.type == "message_end" and event.message.role == "assistant"]
    calls, texts = _blocks(said, "toolCall")
    return LoggedWork(call_ids=calls, texts=texts, output_tokens=sum(one.usage.output for one in said))


class _Item(msgspec.Struct):
    type: str = ""
    text: str = ""


class _Completed(msgspec.Struct):
    type: str = ""
    item: _Item = msgspec.field(default_factory=_Item)


def codex_work(stdout: bytes, native_log: bytes) -> LoggedWork:
    """Codex: its messages and its usage; the log has numbers of its own for calls."""
    del native_log
    done = [event.item for event in events_of(stdout, _Completed, b'"item.completed"')]
    texts = tuple(item.text for item in done if item.type == "agent_message" and item.text.strip())
    return LoggedWork(texts=texts, output_tokens=_total(stdout, b'"turn.completed"'))


class _Use(msgspec.Struct):
    type: str = ""
    tool_id: str = ""


def gemini_work(stdout: bytes, native_log: bytes) -> LoggedWork:
    """Gemini CLI: its ``tool_use`` events and the statistics of the ``result``; texts come in pieces."""
    del native_log
    uses = tuple(event.tool_id for event in events_of(stdout, _Use, b'"tool_use"') if event.type == "tool_use")
    return LoggedWork(call_ids=uses, output_tokens=_total(stdout, b'"result"'))


class _Tokens(msgspec.Struct):
    output: int = 0


class _Part(msgspec.Struct):
    type: str = ""
    callID: str = ""  # noqa: N815 - OpenCode's spelling
    text: str = ""
    tokens: _Tokens = msgspec.field(default_factory=_Tokens)


class _Step(msgspec.Struct):
    type: str = ""
    part: _Part = msgspec.field(default_factory=_Part)


def opencode_work(stdout: bytes, native_log: bytes) -> LoggedWork:
    """OpenCode: parts of its messages, and the tokens of each step."""
    del native_log
    parts = [event.part for event in events_of(stdout, _Step, b'"part"')]
    return LoggedWork(
        call_ids=tuple(part.callID for part in parts if part.type == "tool"),
        texts=tuple(part.text for part in parts if part.type == "text" and part.text.strip()),
        output_tokens=sum(part.tokens.output for part in parts if part.type == "step-finish"),
    )


class _Call(msgspec.Struct):
    id: str = ""


class _Answer(msgspec.Struct):
    role: str = ""
    content: msgspec.Raw = msgspec.Raw(b'""')
    tool_calls: list[_Call] | None = None


class _Trajectory(msgspec.Struct):
    messages: list[_Answer] = []


def mini_work(stdout: bytes, native_log: bytes) -> LoggedWork:
    """mini-swe-agent: the assistant messages of its trajectory."""
    del stdout
    try:
        messages = msgspec.json.decode(native_log, type=_Trajectory).messages
    except msgspec.MsgspecError:
        return LoggedWork()
    said = [message for message in messages if message.role == "assistant"]
    texts = (str(msgspec.json.decode(message.content) or "") for message in said)
    return LoggedWork(
        call_ids=tuple(call.id for message in said for call in message.tool_calls or ()),
        texts=tuple(text for text in texts if text.strip()),
    )


WORK_READERS: dict[str, Callable[[bytes, bytes], LoggedWork]] = {
    "pi_json": pi_work,
    "mini_trajectory": mini_work,
    "claude_stream_json": anthropic_work,
    "codex_json": codex_work,
    "gemini_json": gemini_work,
    "qwen_json": anthropic_work,
    "opencode_json": opencode_work,
    EXIT_CODE: lambda _stdout, _native: LoggedWork(),
}
"""By the same names as :data:`swe_rl_agent.log_readers.READERS`."""
