"""One message, perhaps with descriptors, over an AF_UNIX SOCK_SEQPACKET socket.

The socket's own lock orders the payload that was written to shared memory before the message, on every CPU.
"""

from __future__ import annotations

import array
import errno
import os
import socket
from collections.abc import Sequence

from libhelix.errors import ProtocolError
from libhelix.wire.codec import MAX_MESSAGE_BYTES

MAX_DESCRIPTORS = 2
_CUT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_ANCILLARY = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
_BUFFER_BYTES = 4 << 20
_SO_PEERPIDFD = 77


def new_socket() -> socket.socket:
    """A SEQPACKET socket, closed on exec."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    tune(sock)
    return sock


def new_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected SEQPACKET sockets."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    for end in ends:
        tune(end)
    return ends


def tune(sock: socket.socket) -> None:
    """Ask for send room of a few MiB; the kernel gives what its limit allows."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)


def send(sock: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send one message. Raises BlockingIOError on a full non-blocking socket, OSError on a dead one."""
    if descriptors:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)
    else:
        sock.send(data, socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> tuple[bytes, list[int]] | None:
    """One message and the descriptors beside it; None when the other side is gone.

    Raises BlockingIOError where nothing is there, ProtocolError for a message that is cut or empty.
    """
    try:
        data, ancillary, flags, _ = sock.recvmsg(MAX_MESSAGE_BYTES, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return None
    descriptors = _descriptors(ancillary)
    if flags & _CUT:
        close_all(descriptors)
        raise ProtocolError(f"a message above {MAX_MESSAGE_BYTES} bytes or {MAX_DESCRIPTORS} descriptors")
    if not data:
        # A closed peer and a zero-length message look the same; neither has more to say.
        close_all(descriptors)
        return None
    return data, descriptors


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors that nobody claimed."""
    for fd in descriptors:
        os.close(fd)


def peer(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that connected; pid 0 where its pid namespace is none of ours or below."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    creds = array.array("i", raw)
    return creds[0], creds[1]


def peer_pidfd(sock: socket.socket) -> int | None:
    """A descriptor of the process that connected, by which its end is seen; None where there is none.

    From Linux 6.5 on it is of that very process, in whatever pid namespace it lives. Before, it is of who has
    its number now, and there is none for a process without a number here. Raises ProcessLookupError for a
    process that has ended.
    """
    try:
        return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as e:
        if e.errno == errno.EINVAL:  # what kernels before 6.16 say of a process that was reaped
            raise ProcessLookupError(e.errno, e.strerror) from e
        if e.errno != errno.ENOPROTOOPT:
            raise
    pid, _ = peer(sock)
    return os.pidfd_open(pid) if pid > 0 else None


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return list(fds)
