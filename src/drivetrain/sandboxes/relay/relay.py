"""TCP to Unix socket relay: how a box without a network reaches the gateway.

One process, one epoll, standard library only (it runs inside the box under the box's Python). It copies bytes both ways
with bounded buffers, passes half-closes on and answers nothing itself: when the gateway is down the client's
connection is closed.

As a script: ``python -I -S relay.py PORT SOCKET`` listens on 127.0.0.1:PORT.

A target ``broker:PATH`` is no gateway but somebody who connects for us: each connection to that SOCK_SEQPACKET socket
is answered with one message that carries a connected descriptor, or with an end of file when the gateway is down. A
box whose user may not enter the gateway's folder reaches the gateway like that.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
import time

BROKER = b"broker:"
CHUNK = 65536
CONNECT_PATIENCE_S = 10.0
RETRY_S = 0.01


class Pipe:
    """One direction: what was read from ``source`` and is not yet written to ``sink``."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.buffer = b""
        self.eof = False
        self.done = False  # end of file was passed on

    def push(self) -> None:
        """Write what the sink takes; pass the end of file on when the buffer is empty."""
        if self.buffer:
            try:
                self.buffer = self.buffer[self.sink.send(self.buffer) :]
            except BlockingIOError:
                return
        if self.eof and not self.buffer and not self.done:
            self.done = True
            try:
                self.sink.shutdown(socket.SHUT_WR)
            except OSError as error:
                if error.errno != errno.ENOTCONN:
                    raise

    def pull(self) -> None:
        """Read once, and only when nothing waits: that is the back-pressure."""
        if self.buffer or self.eof:
            return
        try:
            self.buffer = self.source.recv(CHUNK)
        except BlockingIOError:
            return
        self.eof = not self.buffer
        self.push()


class Connection:
    """A client and its connection to the gateway."""

    def __init__(self, client: socket.socket, target: bytes) -> None:
        self.client = client
        self.brokered = target.startswith(BROKER)
        kind = socket.SOCK_SEQPACKET if self.brokered else socket.SOCK_STREAM
        self.gateway = socket.socket(socket.AF_UNIX, kind)  # the broker first, where there is one
        self.gateway.setblocking(False)
        self.target = target[len(BROKER) :] if self.brokered else target
        self.asked = self.watched = False
        self.give_up = time.monotonic() + CONNECT_PATIENCE_S

    def connect(self) -> bool:
        """True when connected, False when the gateway's backlog is full; any other trouble raises OSError."""
        try:
            if not self.asked:
                self.gateway.connect(self.target)
                self.asked = True
            if self.brokered:
                self.receive()
        except BlockingIOError:
            if time.monotonic() > self.give_up:
                raise
            return False
        self.up = Pipe(self.client, self.gateway)
        self.down = Pipe(self.gateway, self.client)
        return True

    def receive(self) -> None:
        """Take the gateway's descriptor from the broker."""
        _, fds, _, _ = socket.recv_fds(self.gateway, 16, 1)
        self.gateway.close()
        if not fds:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the gateway is down")
        self.gateway = socket.socket(fileno=fds[0])
        self.gateway.setblocking(False)

    def interest(self, mine: socket.socket) -> int:
        reader, writer = (self.up, self.down) if mine is self.client else (self.down, self.up)
        events = select.EPOLLIN if not reader.buffer and not reader.eof else 0
        return events | (select.EPOLLOUT if writer.buffer else 0)

    def close(self) -> None:
        self.client.close()
        self.gateway.close()


class Relay:
    """The event loop over one listening socket."""

    def __init__(self, listener: socket.socket, target: bytes) -> None:
        self.listener = listener
        self.target = target
        self.poller = select.epoll()
        self.poller.register(listener.fileno(), select.EPOLLIN)
        self.connections: dict[int, tuple[Connection, socket.socket]] = {}
        self.polled: dict[int, int] = {}  # fd -> events it is registered for
        self.waiting: list[Connection] = []

    def run(self) -> None:
        while True:
            for fd, _ in self.poller.poll(RETRY_S if self.waiting else -1):
                if fd == self.listener.fileno():
                    self.accept()
                elif fd in self.connections:
                    self.move(*self.connections[fd])
            waiting, self.waiting = self.waiting, []
            for connection in waiting:
                self.connect(connection)

    def accept(self) -> None:
        try:
            client, _ = self.listener.accept()
        except OSError:
            time.sleep(RETRY_S)  # out of descriptors: the backlog holds the client
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connect(Connection(client, self.target))

    def connect(self, connection: Connection) -> None:
        try:
            if not connection.connect():
                self.waiting.append(connection)
                if connection.asked and not connection.watched:
                    connection.watched = True  # only to wake the poll; closing the descriptor ends it
                    self.poller.register(connection.gateway.fileno(), select.EPOLLIN)
                return
        except OSError:
            connection.close()
            return
        for side in (connection.client, connection.gateway):
            self.connections[side.fileno()] = (connection, side)
            self.watch(connection, side)

    def watch(self, connection: Connection, side: socket.socket) -> None:
        """Poll for what is wanted now. Not at all when that is nothing: epoll reports a hang-up regardless."""
        fd, events = side.fileno(), connection.interest(side)
        if events == self.polled.get(fd, 0):
            return
        if not events:
            self.poller.unregister(fd)
        elif fd in self.polled:
            self.poller.modify(fd, events)
        else:
            self.poller.register(fd, events)
        self.polled[fd] = events
        if not events:
            del self.polled[fd]

    def move(self, connection: Connection, side: socket.socket) -> None:
        """Both ways, whatever the event was: a hang-up or an error shows in the call it concerns."""
        try:
            for pipe in (connection.up, connection.down):
                if pipe.sink is side:
                    pipe.push()
                else:
                    pipe.pull()
        except OSError:
            self.drop(connection)
            return
        if connection.up.done and connection.down.done:
            self.drop(connection)
            return
        for each in (connection.client, connection.gateway):
            self.watch(connection, each)

    def drop(self, connection: Connection) -> None:
        for side in (connection.client, connection.gateway):
            self.connections.pop(side.fileno(), None)
            if self.polled.pop(side.fileno(), 0):
                self.poller.unregister(side.fileno())
        connection.close()


def serve(listener_fd: int, target: bytes) -> None:
    """Relay connections of a listening TCP socket to the Unix socket at ``target``; does not return."""
    listener = socket.socket(fileno=listener_fd)
    listener.setblocking(False)
    Relay(listener, target).run()


def main() -> None:
    """Command line: PORT SOCKET."""
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=512)
    serve(listener.detach(), os.fsencode(sys.argv[2]))


if __name__ == "__main__":
    main()
