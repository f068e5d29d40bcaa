"""An agent: conversations with tool calls, goes on with its history, tries again what failed, resumes after a crash.

Standard library and SDKs only; a sandbox runs it as ``python -m tests.chaos.stack.harness ORDER`` (an :class:`Order`
with a ``session``).
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.chaos.stack.diary import Diary, read
from tests.chaos.stack.wires import WIRES, Refused, Seen, Transient, Wire
from tests.chaos.stack.words import STOPPING, mark

_AGAIN_S = 0.5
_CONVERSATIONS_AT_ONCE = 2


class Session(msgspec.Struct):
    """What a runner gives an agent."""

    id: str
    key: str
    max_turns: int


class Order(msgspec.Struct):
    """``number`` names the agent; ``wire`` is its API. It stops between two calls when the file ``stop`` is there.

    ``relayed`` says whether ``url`` is the relay's. ``gives_up`` is the share of calls that it cancels before long, to
    go on without them; ``thinks_s`` the mean time that its tools take.
    """

    number: int
    wire: str
    url: str
    diary: str
    stop: str
    seed: int
    gives_up: float = 0.08
    thinks_s: float = 2.0
    relayed: bool = False
    session: Session | None = None


class Talk:
    """One conversation and where it is."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.history: list[Any] = []
        self.seen: list[Seen] = []
        self.said = 0
        self.pending = ""
        """The mark of a call that was sent and not answered."""
        self.items = 0
        """How many items of the history it added."""
        self.over = False

    def send(self, mark: str, items: list[Any]) -> None:
        self.history += items
        self.said, self.pending, self.items = self.said + 1, mark, len(items)

    def give_up(self) -> None:
        """As if the call had not been made."""
        del self.history[len(self.history) - self.items :]
        self.pending = ""


class Episode:
    """One session of an agent."""

    def __init__(self, number: int, session: Session, stream: bool, turns: int, conversations: int) -> None:
        self.number = number
        self.session = session
        self.stream = stream
        self.turns = turns
        self.talks = [Talk(index) for index in range(conversations)]


OpenSession = Callable[[int], Awaitable[Session]]
SealSession = Callable[[Session], Awaitable[None]]


class Harness:
    """Runs one episode after the other. ``open_session`` and ``seal_session`` are its runner's."""

    def __init__(self, order: Order, open_session: OpenSession, seal_session: SealSession) -> None:
        self.order = order
        self.stop = Path(order.stop)
        self._open = open_session
        self._seal = seal_session
        self._chance = random.Random(f"{order.seed}/{order.number}/think")
        self._before = list(read(Path(order.diary)))
        self.diary = Diary(Path(order.diary))

    async def run(self) -> None:
        """Until it is told to stop."""
        episode, number = self._crashed()
        while episode is not None or not self.stop.exists():
            if episode is None:
                episode = await self.begin(number)
                number += 1
            await self.converse(episode)
            await self._seal(episode.session)
            self.diary.note("sealed", session=episode.session.id)
            episode = None
        self.diary.close()

    async def begin(self, number: int) -> Episode:
        """Open a session for something that is drawn from the seed."""
        chance = random.Random(f"{self.order.seed}/{self.order.number}/{number}")
        turns = chance.randint(3, 9)
        conversations = _CONVERSATIONS_AT_ONCE if chance.random() < 0.2 else 1
        # Half of the sessions end at their budget.
        session = await self._open(chance.randint(2, 6) if chance.random() < 0.5 else 50)
        episode = Episode(number, session, chance.random() < 0.5, turns, conversations)
        self.diary.note(
            "open",
            session=session.id,
            key=session.key,
            max_turns=session.max_turns,
            stream=episode.stream,
            conversations=conversations,
            turns=turns,
            episode=number,
            relayed=self.order.relayed,
        )
        return episode

    async def converse(self, episode: Episode) -> None:
        """All conversations of an episode, at the same time."""
        wire = WIRES[self.order.wire](self.order.url, episode.session.key)
        try:
            await asyncio.gather(*(self._talk(wire, episode, talk) for talk in episode.talks))
        finally:
            await wire.aclose()

    def _crashed(self) -> tuple[Episode | None, int]:
        """The episode in which the process before this one was killed, and the number of the next."""
        found: Episode | None = None
        number = 0
        for line in self._before:
            if line["kind"] == "open":
                session = Session(line["session"], line["key"], line["max_turns"])
                found = Episode(line["episode"], session, line["stream"], line["turns"], line["conversations"])
                number = line["episode"] + 1
            elif line["kind"] in ("sealed", "left"):
                found = None
            elif found is not None:
                _replay(found, line)
        if found is not None and random.Random(f"{self.order.seed}/{self.order.number}/{number}/left").random() < 0.25:
            self.diary.note("left", session=found.session.id)
            found = None
        return found, number

    async def _talk(self, wire: Wire, episode: Episode, talk: Talk) -> None:
        while not talk.over and (talk.pending or len(talk.seen) < episode.turns):
            if not talk.pending:
                if talk.seen:
                    await asyncio.sleep(self._chance.uniform(0, 2 * self.order.thinks_s))
                if self.stop.exists():
                    return
                self._say(wire, episode, talk)
            await self._ask(wire, episode, talk)

    def _say(self, wire: Wire, episode: Episode, talk: Talk) -> None:
        call = mark(self.order.number, episode.number, talk.number, talk.said)
        last = talk.seen[-1] if talk.seen else None
        if last is not None and last.calls:
            items = wire.results(last, f"output of {call}")
        else:
            items = wire.user(f"Please do {call}")
        talk.send(call, items)
        self.diary.note("send", session=episode.session.id, conversation=talk.number, mark=call, items=items)

    async def _ask(self, wire: Wire, episode: Episode, talk: Talk) -> None:
        while True:
            try:
                async with asyncio.timeout(self._patience(talk.pending)):
                    seen = await wire.ask(talk.history, episode.stream)
                break
            except TimeoutError:
                self.diary.note("gave_up", mark=talk.pending)
                talk.give_up()
                return
            except Transient as error:
                self.diary.note("fail", mark=talk.pending, why=str(error))
                await asyncio.sleep(_AGAIN_S)
            except Refused as error:
                self.diary.note("refused", mark=talk.pending, why=str(error))
                talk.over, talk.pending = True, ""
                return
        if seen.text.startswith(STOPPING):
            self.diary.note("control", mark=talk.pending, text=seen.text)
            talk.over = True
        else:
            self.diary.note("seen", mark=talk.pending, **msgspec.to_builtins(seen))
            talk.history += seen.items
            talk.seen.append(seen)
        talk.pending = ""

    def _patience(self, call: str) -> float | None:
        """How long a call may take before the agent goes another way; None: for ever, as for most."""
        chance = random.Random(f"{self.order.seed}/{call}")
        return chance.uniform(0.05, 1.0) if chance.random() < self.order.gives_up else None


def _replay(episode: Episode, line: dict[str, Any]) -> None:
    """Bring a conversation to where a line of the diary says it was."""
    if line["kind"] == "send":
        episode.talks[line["conversation"]].send(line["mark"], line["items"])
        return
    talk = next((talk for talk in episode.talks if talk.pending and talk.pending == line.get("mark")), Talk(-1))
    if line["kind"] == "seen":
        seen = msgspec.convert({name: line[name] for name in Seen.__struct_fields__}, Seen)
        talk.history += seen.items
        talk.seen.append(seen)
        talk.pending = ""
    elif line["kind"] == "gave_up":
        talk.give_up()
    elif line["kind"] in ("control", "refused"):
        talk.over, talk.pending = True, ""


async def one_session(order: Order) -> None:
    """The session of an order, to its end; whoever opened it seals it."""
    assert order.session is not None
    given = order.session

    async def open_session(_turns: int) -> Session:
        return given

    async def seal_session(_session: Session) -> None:
        pass

    harness = Harness(order, open_session, seal_session)
    await harness.converse(await harness.begin(0))


if __name__ == "__main__":
    asyncio.run(one_session(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Order)))
