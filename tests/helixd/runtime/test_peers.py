"""Daemons speak to whom they know by key, and to nobody else; what cannot be said is not queued for ever."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
import zmq

from helixd.runtime.peers import MAX_MESSAGE_BYTES, MOST_QUEUED, PeerLink
from libhelix.errors import UsageError
from libhelix.wire.keys import new_keys
from libhelix.wire.messages import Keys

LIMIT_S = 10.0


class Node:
    """A link, and what came over it."""

    def __init__(self, port: int = 0, keys: Keys | None = None) -> None:
        self.keys = keys or new_keys()
        self.link = PeerLink(self.keys, "127.0.0.1", port)
        self.heard: list[tuple[str, bytes]] = []
        self.beside: list[bytes] = []
        """What came beside it."""

    def listen(self) -> None:
        for key, data, beside in self.link.receive():
            self.heard.append((key, data))
            self.beside.append(bytes(beside))

    def close(self) -> None:
        self.link.close()


@pytest.fixture
def new() -> Iterator[Callable[..., Node]]:
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(closing(Node(*args, **kwargs)))


def _introduce(*nodes: Node) -> None:
    for node in nodes:
        node.link.know({n.keys.public: f"127.0.0.1:{n.link.port}" for n in nodes if n is not node})


def test_who_has_no_address_yet_is_heard_and_answered_once_it_has_one(new: Callable[..., Node]) -> None:
    here, there = new(), new()
    there.link.know({here.keys.public: f"127.0.0.1:{here.link.port}"})
    here.link.know({there.keys.public: ""})
    assert not here.link.send(there.keys.public, b"too early")
    assert _until([here, there], lambda: bool(there.link.send(here.keys.public, b"here") and here.heard))
    here.link.know({there.keys.public: f"127.0.0.1:{there.link.port}"})
    assert _until([here, there], lambda: bool(here.link.send(there.keys.public, b"well") and there.heard))
    here.link.know({})
    there.heard.clear()
    assert not here.link.send(there.keys.public, b"too late")


def _until(nodes: list[Node], done: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    """Whether it is done in time, while all listen."""
    end = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > end:
            return False
        select.select([fd for n in nodes for fd in n.link.descriptors()], [], [], 0.02)
        for node in nodes:
            node.listen()
    return True


def _say(nodes: list[Node], sender: Node, to: Node, data: bytes) -> bool:
    return _until(nodes, lambda: sender.link.send(to.keys.public, data))


def test_peers_hear_one_another_and_know_who_spoke(new: Callable[..., Node]) -> None:
    a, b, c = nodes = [new(), new(), new()]
    _introduce(*nodes)
    for sender in nodes:
        for to in nodes:
            if to is not sender:
                assert _say(nodes, sender, to, b"hello of " + sender.keys.public.encode())
    assert _until(nodes, lambda: all(len(n.heard) == 2 for n in nodes))
    for node in nodes:
        assert {key for key, _ in node.heard} == {n.keys.public for n in nodes if n is not node}
        assert all(data == b"hello of " + key.encode() for key, data in node.heard)
    assert (a.link.refused, b.link.refused, c.link.refused) == (0, 0, 0)


def test_bytes_travel_beside_what_is_said(new: Callable[..., Node]) -> None:
    a, b = nodes = [new(), new()]
    _introduce(a, b)
    ring = bytearray(range(256)) * 4096
    assert _until(nodes, lambda: a.link.send(b.keys.public, b"part", memoryview(ring)[7 : 7 + 700_000]))
    ring[:] = bytes(len(ring))  # it is not the sender's any more
    assert _until(nodes, lambda: bool(b.heard))
    assert b.heard == [(a.keys.public, b"part")]
    assert b.beside == [bytes(bytearray(range(256)) * 4096)[7 : 7 + 700_000]]


def test_who_is_not_known_is_not_heard(new: Callable[..., Node]) -> None:
    a, stranger = new(), new()
    stranger.link.know({a.keys.public: f"127.0.0.1:{a.link.port}"})
    assert _until([a, stranger], lambda: a.link.refused > 0)
    assert not stranger.link.send(a.keys.public, b"let me in")
    assert not a.heard


def test_a_wrong_key_of_the_server_or_none_connects_nobody(new: Callable[..., Node]) -> None:
    a, b = new(), new()
    a.link.know({b.keys.public: f"127.0.0.1:{b.link.port}"})
    b.link.know({new_keys().public: f"127.0.0.1:{a.link.port}"})
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.linger = 0
        plain.connect(f"tcp://127.0.0.1:{a.link.port}")
        plain.send(b"no encryption")
        assert not _until([a, b], lambda: bool(a.heard), 1.0)


def test_one_that_is_forgotten_is_not_heard_any_more(new: Callable[..., Node]) -> None:
    a, b = nodes = [new(), new()]
    _introduce(a, b)
    assert _say(nodes, b, a, b"one")
    assert _until(nodes, lambda: len(a.heard) == 1)
    a.link.know({})
    b.link.send(a.keys.public, b"two")
    assert not _until(nodes, lambda: len(a.heard) == 2, 0.5)
    assert not a.link.send(b.keys.public, b"three")


def test_a_peer_that_restarts_with_its_key_is_heard_again(new: Callable[..., Node]) -> None:
    a, b = new(), new()
    _introduce(a, b)
    assert _say([a, b], a, b, b"one")
    assert _until([a, b], lambda: len(b.heard) == 1)
    port, keys = b.link.port, b.keys
    b.close()
    again = new(port, keys)
    again.link.know({a.keys.public: f"127.0.0.1:{a.link.port}"})
    assert _until([a, again], lambda: a.link.send(keys.public, b"two") and bool(again.heard))


def test_what_a_peer_does_not_read_is_refused_and_does_not_grow(new: Callable[..., Node]) -> None:
    a, b = nodes = [new(), new()]
    _introduce(a, b)
    assert _say(nodes, a, b, b"first")
    # Nobody reads at b: the system's buffers and both queues fill up, and then it is not said.
    most = 2 * MOST_QUEUED + 200
    taken = sum(a.link.send(b.keys.public, bytes(100_000)) for _ in range(most))
    assert taken < most
    assert _until(nodes, lambda: len(b.heard) == taken + 1)


def test_a_message_beyond_the_limit_parts_its_sender_and_no_other(new: Callable[..., Node]) -> None:
    a, b, c = nodes = [new(), new(), new()]
    _introduce(*nodes)
    assert _say(nodes, b, a, b"one")
    assert _say(nodes, b, a, bytes(MAX_MESSAGE_BYTES + 1))
    assert _say(nodes, c, a, b"two")
    assert _until(nodes, lambda: len(a.heard) == 2)
    assert [data for _, data in a.heard] == [b"one", b"two"] or [d for _, d in a.heard] == [b"two", b"one"]


def test_an_address_that_cannot_be_is_named(new: Callable[..., Node]) -> None:
    taken = new().link.port
    with pytest.raises(UsageError, match=f"127.0.0.1:{taken}"):
        PeerLink(new_keys(), "127.0.0.1", taken)


def test_who_is_known_only_later_is_heard_then(new: Callable[..., Node]) -> None:
    early, late = new(), new()
    early.link.know({late.keys.public: f"127.0.0.1:{late.link.port}"})
    assert _until([early, late], lambda: late.link.refused > 0), "it comes before it is known"
    _introduce(early, late)
    assert _until([early, late], lambda: _said(early, late))


def _said(one: Node, other: Node) -> bool:
    one.link.send(other.keys.public, b"here")
    return (one.keys.public, b"here") in other.heard


@pytest.mark.parametrize("odd", [{"x" * 40: "bad address"}, {"\0" * 40: "127.0.0.1:1"}])
def test_who_cannot_be_spoken_to_is_an_error_and_others_are_known(
    new: Callable[..., Node], odd: dict[str, str]
) -> None:
    one, other = new(), new()
    with pytest.raises(UsageError, match="cannot be spoken to"):
        one.link.know(odd | {other.keys.public: f"127.0.0.1:{other.link.port}"})
    other.link.know({one.keys.public: f"127.0.0.1:{one.link.port}"})
    assert _until([one, other], lambda: _said(one, other))


def test_who_said_an_address_that_is_none_is_heard_and_may_say_another(new: Callable[..., Node]) -> None:
    one, other = new(), new()
    with pytest.raises(UsageError, match="cannot be spoken to"):
        one.link.know({other.keys.public: "bad address"})
    other.link.know({one.keys.public: f"127.0.0.1:{one.link.port}"})
    assert _until([one, other], lambda: _said(other, one))
    one.link.know({other.keys.public: f"127.0.0.1:{other.link.port}"})
    assert _until([one, other], lambda: _said(one, other))


def test_keys_that_are_none_are_an_error() -> None:
    with pytest.raises(UsageError, match="cannot listen"):
        PeerLink(Keys("\0" * 40, "s" * 40), "127.0.0.1")
