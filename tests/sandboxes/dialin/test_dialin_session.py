"""The state of both ends against a network that cuts anywhere: nothing lost, nothing doubled, order kept."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from drivetrain.sandboxes.relay.dialin import session as events
from drivetrain.sandboxes.relay.dialin import wire
from drivetrain.sandboxes.relay.dialin.session import OVERHEAD, Session
from drivetrain.sandboxes.relay.dialin.wire import WireError

SMALL = {"WINDOW_BYTES": 64, "CHUNK_BYTES": 16, "ACK_BYTES": 300, "KEEP_BYTES": 1200, "QUEUE_BYTES": 600}
"""Sizes small enough that a few steps meet every bound."""


class Side:
    """One end, what its owner sent and what it got; ``life`` tells streams of different sessions apart."""

    def __init__(self, opens: bool) -> None:
        self.opens = opens
        self.session = Session(opens)
        self.wrote: dict[int, bytearray] = {}
        self.got: dict[int, bytearray] = {}
        self.held: dict[int, int] = {}  # received and not yet consumed
        self.finished: set[int] = set()
        self.ended: set[int] = set()
        self.over: set[int] = set()  # aborted, by either side
        self.line: deque[bytes] = deque()  # messages on their way to the other side

    def begin(self, stream: int) -> None:
        self.wrote[stream], self.got[stream], self.held[stream] = bytearray(), bytearray(), 0

    def clear(self) -> None:
        for known in (self.wrote, self.got, self.held):
            known.clear()
        for marked in (self.finished, self.ended, self.over):
            marked.clear()

    def apply(self, message: bytes) -> None:
        for event in self.session.receive(message):
            if isinstance(event, events.Attached):
                if not event.resumed:
                    self.clear()
            elif isinstance(event, events.Opened):
                self.begin(event.stream)
            elif isinstance(event, events.Received):
                assert event.stream not in self.over | self.ended
                self.got[event.stream] += event.data
                self.held[event.stream] += len(event.data)
            elif isinstance(event, events.Ended):
                assert event.stream not in self.ended
                self.ended.add(event.stream)
            elif isinstance(event, events.Aborted) and event.stream in self.got:  # else of the session before
                self.over.add(event.stream)

    def live(self) -> list[int]:
        return sorted(self.session.streams)


class Network(RuleBasedStateMachine):
    """Any order of what owners do, deliveries, cuts at any message, restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for name, value in SMALL.items():
            self.patch.setattr(wire, name, value)
        self.sides = (Side(True), Side(False))
        self.linked = False
        self.lossless = True  # no session was given up so far

    def teardown(self) -> None:
        """A good link in the end: everything of streams that were not reset arrives."""
        try:
            self.settle()
        finally:
            self.patch.undo()

    @initialize()
    def first(self) -> None:
        self.open()
        self.link()

    @rule(seed=st.integers(0, 1 << 32), steps=st.integers(1, 40))
    def traffic(self, seed: int, steps: int) -> None:
        """Owners and network at work, in an order of the seed."""
        dice = random.Random(seed)
        for _ in range(steps):
            which = dice.randrange(2)
            match dice.choices(
                ("send", "consume", "emit", "deliver", "open", "finish", "reset"), (40, 15, 15, 15, 5, 3, 1)
            )[0]:
                case "send":
                    self.send(which, dice)
                case "consume":
                    self.consume(which, dice.random())
                case "emit":
                    self.emit(which, dice.randint(1, 12))
                case "deliver":
                    self.deliver(which, dice.randint(1, 12))
                case "open":
                    self.open()
                case "finish":
                    self.finish(which, dice)
                case "reset":
                    self.reset(which, dice)
            self.in_order()
            self.bounded()

    @precondition(lambda self: self.linked)
    @rule(again=st.booleans())
    def cut(self, again: bool) -> None:
        """Whatever is on its way is lost."""
        for side in self.sides:
            side.line.clear()
            side.session.detach()
        self.linked = False
        if again:
            self.link()

    @precondition(lambda self: not self.linked)
    @rule()
    def link(self) -> None:
        for side in self.sides:
            side.line.append(side.session.attach())
        self.linked = True

    @precondition(lambda self: self.linked)
    @rule(which=st.integers(0, 1))
    def ping(self, which: int) -> None:
        self.sides[which].session.ping(7)

    @precondition(lambda self: not self.linked)
    @rule(which=st.integers(0, 5))
    def give_up(self, which: int) -> None:
        if which > 1:
            return  # rarer: the other rules need time
        self.lossless = False
        side = self.sides[which]
        assert set(side.session.abandon()) <= set(side.wrote)
        side.clear()

    # -- the steps of traffic

    def open(self) -> None:
        side = self.sides[0]
        if len(side.session.streams) < 6:
            side.begin(side.session.open())

    def send(self, which: int, dice: random.Random) -> None:
        side = self.sides[which]
        live = [stream for stream in side.live() if side.session.credit(stream) > 0]
        if live and side.session.has_space():
            stream = dice.choice(live)
            data = dice.randbytes(dice.randint(1, min(wire.CHUNK_BYTES, side.session.credit(stream))))
            side.session.send(stream, data)
            side.wrote[stream] += data

    def finish(self, which: int, dice: random.Random) -> None:
        side = self.sides[which]
        if live := side.live():
            stream = dice.choice(live)
            side.session.finish(stream)
            side.finished.add(stream)

    def reset(self, which: int, dice: random.Random) -> None:
        side = self.sides[which]
        if live := side.live():
            stream = dice.choice(live)
            side.session.reset(stream)
            side.over.add(stream)

    def consume(self, which: int, share: float) -> None:
        side = self.sides[which]
        for stream in side.live():
            if size := round(side.held[stream] * share):
                side.held[stream] -= size
                side.session.consumed(stream, size)

    def emit(self, which: int, count: int) -> None:
        """Put messages on their way."""
        side = self.sides[which]
        for _ in range(count if self.linked else 0):
            if (message := side.session.next_message()) is not None:
                side.line.append(message)

    def deliver(self, which: int, count: int) -> bool:
        """Bring messages to the other side; False when there were none."""
        side, other = self.sides[which], self.sides[1 - which]
        count = min(count, len(side.line))
        for _ in range(count):
            other.apply(side.line.popleft())
        return count > 0

    # -- what must hold

    @invariant()
    def in_order(self) -> None:
        """What came is the beginning of what was sent (of streams that both sides still have)."""
        for side, other in (self.sides, self.sides[::-1]):
            for stream in set(side.live()) & set(other.live()) if self.lossless else ():
                assert other.wrote[stream].startswith(side.got[stream])

    @invariant()
    def bounded(self) -> None:
        for side in self.sides:
            assert all(side.held[stream] <= wire.WINDOW_BYTES for stream in side.live())
            counted = [*side.session._sent, *side.session._unsent]
            assert side.session._kept_bytes == sum(len(message) + OVERHEAD for message in counted)
            assert side.session._unsent_bytes == sum(len(message) + OVERHEAD for message in side.session._unsent)
            payload = sum(max(0, len(message) - wire.HEADER.size) for message in counted)
            assert payload <= wire.KEEP_BYTES + wire.CHUNK_BYTES

    def settle(self) -> None:
        if self.linked:
            self.cut(again=False)
        self.link()
        while any([self.deliver(0, 1000), self.deliver(1, 1000)]):
            for which in (0, 1):
                self.consume(which, 1.0)
                self.emit(which, 1000)
        one, two = self.sides
        assert set(one.live()) == set(two.live())
        assert all(side.session.has_space() for side in self.sides)
        for side, other in ((one, two), (two, one)):
            for stream in set(side.wrote) - one.over - two.over if self.lossless else side.live():
                assert bytes(other.got[stream]) == bytes(side.wrote[stream])
                assert (stream in other.ended) == (stream in side.finished)


TestNetwork = Network.TestCase
TestNetwork.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


# -- rules, one by one


def joined() -> tuple[Session, Session]:
    """An inside and a host whose HELLOs have crossed."""
    inside, host = Session(True), Session(False)
    first, second = inside.attach(), host.attach()
    host.receive(first)
    inside.receive(second)
    return inside, host


def pump(source: Session, target: Session) -> list[object]:
    """Deliver all that waits."""
    out: list[object] = []
    while (message := source.next_message()) is not None:
        out += target.receive(message)
    return out


def test_a_stream_opened_before_the_first_link_is_not_lost() -> None:
    inside, host = Session(True), Session(False)
    stream = inside.open()
    inside.send(stream, b"hello")
    hello = inside.attach()
    assert host.receive(hello) == [events.Attached(True, 0)]
    assert inside.next_message() is None  # nothing before the peer's HELLO
    inside.receive(host.attach())
    assert pump(inside, host) == [events.Opened(1), events.Received(1, b"hello")]


def test_what_was_received_is_not_sent_again() -> None:
    inside, host = joined()
    stream = inside.open()
    inside.send(stream, b"one")
    pump(inside, host)
    inside.send(stream, b"two")
    assert inside.next_message() is not None  # lost on the way
    inside.detach(), host.detach()
    hello = host.attach()
    assert host.receive(inside.attach()) == [events.Attached(True, 0)]
    assert inside.receive(hello) == [events.Attached(True, 1)]
    assert pump(inside, host) == [events.Received(1, b"two")]


def test_a_hello_that_only_one_side_got() -> None:
    inside, host = Session(True), Session(False)
    inside.open()
    inside.receive(host.attach())
    inside.next_message()  # and lost, with inside's HELLO
    inside.detach(), host.detach()
    hello = host.attach()
    host.receive(inside.attach())
    assert inside.receive(hello) == [events.Attached(True, 1)]
    assert pump(inside, host) == [events.Opened(1)]


@pytest.mark.parametrize("by", ["process", "abandon"])
@pytest.mark.parametrize("restarted", ["inside", "host"])
def test_a_restarted_end_resets_the_other_ends_streams(restarted: str, by: str) -> None:
    inside, host = joined()
    inside.open()
    pump(inside, host)
    inside.detach(), host.detach()
    old = host
    if restarted == "inside":
        assert by == "process" or inside.abandon() == [1]
        inside = inside if by == "abandon" else Session(True)
    else:
        assert by == "process" or host.abandon() == [1]
        host, old = host if by == "abandon" else Session(False), inside
    to_host, to_inside = inside.attach(), host.attach()
    got = {"inside": inside.receive(to_inside), "host": host.receive(to_host)}
    survivor = "host" if restarted == "inside" else "inside"
    assert got[survivor] == [events.Attached(False, 0), events.Aborted(1, wire.RESET_ABORTED)]
    assert got[restarted] == [events.Attached(False, 0)]
    assert old.streams == {}
    stream = inside.open()
    assert pump(inside, host) == [events.Opened(stream)]


def test_frames_that_crossed_a_reset_are_ignored() -> None:
    inside, host = joined()
    stream = inside.open()
    pump(inside, host)
    inside.reset(stream)
    host.send(stream, b"late")
    host.finish(stream)
    assert pump(host, inside) == []
    assert pump(inside, host) == [events.Aborted(stream, wire.RESET_ABORTED)]
    assert (inside.credit(stream), host.credit(stream)) == (0, 0)
    host.send(stream, b"later")
    host.consumed(stream, 4)
    assert host.next_message() is None


def test_more_streams_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_STREAMS", 1)
    inside, host = joined()
    inside.open(), inside.open()
    assert pump(inside, host) == [events.Opened(1)]
    assert pump(host, inside) == [events.Aborted(2, wire.RESET_TOO_MANY)]


def test_an_idle_ping_frees_what_was_kept() -> None:
    inside, host = joined()
    inside.send(inside.open(), b"x")
    pump(inside, host)
    assert inside._sent
    inside.ping(1)
    pump(inside, host)
    pump(host, inside)
    assert not inside._sent


FULL = wire.WINDOW_BYTES // wire.CHUNK_BYTES


@pytest.mark.parametrize(
    ("frames", "what"),
    [
        ([wire.encode(wire.DATA, 1, 0, b"x")], "never opened"),
        ([wire.encode(wire.OPEN, 2)], "opened after 0"),
        ([wire.encode(wire.OPEN, 1), wire.encode(wire.OPEN, 1)], "opened after 1"),
        ([wire.encode(wire.OPEN, 1), wire.encode(wire.DATA, 1, 5, b"x")], "expected at 0"),
        ([wire.encode(wire.OPEN, 1), *[wire.encode(wire.DATA, 1, 0, b"x")] * 2], "expected at 1"),
        ([wire.encode(wire.OPEN, 1), wire.encode(wire.EOF, 1, 1)], "end at 1"),
        ([wire.encode(wire.OPEN, 1), wire.encode(wire.EOF, 1), wire.encode(wire.DATA, 1, 0, b"x")], "expected at 0"),
        ([wire.encode(wire.OPEN, 1), wire.encode(wire.EOF, 1), wire.encode(wire.EOF, 1)], "end at 0"),
        ([wire.encode(wire.OPEN, 1), wire.encode(wire.WINDOW, 1, wire.WINDOW_BYTES + 1)], "credit up to"),
        ([wire.encode(wire.OPEN, 1), wire.encode(wire.WINDOW, 1, 1)], "credit up to"),
        ([wire.encode(wire.ACK, 0, 1)], "acknowledged 1"),
        ([wire.encode_hello(wire.Hello(bytes(16), bytes(16), 0))], "second HELLO"),
        (
            [
                wire.encode(wire.OPEN, 1),
                *[wire.encode(wire.DATA, 1, i * wire.CHUNK_BYTES, bytes(wire.CHUNK_BYTES)) for i in range(FULL + 1)],
            ],
            "with credit up to",
        ),
    ],
)
def test_a_frame_that_breaks_a_rule(frames: list[bytes], what: str) -> None:
    _, host = joined()
    with pytest.raises(WireError, match=what) as caught:
        for frame in frames:
            host.receive(frame)
    assert caught.value.code == wire.CLOSE_PROTOCOL


def test_the_host_opens_no_streams() -> None:
    inside, _ = joined()
    with pytest.raises(WireError, match="opened after"):
        inside.receive(wire.encode(wire.OPEN, 1))


def test_a_hello_that_claims_what_was_never_sent() -> None:
    inside = Session(True)
    mine = wire.decode_hello(wire.decode(inside.attach())).incarnation
    with pytest.raises(WireError, match="acknowledged 9"):
        inside.receive(wire.encode_hello(wire.Hello(b"h" * 16, mine, 9)))
