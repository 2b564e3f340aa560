"""A connection: a non-blocking socket with a bounded out-queue. A peer that does not drain it is closed."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from helixd.runtime.user import User
from libhelix.wire import channel

MAX_QUEUED_BYTES = 8 << 20
MAX_QUEUED_MESSAGES = 16_384
_MESSAGE_BYTES = 200
"""What a message takes in the queue beside its bytes."""


class Overflow(Exception):
    """The peer does not read what it is sent."""


class _Outgoing(NamedTuple):
    data: bytes
    descriptors: tuple[int, ...]  # ours: closed once sent


class Link:
    """One end of a SEQPACKET connection. Owns the socket, and the descriptors that wait to be sent."""

    def __init__(self, sock: socket.socket, user: User | None = None) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._user = user
        self.closing = False
        self._queue: deque[_Outgoing] = deque()
        self._queued_bytes = 0

    def fileno(self) -> int:
        """For selectors."""
        return self.sock.fileno()

    @property
    def backlog(self) -> bool:
        """Whether something waits for the peer to read."""
        return bool(self._queue)

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send now, or as soon as the peer reads. Raises Overflow if it does not, OSError if it is gone."""
        if not self._queue:
            try:
                channel.send(self.sock, data, descriptors)
            except BlockingIOError:
                pass
            else:
                return
        if len(self._queue) >= MAX_QUEUED_MESSAGES or self._queued_bytes + len(data) > MAX_QUEUED_BYTES:
            raise Overflow(f"{len(self._queue)} messages wait for a peer that does not read")
        if self._user is not None and not self._user.has_room(len(data) + _MESSAGE_BYTES):
            raise Overflow(f"{self._user.queued_bytes:,} bytes wait for processes of this user, unread")
        self._queue.append(_Outgoing(data, tuple(os.dup(fd) for fd in descriptors)))
        self._count(len(data), 1)

    def _count(self, nbytes: int, messages: int) -> None:
        self._queued_bytes += nbytes
        if self._user is not None:
            self._user.queued_bytes += nbytes + messages * _MESSAGE_BYTES

    def flush(self) -> None:
        """Send what waits, as far as the peer reads. Raises OSError where it is gone."""
        while self._queue:
            head = self._queue[0]
            try:
                channel.send(self.sock, head.data, head.descriptors)
            except BlockingIOError:
                return
            self._queue.popleft()
            self._count(-len(head.data), -1)
            channel.close_all(head.descriptors)

    def receive(self) -> tuple[bytes, list[int]] | None:
        """One message; None when the peer is gone. Raises BlockingIOError, ProtocolError."""
        try:
            return channel.receive(self.sock)
        except BlockingIOError:
            raise
        except OSError:
            return None

    def close(self) -> None:
        """Close the socket and what waited."""
        self._count(-self._queued_bytes, -len(self._queue))
        for out in self._queue:
            channel.close_all(out.descriptors)
        self._queue.clear()
        self.sock.close()
