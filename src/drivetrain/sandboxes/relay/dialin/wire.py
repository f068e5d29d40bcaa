"""The protocol of the dial-in relay, and its frames as bytes.

The host (where the gateway is) dials the inside (a sandbox) and both speak over **one link**: a WebSocket, because
providers publish a sandbox's ports through HTTPS proxies. A harness that connects to the inside's relay port opens a
**stream**; the host joins it to a connection of its own to the gateway's Unix socket. This module and the others that
the inside uses are standard library only and run on Python 3.9 (:mod:`.package` puts them in one file).

**Link.** ``GET /`` with ``Upgrade: websocket`` (RFC 6455), the shared secret in the header ``X-Drivetrain-Dial-In``.
Anything else is answered 401 and nothing more. One link at a time: a new authenticated dial replaces the old one, which
is closed with :data:`CLOSE_REPLACED`. Each binary message is one frame of at most :data:`MAX_MESSAGE` bytes.

**Frame.** 13 bytes, big endian: type (u8), stream (u32), number (u64); then a payload, which only DATA and HELLO have.

=======  ==========================================================  ==========================================
type     number                                                      meaning
=======  ==========================================================  ==========================================
HELLO    frames received from the peer so far                        first frame each way; see Resume
OPEN     0                                                           inside only: a harness connected
DATA     byte offset of the payload in its direction of the stream   bytes
WINDOW   absolute byte offset                                        the peer may send up to this offset
EOF      byte offset of the end                                      half-close: no more bytes this way
RESET    a code (``RESET_*``)                                        both ways of the stream are over, now
ACK      frames received from the peer so far                        the peer may forget them
PING     any token                                                   answered with PONG of the same token
PONG     the token                                                   the far end, not a proxy, is alive
=======  ==========================================================  ==========================================

**Streams.** Numbered by the inside from 1 upwards, never used twice. Each direction starts with :data:`WINDOW_BYTES` of
credit; the receiver grants more as its own socket takes bytes, so a reader that does not read stops its own stream at
a bounded amount and no other. A frame for a stream that is over is ignored (it crossed a RESET or the last EOF).

**Order and resume.** OPEN, DATA, WINDOW, EOF and RESET are *counted*: each side keeps those it sent until the peer
acknowledges them by their number since the session began. Counting whole frames instead of the bytes of each stream
makes the loss of any of them (an OPEN, a RESET, a grant) recoverable in one way; the offsets in DATA, EOF and WINDOW
are checked on arrival, so that a byte lost or doubled is an error and never an altered request. What is kept is bounded
(:data:`KEEP_BYTES`): beyond it no DATA is taken from any stream.

HELLO's payload is the version (u8), the sender's incarnation (16 random bytes) and the incarnation of the peer that the
sender knows (zeros for none). When each side knows the other, or nobody, the session goes on and each resends what the
other has not received. Otherwise (one side was restarted or gave up) both reset every stream and count from 0. Nothing
but HELLO is sent on a link before the peer's HELLO. A side that had no link for its time limit resets its streams and
takes a new incarnation.

**Liveness.** PING and PONG are frames of this protocol because a proxy may answer a WebSocket's own pings for a peer
that is gone. A side that has received nothing for a while sends PING, and drops the link when still nothing comes.

**Errors.** A frame that breaks a rule closes the link with :data:`CLOSE_PROTOCOL` (:data:`CLOSE_TOO_BIG` for size) and
ends the session: state that may be wrong is not resumed.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

VERSION = 1
SECRET_HEADER = "X-Drivetrain-Dial-In"

HELLO, OPEN, DATA, WINDOW, EOF, RESET, ACK, PING, PONG = range(1, 10)
COUNTED = frozenset({OPEN, DATA, WINDOW, EOF, RESET})
"""Types that are numbered, kept until acknowledged, and resent."""
_WITH_PAYLOAD = frozenset({HELLO, DATA})
_WITHOUT_STREAM = frozenset({HELLO, ACK, PING, PONG})

CHUNK_BYTES = 32 << 10
"""Most payload of one DATA frame."""
WINDOW_BYTES = 256 << 10
"""Most bytes one direction of a stream may hold at the receiver."""
KEEP_BYTES = 4 << 20
"""Most bytes kept for a resend, over all streams, before DATA has to wait."""
QUEUE_BYTES = 256 << 10
"""Most of them not yet written to the link: what a new stream's first byte waits behind."""
ACK_BYTES = 256 << 10
"""An ACK is due after this much was received."""
MAX_STREAMS = 1024

HEADER = struct.Struct(">BIQ")
_HELLO_BODY = struct.Struct(">B16s16s")
MAX_MESSAGE = HEADER.size + CHUNK_BYTES
NOBODY = bytes(16)

RESET_REFUSED, RESET_ABORTED, RESET_TOO_MANY = 1, 2, 3
"""The gateway took no connection; a local connection broke; more than :data:`MAX_STREAMS`."""

CLOSE_PROTOCOL, CLOSE_TOO_BIG, CLOSE_BYE, CLOSE_REPLACED, CLOSE_DEAD = 1002, 1009, 4000, 4001, 4002
"""WebSocket close codes. BYE: the host is done for good, streams are reset at once. DEAD: nothing came for too long."""


class WireError(Exception):
    """The peer broke the protocol; ``code`` is the WebSocket close code to send."""

    def __init__(self, what: str, code: int = CLOSE_PROTOCOL) -> None:
        super().__init__(what)
        self.code = code


class Frame(NamedTuple):
    """One frame; see the module's table."""

    type: int
    stream: int
    number: int
    payload: bytes = b""


class Hello(NamedTuple):
    """What HELLO says: the sender, whom it knows (:data:`NOBODY` for none), frames it received from them."""

    incarnation: bytes
    knows: bytes
    received: int


def encode(frame_type: int, stream: int = 0, number: int = 0, payload: bytes = b"") -> bytes:
    """A frame as the bytes of one message."""
    return HEADER.pack(frame_type, stream, number) + payload


def encode_hello(hello: Hello) -> bytes:
    """A HELLO as the bytes of one message."""
    return encode(HELLO, 0, hello.received, _HELLO_BODY.pack(VERSION, hello.incarnation, hello.knows))


def decode(message: bytes) -> Frame:
    """The frame of one message.

    Raises:
        WireError: too short, too long, an unknown type, or parts that its type does not have.
    """
    if len(message) > MAX_MESSAGE:
        raise WireError(f"a message of {len(message)} bytes", CLOSE_TOO_BIG)
    if len(message) < HEADER.size:
        raise WireError(f"a message of {len(message)} bytes")
    frame_type, stream, number = HEADER.unpack_from(message)
    if not HELLO <= frame_type <= PONG:
        raise WireError(f"frame type {frame_type}")
    payload = message[HEADER.size :]
    if bool(payload) != (frame_type in _WITH_PAYLOAD):
        raise WireError(f"a frame of type {frame_type} with {len(payload)} bytes of payload")
    if (stream == 0) != (frame_type in _WITHOUT_STREAM):
        raise WireError(f"a frame of type {frame_type} for stream {stream}")
    return Frame(frame_type, stream, number, payload)


def decode_hello(frame: Frame) -> Hello:
    """What a HELLO frame says.

    Raises:
        WireError: it is none, or of another version.
    """
    if frame.type != HELLO or len(frame.payload) != _HELLO_BODY.size:
        raise WireError(f"a frame of type {frame.type} where HELLO was due")
    version, incarnation, knows = _HELLO_BODY.unpack(frame.payload)
    if version != VERSION:
        raise WireError(f"the peer speaks version {version}, not {VERSION}")
    return Hello(incarnation, knows, frame.number)
