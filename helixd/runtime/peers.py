"""The link between daemons: ZeroMQ over TCP, encrypted and authenticated by CURVE.

One ROUTER hears all peers; a DEALER speaks to each. Who is not known by its key is not heard: the answers
to libzmq's authentication requests (ZAP) come from the table of known peers alone, and without one there
is no connection.

A message may be lost when a connection breaks. Nothing here repeats it: who waits for an answer asks again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import zmq
from zmq.utils import z85

from libhelix.errors import UsageError
from libhelix.wire.messages import Keys

DOMAIN = b"helix"
MAX_MESSAGE_BYTES = 4 << 20
MOST_QUEUED = 256
"""Messages that wait for one peer, on either side."""
_HEARTBEAT_MS, _DEAD_MS = 1_000, 3_000
_RECONNECT_MS, _RECONNECT_MOST_MS = 50, 1_000
_HANDSHAKE_MS = 2_000
"""Who is not let in, because nobody has told of it yet, tries again after this."""
_ZAP = "inproc://zeromq.zap.01"
MOST_FRAMES = 3
"""Who speaks, what it says, and bytes beside it."""
_ZAP_FRAMES = 7
"""Version, request, domain, address, identity, mechanism, and the key that CURVE proves."""


class PeerLink:
    """This node's end of the links to all its peers. Its owner polls `descriptors()` and calls `receive`."""

    def __init__(self, keys: Keys, host: str, port: int = 0) -> None:
        """Listen at a host and port; 0 takes a free one. Raises UsageError where that cannot be."""
        self._keys = keys
        self._dealers: dict[str, zmq.Socket[bytes]] = {}
        self._known: dict[str, str] = {}
        self.refused = 0
        """Connections of whom nobody told us."""
        self._context = zmq.Context(io_threads=1)
        try:
            self._context.set(zmq.MAX_SOCKETS, 4096)
            self._zap = self._context.socket(zmq.REP)
            self._zap.linger = 0
            self._zap.bind(_ZAP)
            self._router = self._new_socket(zmq.ROUTER)
            self._router.curve_server = True
            self._router.zap_domain = DOMAIN
            self._router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            self._router.maxmsgsize = MAX_MESSAGE_BYTES
            self._router.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as e:
            self.close()
            raise UsageError(
                f"helixd cannot listen for peers at {host}:{port} ({e.strerror}); choose another address"
            ) from e
        endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port = int(endpoint.rpartition(":")[2])

    def _new_socket(self, kind: int) -> zmq.Socket[bytes]:
        sock: zmq.Socket[bytes] = self._context.socket(kind)
        sock.linger = 0
        sock.ipv6 = True
        sock.sndhwm = sock.rcvhwm = MOST_QUEUED
        sock.curve_publickey = self._keys.public.encode()
        sock.curve_secretkey = self._keys.secret.encode()
        sock.heartbeat_ivl, sock.heartbeat_timeout = _HEARTBEAT_MS, _DEAD_MS
        sock.handshake_ivl = _HANDSHAKE_MS
        return sock

    def know(self, peers: Mapping[str, str]) -> None:
        """From now on exactly these are peers: their addresses ("host:port") by their public keys. One
        without an address is heard, and not spoken to yet.

        Raises UsageError for one that cannot be spoken to; it is heard, and may say where else it is."""
        for key in [key for key, at in self._known.items() if peers.get(key) != at]:
            del self._known[key]
            if (dealer := self._dealers.pop(key, None)) is not None:
                dealer.close()
        failed = ""
        for key in peers.keys() - self._known.keys():
            self._known[key] = peers[key]
            try:
                if peers[key]:
                    self._dial(key, peers[key])
            except zmq.ZMQError as e:
                if (dealer := self._dealers.pop(key, None)) is not None:
                    dealer.close()
                failed = f"a peer at {peers[key]!r} cannot be spoken to: {e.strerror}"
        if failed:
            raise UsageError(failed)

    def _dial(self, key: str, address: str) -> None:
        dealer = self._dealers[key] = self._new_socket(zmq.DEALER)
        dealer.immediate = True  # nothing waits for who is not there; it would be old when read
        dealer.curve_serverkey = key.encode()
        dealer.reconnect_ivl, dealer.reconnect_ivl_max = _RECONNECT_MS, _RECONNECT_MOST_MS
        dealer.connect(f"tcp://{address}")

    def descriptors(self) -> tuple[int, int]:
        """For selectors. When one is readable, `receive` until nothing comes: they tell of changes only."""
        return self._router.fileno(), self._zap.fileno()

    def send(self, key: str, *frames: bytes | memoryview) -> bool:
        """Say something to a peer. False where it is not connected or does not read: then it is not said."""
        dealer = self._dealers.get(key)
        if dealer is None:
            return False
        try:
            dealer.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def receive(self) -> Iterator[tuple[str, bytes, memoryview]]:
        """What peers have said, with their public keys, and the bytes beside it, where there are any; a
        message that is none is dropped."""
        self._answer_zap()
        while True:
            try:
                frames = self._router.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return
            key = str(frames[-1].get("User-Id"))
            # Who is not known any more was when it connected.
            if 2 <= len(frames) <= MOST_FRAMES and key in self._known:
                beside = frames[2].buffer if len(frames) == MOST_FRAMES else memoryview(b"")
                yield key, frames[1].bytes, beside
            self._answer_zap()

    def _answer_zap(self) -> None:
        while True:
            try:
                asked = self._zap.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            key = ""
            if len(asked) == _ZAP_FRAMES and asked[2] == DOMAIN and asked[5] == b"CURVE":
                key = z85.encode(asked[6]).decode("ascii")
            known = key in self._known
            self.refused += not known
            # "Temporary": it is not heard, and comes again. Who is told 400 never does, and nodes learn of
            # one another in any order.
            status = (b"200", b"OK", key.encode()) if known else (b"300", b"unknown", b"")
            self._zap.send_multipart([b"1.0", asked[1], *status, b""])

    def close(self) -> None:
        """Part from all, at once."""
        self._context.destroy(linger=0)  # with all of its sockets, also those of a beginning that failed
        self._dealers.clear()
