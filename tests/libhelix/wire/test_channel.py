"""Messages and descriptors over a pair of sockets; nothing that is refused leaves a descriptor behind."""

from __future__ import annotations

import array
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from libhelix.errors import ProtocolError
from libhelix.wire import channel
from libhelix.wire.codec import MAX_MESSAGE_BYTES


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    before = _open_descriptors()
    here, there = channel.new_pair()
    yield here, there
    here.close()
    there.close()
    assert _open_descriptors() == before


def _open_descriptors() -> set[str]:
    listing = os.open("/proc/self/fd", os.O_RDONLY)
    try:
        return set(os.listdir(listing)) - {str(listing)}
    finally:
        os.close(listing)


def _files(count: int) -> list[int]:
    return [os.memfd_create("passed") for _ in range(count)]


def test_a_message_arrives_whole_and_alone(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    channel.send(here, b"one")
    channel.send(here, b"x" * MAX_MESSAGE_BYTES)
    assert channel.receive(there) == (b"one", [])
    assert channel.receive(there) == (b"x" * MAX_MESSAGE_BYTES, [])


@pytest.mark.parametrize("count", range(1, channel.MAX_DESCRIPTORS + 1))
def test_descriptors_travel_beside_their_message(
    pair: tuple[socket.socket, socket.socket], count: int
) -> None:
    here, there = pair
    passed = _files(count)
    for n, fd in enumerate(passed):
        os.write(fd, f"file {n}".encode())
    channel.send(here, b"first")
    channel.send(here, b"with files", passed)
    channel.close_all(passed)
    assert channel.receive(there) == (b"first", [])
    received = channel.receive(there)
    assert received is not None
    data, descriptors = received
    assert data == b"with files"
    assert [os.pread(fd, 9, 0) for fd in descriptors] == [f"file {n}".encode() for n in range(count)]
    assert not any(os.get_inheritable(fd) for fd in descriptors)
    channel.close_all(descriptors)


def test_a_message_above_the_limit_is_refused_with_what_came_beside(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    here, there = pair
    passed = _files(1)
    channel.send(here, b"x" * (MAX_MESSAGE_BYTES + 1), passed)
    channel.close_all(passed)
    with pytest.raises(ProtocolError, match=f"above {MAX_MESSAGE_BYTES} bytes"):
        channel.receive(there)


@pytest.mark.parametrize("count", [channel.MAX_DESCRIPTORS + 1, 100])
def test_too_many_descriptors_are_refused_and_all_closed(
    pair: tuple[socket.socket, socket.socket], count: int
) -> None:
    here, there = pair
    passed = _files(count)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", passed))]
    here.sendmsg([b"greedy"], rights)
    channel.close_all(passed)
    with pytest.raises(ProtocolError, match="2 descriptors"):
        channel.receive(there)


def test_an_empty_message_means_the_peer_is_gone_and_its_descriptors_are_closed(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    here, there = pair
    passed = _files(1)
    channel.send(here, b"", passed)
    channel.close_all(passed)
    assert channel.receive(there) is None


def test_a_closed_peer_is_gone_once_its_messages_are_read(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    channel.send(here, b"last words")
    here.close()
    assert channel.receive(there) == (b"last words", [])
    assert channel.receive(there) is None


def test_a_peer_that_left_our_messages_unread_is_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    channel.send(there, b"never read")
    here.close()
    assert channel.receive(there) is None


def test_sending_to_a_peer_that_is_gone_is_an_error_and_no_signal(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    here, there = pair
    there.close()
    with pytest.raises(BrokenPipeError):
        channel.send(here, b"hello?")
    with pytest.raises(BrokenPipeError):
        channel.send(here, b"hello?", [0])


def test_a_full_or_empty_socket_does_not_block(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    here.setblocking(False)
    there.setblocking(False)
    with pytest.raises(BlockingIOError):
        channel.receive(there)
    with pytest.raises(BlockingIOError):
        _send_without_end(here)


def _send_without_end(sock: socket.socket) -> None:
    while True:
        channel.send(sock, b"x" * MAX_MESSAGE_BYTES)


def _has_ended(fd: int, limit_ms: int = 0) -> bool:
    ended = select.poll()
    ended.register(fd, select.POLLIN)
    return bool(ended.poll(limit_ms))


_FORKED = """
import os, socket, sys, time
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1].replace("@", chr(0)))
child = os.fork()
if not child:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
sys.stdin.read()
"""


def test_a_peers_end_is_seen_though_its_child_holds_the_socket() -> None:
    name = f"@helix-test-{os.getpid()}"
    with channel.new_socket() as listener:
        listener.bind(name.replace("@", "\0"))
        listener.listen()
        command, pipe = [sys.executable, "-c", _FORKED, name], subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdout is not None
            child = int(process.stdout.readline())
            ours, _ = listener.accept()
            with ours:
                found = channel.peer_pidfd(ours)
                assert found is not None
                assert not _has_ended(found)
                process.kill()
                assert _has_ended(found, 5_000)
                process.wait(10)
                os.close(found)
                _expect_ended(ours)
                ours.setblocking(False)
                with pytest.raises(BlockingIOError):
                    ours.recv(1)
                os.kill(child, signal.SIGKILL)


def _expect_ended(sock: socket.socket) -> None:
    """Who asks late is told so in one of two ways, by the kernel's version."""
    try:
        found = channel.peer_pidfd(sock)
    except ProcessLookupError:
        return
    assert found is not None
    assert _has_ended(found)
    os.close(found)


def test_the_peer_is_who_the_kernel_says(pair: tuple[socket.socket, socket.socket]) -> None:
    assert channel.peer(pair[0]) == (os.getpid(), os.getuid())


def test_sockets_are_not_inherited_by_other_programs(pair: tuple[socket.socket, socket.socket]) -> None:
    with channel.new_socket() as fresh:
        assert not any(end.get_inheritable() for end in (*pair, fresh))
