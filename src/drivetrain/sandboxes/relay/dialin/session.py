"""The state of both ends of the dial-in relay, without any input or output (:mod:`.wire` is the protocol).

A :class:`Session` turns what the owner wants (open, send, finish, reset, consumed) into messages for the link, and
messages of the link into events for the owner. It outlives links: :meth:`Session.attach` starts a link,
:meth:`Session.detach` ends it, :meth:`Session.abandon` gives up. Runs inside the sandbox: standard library only.
"""

from __future__ import annotations

import os
from collections import deque
from typing import NamedTuple

from . import wire
from .wire import WireError

OVERHEAD = 64
"""What a kept frame costs beyond its bytes; bounds the number of small ones."""


class Opened(NamedTuple):
    """The peer opened a stream."""

    stream: int


class Received(NamedTuple):
    """Bytes of a stream, in order. Call :meth:`Session.consumed` when they are used."""

    stream: int
    data: bytes


class Ended(NamedTuple):
    """The peer sends no more bytes on this stream."""

    stream: int


class Aborted(NamedTuple):
    """The stream is over, at once; ``code`` is a ``wire.RESET_*``."""

    stream: int
    code: int


class Credit(NamedTuple):
    """More may be sent on this stream."""

    stream: int


class Attached(NamedTuple):
    """The peer's HELLO came; ``resumed`` when the session goes on, with ``resent`` frames to send again."""

    resumed: bool
    resent: int


class Stream:
    """Offsets of one stream, in bytes: each direction's position, limit and end."""

    __slots__ = ("consumed", "ended", "finished", "granted", "limit", "received", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self.limit = wire.WINDOW_BYTES
        self.finished = False  # we sent EOF
        self.received = 0
        self.consumed = 0
        self.granted = wire.WINDOW_BYTES
        self.ended = False  # we received EOF


class Session:
    """One end. ``opens`` is True for the inside, the only one that opens streams."""

    def __init__(self, opens: bool) -> None:
        self._opens = opens
        self.streams: dict[int, Stream] = {}
        self._incarnation = os.urandom(16)
        self._forget()

    def _forget(self) -> None:
        """Count from nothing: no streams, no peer, nothing kept."""
        self.streams.clear()
        self._peer = wire.NOBODY
        self._last = 0  # highest stream id ever
        self._received = 0  # counted frames from the peer
        self._acknowledged = 0  # counted frames of ours the peer has
        self._sent: deque[bytes] = deque()  # written to a link, not acknowledged
        self._unsent: deque[bytes] = deque()
        self._kept_bytes = 0  # of both
        self._unsent_bytes = 0
        self._due = 0  # cost of what was received since our last ACK
        self._urgent: deque[bytes] = deque()
        self._ready = False  # the peer's HELLO came on this link

    # -- what the owner wants

    def open(self) -> int:
        """A new stream's id (inside only)."""
        assert self._opens
        self._last += 1
        self.streams[self._last] = Stream()
        self._count(wire.OPEN, self._last, 0)
        return self._last

    def credit(self, stream: int) -> int:
        """Bytes the peer takes on this stream now; 0 when the stream is over."""
        state = self.streams.get(stream)
        return state.limit - state.sent if state and not state.finished else 0

    def has_space(self) -> bool:
        """Whether DATA may be sent now: what is kept and what waits for the link are within their bounds."""
        return self._kept_bytes < wire.KEEP_BYTES and self._unsent_bytes < wire.QUEUE_BYTES

    def send(self, stream: int, data: bytes) -> None:
        """Send at most ``CHUNK_BYTES`` and :meth:`credit` bytes; nothing when the stream is over."""
        state = self.streams.get(stream)
        if state is None:
            return
        assert 0 < len(data) <= min(wire.CHUNK_BYTES, self.credit(stream))
        self._count(wire.DATA, stream, state.sent, data)
        state.sent += len(data)

    def finish(self, stream: int) -> None:
        """No more bytes from us on this stream."""
        state = self.streams.get(stream)
        if state is None or state.finished:
            return
        state.finished = True
        self._count(wire.EOF, stream, state.sent)
        self._drop_if_over(stream, state)

    def reset(self, stream: int, code: int = wire.RESET_ABORTED) -> None:
        """End both ways of a stream at once."""
        if self.streams.pop(stream, None) is not None:
            self._count(wire.RESET, stream, code)

    def consumed(self, stream: int, size: int) -> None:
        """``size`` received bytes are out of memory: grant as many anew (in steps of a quarter window)."""
        state = self.streams.get(stream)
        if state is None or state.ended:
            return
        state.consumed += size
        if state.consumed + wire.WINDOW_BYTES - state.granted >= wire.WINDOW_BYTES // 4:
            state.granted = state.consumed + wire.WINDOW_BYTES
            self._count(wire.WINDOW, stream, state.granted)

    def ping(self, token: int) -> None:
        """Ask the peer for a sign of life."""
        self._urgent.append(wire.encode(wire.PING, 0, token))

    # -- links

    @property
    def ready(self) -> bool:
        """Whether this link's HELLO has come."""
        return self._ready

    def attach(self) -> bytes:
        """The first message of a new link."""
        return wire.encode_hello(wire.Hello(self._incarnation, self._peer, self._received))

    def detach(self) -> None:
        """The link is gone; everything is kept for the next one."""
        self._ready = False
        self._urgent.clear()

    def abandon(self) -> list[int]:
        """Give the session up; the streams that are over now. The peer finds out by the new incarnation."""
        over = list(self.streams)
        self._forget()
        self._incarnation = os.urandom(16)
        return over

    def next_message(self) -> bytes | None:
        """What to write to the link next, None when there is nothing."""
        if not self._ready:
            return None
        if self._urgent:
            return self._urgent.popleft()
        if not self._unsent:
            return None
        message = self._unsent.popleft()
        self._sent.append(message)
        self._unsent_bytes -= len(message) + OVERHEAD
        return message

    def receive(self, message: bytes) -> list[NamedTuple]:
        """Take a message of the link; what it means for the owner, in order.

        Raises:
            WireError: the peer broke the protocol; close the link and :meth:`abandon`.
        """
        frame = wire.decode(message)
        if not self._ready:
            return self._hello(wire.decode_hello(frame))
        if frame.type in wire.COUNTED:
            self._received += 1
            self._due += len(message) + OVERHEAD
            if self._due >= wire.ACK_BYTES:
                self._acknowledge()
            return self._counted(frame)
        if frame.type == wire.ACK:
            self._forget_until(frame.number)
        elif frame.type == wire.PING:
            self._acknowledge()
            self._urgent.append(wire.encode(wire.PONG, 0, frame.number))
        elif frame.type == wire.HELLO:
            raise WireError("a second HELLO on one link")
        return []

    def _hello(self, hello: wire.Hello) -> list[NamedTuple]:
        events: list[NamedTuple] = []
        known = self._peer in (wire.NOBODY, hello.incarnation)
        resumed = known and hello.knows in (wire.NOBODY, self._incarnation)
        resent = 0
        if resumed:
            self._forget_until(hello.received)
            resent = len(self._sent)
            self._unsent.extendleft(reversed(self._sent))
            self._sent.clear()
            self._unsent_bytes = self._kept_bytes
        else:
            events += [Aborted(stream, wire.RESET_ABORTED) for stream in self.streams]
            self._forget()
        self._peer = hello.incarnation
        self._ready = True
        return [Attached(resumed, resent), *events]

    def _counted(self, frame: wire.Frame) -> list[NamedTuple]:
        if frame.type == wire.OPEN:
            return self._opened(frame.stream)
        if frame.stream > self._last:
            raise WireError(f"stream {frame.stream} was never opened")
        state = self.streams.get(frame.stream)
        if state is None:
            return []  # over on this side: the frame crossed our RESET or last EOF
        if frame.type == wire.DATA:
            return self._data(frame, state)
        if frame.type == wire.EOF:
            return self._eof(frame, state)
        if frame.type == wire.RESET:
            del self.streams[frame.stream]
            return [Aborted(frame.stream, frame.number)]
        if not state.limit <= frame.number <= state.sent + wire.WINDOW_BYTES:
            raise WireError(f"stream {frame.stream}: credit up to {frame.number} with {state.sent} sent")
        state.limit = frame.number
        return [Credit(frame.stream)]

    def _opened(self, stream: int) -> list[NamedTuple]:
        if self._opens or stream != self._last + 1:
            raise WireError(f"stream {stream} opened after {self._last}")
        self._last = stream
        if len(self.streams) >= wire.MAX_STREAMS:
            self._count(wire.RESET, stream, wire.RESET_TOO_MANY)
            return []
        self.streams[stream] = Stream()
        return [Opened(stream)]

    def _data(self, frame: wire.Frame, state: Stream) -> list[NamedTuple]:
        if state.ended or frame.number != state.received:
            raise WireError(f"stream {frame.stream}: bytes at {frame.number}, expected at {state.received}")
        state.received += len(frame.payload)
        if state.received > state.granted:
            raise WireError(f"stream {frame.stream}: {state.received} bytes with credit up to {state.granted}")
        return [Received(frame.stream, frame.payload)]

    def _eof(self, frame: wire.Frame, state: Stream) -> list[NamedTuple]:
        if state.ended or frame.number != state.received:
            raise WireError(f"stream {frame.stream}: end at {frame.number}, expected at {state.received}")
        state.ended = True
        self._drop_if_over(frame.stream, state)
        return [Ended(frame.stream)]

    # -- counting

    def _count(self, frame_type: int, stream: int, number: int, payload: bytes = b"") -> None:
        message = wire.encode(frame_type, stream, number, payload)
        self._unsent.append(message)
        self._kept_bytes += len(message) + OVERHEAD
        self._unsent_bytes += len(message) + OVERHEAD

    def _acknowledge(self) -> None:
        self._due = 0
        self._urgent.append(wire.encode(wire.ACK, 0, self._received))

    def _forget_until(self, received: int) -> None:
        """The peer has our first ``received`` counted frames."""
        if not self._acknowledged <= received <= self._acknowledged + len(self._sent):
            raise WireError(f"acknowledged {received}, sent up to {self._acknowledged + len(self._sent)}")
        for _ in range(received - self._acknowledged):
            self._kept_bytes -= len(self._sent.popleft()) + OVERHEAD
        self._acknowledged = received

    def _drop_if_over(self, stream: int, state: Stream) -> None:
        if state.finished and state.ended:
            del self.streams[stream]
