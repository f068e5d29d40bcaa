"""A gateway that is fuzzed without a socket, and what must hold of each of its answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.gateway.app import harness_app
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.knobs import KNOBS
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.sessions import Session, session_tag
from drivetrain.journal.reader import JournalReader
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.sample import rows_of
from tests.abuse.bodies import Api
from tests.abuse.inprocess import Surface, payloads
from tests.abuse.mutate import Mutation, mutate
from tests.abuse.spelling import spell
from tests.gateway.raw import Answer

_PER_SESSION = 50
_LINES = (
    "done",
    '<think>hm</think>Look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>',
    '<tool_call>\n{"name": "patch", "arguments": {"input": "+x"}}\n</tool_call>',
    '<tool_call>{"name": "bash", "arguments": ',
)


class Victim:
    """A gateway, a scripted engine behind it, and a session that is replaced now and then."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._surface = Surface(harness_app(gateway))
        self._session: Session | None = None
        self._key = ""
        self._asked = 0

    @classmethod
    async def start(cls, folder: Path, model: ModelDir, codec: TokenCodec) -> Victim:
        engine = ScriptedEngine(model, lambda ids, _text, index: _LINES[index % len(_LINES)])
        victim = cls(Gateway(engine, codec, folder / "journal.sqlite", model="policy"))
        await victim._surface.open()
        return victim

    async def close(self) -> None:
        await self._surface.close()
        await self.gateway.aclose()

    async def ask(
        self, api: Api, path: str, body: bytes, headers: Mapping[str, str] | None = None, method: str = "POST"
    ) -> Answer:
        """One request with a good key."""
        if self._asked % _PER_SESSION == 0:
            await self._next_session()
        self._asked += 1
        key = f"Bearer {self._key}" if api.key_header == "Authorization" else self._key
        named = {api.key_header: key, "Content-Type": "application/json", **(headers or {})}
        if api.name == "anthropic":
            named.setdefault("anthropic-version", "2023-06-01")
        return await self._surface.ask(method, path, body, named)

    async def _next_session(self) -> None:
        odd = (self._asked // _PER_SESSION) % 2 == 1
        rules: dict[Any, Any] = dict.fromkeys(KNOBS, "override")
        policy = SessionPolicy(
            model="policy", max_turns=10**6, images="placeholder" if odd else "refuse", knobs=rules if odd else {}
        )
        self._session, self._key = await self.gateway.open_session(policy)
        self.gateway.engine.calls.clear()  # type: ignore[attr-defined]

    def check_what_is_left(self) -> int:
        """Every session reads back from the journal as it is in memory, and its rows are JSON; returns the turns."""
        reader = JournalReader(self.gateway.journal.path)
        turns = 0
        for session in self.gateway.sessions:
            turns += len(session.graph)
            stored = reader.graph(session.id, session_tag(session.id))
            assert [turn.body_sha256 for turn in stored] == [turn.body_sha256 for turn in session.graph]
            rows = rows_of(session.graph, session_id=session.id)
            assert msgspec.json.encode(rows) == msgspec.json.encode(rows_of(stored, session_id=session.id))
        return turns


def fuzzed(api: Api, seed: int, todo: list[Mutation], spaced: bool) -> tuple[str, bytes]:
    """Path and body of one input."""
    chance = Random(seed)
    path = chance.choice(api.paths)
    return path, spell(mutate(api.body(chance), todo), spaced=spaced)


def check(api: Api, answer: Answer) -> None:
    """Served, or refused in the API's own words: nothing else may happen to a body, whatever is in it."""
    said = payloads(answer)
    if answer.status == 200:
        assert said
        assert not any(isinstance(one, dict) and "error" in one and one["error"] for one in said), said
        return
    assert 400 <= answer.status < 500, (answer.status, said)
    assert answer.status not in (401, 403, 404, 409), (answer.status, said)
    assert api.is_error(said[0], answer.status), said
    assert "Traceback" not in answer.body.decode() and "drivetrain." not in answer.body.decode().replace(
        '"domain":"drivetrain"', ""
    ), said
