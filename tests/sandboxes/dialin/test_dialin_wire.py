"""Frames and the WebSocket as bytes."""

from __future__ import annotations

import asyncio
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.sandboxes.relay.dialin import websocket, wire
from drivetrain.sandboxes.relay.dialin.websocket import ServerLink
from drivetrain.sandboxes.relay.dialin.wire import WireError

SECRET = b"s" * 43


@given(st.integers(1, (1 << 32) - 1), st.integers(0, (1 << 64) - 1), st.binary(min_size=1, max_size=300))
def test_frames_round_trip(stream: int, number: int, payload: bytes) -> None:
    assert wire.decode(wire.encode(wire.DATA, stream, number, payload)) == (wire.DATA, stream, number, payload)
    assert wire.decode(wire.encode(wire.RESET, stream, number)) == (wire.RESET, stream, number, b"")


@given(st.binary(max_size=64))
def test_any_bytes_are_a_frame_or_a_typed_error(message: bytes) -> None:
    try:
        frame = wire.decode(message)
    except WireError:
        return
    assert wire.encode(*frame) == message


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"", wire.CLOSE_PROTOCOL),
        (wire.encode(wire.OPEN, 1)[:-1], wire.CLOSE_PROTOCOL),
        (wire.encode(0, 1), wire.CLOSE_PROTOCOL),
        (wire.encode(10, 1), wire.CLOSE_PROTOCOL),
        (wire.encode(wire.OPEN, 1, 0, b"x"), wire.CLOSE_PROTOCOL),
        (wire.encode(wire.DATA, 1, 0), wire.CLOSE_PROTOCOL),
        (wire.encode(wire.DATA, 0, 0, b"x"), wire.CLOSE_PROTOCOL),
        (wire.encode(wire.PING, 1, 0), wire.CLOSE_PROTOCOL),
        (wire.encode(wire.DATA, 1, 0, bytes(wire.CHUNK_BYTES + 1)), wire.CLOSE_TOO_BIG),
    ],
)
def test_malformed_frames(message: bytes, code: int) -> None:
    with pytest.raises(WireError) as caught:
        wire.decode(message)
    assert caught.value.code == code


def test_another_version_is_refused() -> None:
    hello = bytearray(wire.encode_hello(wire.Hello(bytes(16), bytes(16), 0)))
    hello[wire.HEADER.size] = 9
    with pytest.raises(WireError, match="version 9"):
        wire.decode_hello(wire.decode(bytes(hello)))
    with pytest.raises(WireError, match="HELLO was due"):
        wire.decode_hello(wire.decode(wire.encode(wire.PING)))


def client_frame(opcode: int, payload: bytes, *, final: bool = True, first: int = 0, masked: bool = True) -> bytes:
    """A frame as a client sends it."""
    size = len(payload)
    mask = 0x80 if masked else 0
    head = bytes([(0x80 if final else 0) | first | opcode])
    if size < 126:
        head += bytes([mask | size])
    elif size < 1 << 16:
        head += struct.pack(">BH", mask | 126, size)
    else:
        head += struct.pack(">BQ", mask | 127, size)
    key = b"\x12\x34\x56\x78"
    body = bytes(byte ^ key[i % 4] for i, byte in enumerate(payload))
    return head + key + body if masked else head + payload


class Sink:
    """A writer that keeps what is written."""

    def __init__(self) -> None:
        self.data = b""
        self.transport = self

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None: ...
    async def wait_closed(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


async def received(pieces: list[bytes]) -> tuple[list[bytes], Sink]:
    """Messages a link makes of bytes that arrive in pieces, and what it wrote meanwhile."""
    reader, sink = asyncio.StreamReader(), Sink()
    link = ServerLink(reader, sink)  # type: ignore[arg-type]

    async def feed() -> None:
        for piece in pieces:
            reader.feed_data(piece)
            await asyncio.sleep(0)
        reader.feed_eof()

    feeding = asyncio.create_task(feed())
    messages = []
    try:
        while (message := await link.receive()) is not None:
            messages.append(message)
    finally:
        await feeding
    return messages, sink


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_messages_in_any_parts_and_pieces(data: st.DataObject) -> None:
    """Fragments, pings between them, any cut of the bytes; an incomplete last message is no message."""
    wanted, raw = [], b""
    for _ in range(data.draw(st.integers(1, 4))):
        message = data.draw(st.binary(max_size=300))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(message)), max_size=3)))
        parts = [message[a:b] for a, b in zip([0, *cuts], [*cuts, len(message)], strict=True)]
        for number, part in enumerate(parts):
            raw += client_frame(websocket.BINARY if number == 0 else 0, part, final=number == len(parts) - 1)
            raw += client_frame(websocket.PING, b"p") if data.draw(st.booleans()) and part is not parts[-1] else b""
        wanted.append(message)
    lost = data.draw(st.integers(0, 1))
    size = data.draw(st.integers(1, 64))
    whole = raw + client_frame(websocket.BINARY, b"incomplete")[: -1 if lost else None]
    pieces = [whole[i : i + size] for i in range(0, len(whole), size)]
    messages, _ = asyncio.run(received(pieces))
    assert messages == wanted + ([] if lost else [b"incomplete"])


async def test_a_ping_is_answered_and_a_close_is_the_end() -> None:
    raw = client_frame(websocket.PING, b"hi") + client_frame(websocket.CLOSE, struct.pack(">H", 4000))
    messages, sink = await received([raw + client_frame(websocket.BINARY, b"late")])
    assert messages == []
    assert sink.data == websocket.frame(websocket.PONG, b"hi") + websocket.frame(websocket.CLOSE, b"\x03\xe8")


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (client_frame(websocket.BINARY, b"x", masked=False), wire.CLOSE_PROTOCOL),
        (client_frame(websocket.BINARY, b"x", first=0x40), wire.CLOSE_PROTOCOL),
        (client_frame(websocket.TEXT, b"x"), wire.CLOSE_PROTOCOL),
        (client_frame(0, b"x"), wire.CLOSE_PROTOCOL),
        (client_frame(websocket.BINARY, b"x", final=False) + client_frame(websocket.BINARY, b"y"), wire.CLOSE_PROTOCOL),
        (client_frame(websocket.PING, bytes(126)), wire.CLOSE_PROTOCOL),
        (client_frame(websocket.PING, b"", final=False), wire.CLOSE_PROTOCOL),
        (client_frame(3, b""), wire.CLOSE_PROTOCOL),
        (b"\x82\xff" + struct.pack(">Q", 1 << 40), wire.CLOSE_TOO_BIG),
        (client_frame(2, bytes(30000), final=False) + client_frame(0, bytes(30000)), wire.CLOSE_TOO_BIG),
    ],
)
async def test_what_no_client_may_send(raw: bytes, code: int) -> None:
    with pytest.raises(WireError) as caught:
        await received([raw])
    assert caught.value.code == code


def head(**changed: str | None) -> bytes:
    """A good upgrade with some headers changed or left out."""
    lines = {
        "Host": "box",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        wire.SECRET_HEADER: SECRET.decode(),
    } | {name.replace("_", "-"): value for name, value in changed.items()}
    start = lines.pop("start", None) or "GET / HTTP/1.1"
    return "\r\n".join([start, *(f"{name}: {value}" for name, value in lines.items() if value is not None)]).encode()


def test_the_upgrade_of_the_standards_example() -> None:
    accepted, reply = websocket.answer(head(), SECRET)
    assert accepted
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in reply


@pytest.mark.parametrize("secret", [None, "", "s" * 42, "s" * 44, "S" * 43])
@pytest.mark.parametrize("other", [{}, {"start": "POST /x HTTP/1.1"}, {"Upgrade": None}])
def test_without_the_secret_everything_is_the_same_401(secret: str | None, other: dict[str, str | None]) -> None:
    request = head(**{wire.SECRET_HEADER: secret}, **other)
    assert websocket.answer(request, SECRET) == (False, websocket.UNAUTHORIZED)


@pytest.mark.parametrize("changed", [{"Upgrade": "h2c"}, {"Sec-WebSocket-Version": "8"}, {"Sec-WebSocket-Key": None}])
def test_with_the_secret_but_no_upgrade(changed: dict[str, str | None]) -> None:
    accepted, reply = websocket.answer(head(**changed), SECRET)
    assert not accepted
    assert reply.startswith(b"HTTP/1.1 426 ")
