"""A process that means harm: `python -m tests.system.hostile ADDRESS KIND SEED UID`. Runs until it is killed.

It says "attacks" when it has begun, and how often it has done so when its stdin ends.
"""

from __future__ import annotations

import os
import random
import select
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

from libhelix._version import __version__
from libhelix.wire import channel, codec
from libhelix.wire import messages as m
from libhelix.wire.settings import Position
from tests.fuzz.mutate import mutated
from tests.helixd.core.test_hostile import _PLAIN

CONNECTIONS = 24
"""That one process floods at once."""
HALF_OPEN = 400


def _hello(role: str, job: str = "hostile") -> bytes:
    return codec.encode(m.Hello(m.PROTOCOL, __version__, role, job, os.getpid(), (0,)))  # type: ignore[arg-type]


_AT = Position(0, 0, 0)
_SAID: dict[str, list[bytes]] = {
    "trainer": [
        codec.encode(message)
        for message in (_PLAIN, m.Ask(1, _AT), m.Release(1, 1), m.Detach(7), m.HostFailed("no"))
    ],
    "host": [codec.encode(message) for message in (m.Reserved(1), m.Exited(1, -9), m.Cores((0, 1)))],
    "ctl": [codec.encode(message) for message in (m.StatusAsk(), m.StatusAsk("why"), m.StatusAsk("trace"))],
}


class Hostile:
    """Attacks an address, in one way."""

    def __init__(self, address: str, seed: int) -> None:
        self._address, self._draw = address, random.Random(seed)
        self._open: list[socket.socket] = []
        self._asking: dict[socket.socket, bytes] = {}

    def _connected(self, *, blocking: bool = True) -> socket.socket | None:
        sock = channel.new_socket()
        sock.settimeout(0.2)
        try:
            sock.connect(self._address)
        except OSError:
            sock.close()
            return None
        sock.setblocking(blocking)
        return sock

    def _said_once(self, messages: list[bytes]) -> None:
        """Some are left open, so that the daemon has to be the one that closes."""
        sock = self._connected(blocking=False)
        if sock is None:
            return
        with suppress(OSError):
            for message in messages:
                channel.send(sock, message)
        self._open.append(sock)
        if len(self._open) > 40:
            self._open.pop(0).close()

    def noise(self) -> None:
        """Random bytes, with a hello before or without."""
        role = self._draw.choice(["trainer", "host", "ctl"])
        said = [_hello(role)] if self._draw.random() < 0.7 else []
        said += [self._draw.randbytes(self._draw.choice((1, 30, 3000, 65_536))) for _ in range(4)]
        self._said_once(said)

    def mutants(self) -> None:
        """Messages that are nearly right."""
        role = self._draw.choice(list(_SAID))
        said = [_hello(role), *self._draw.choices(_SAID[role], k=6)]
        at = self._draw.randrange(len(said))
        said[at] = mutated(said[at], self._draw.choice(_SAID["trainer"]), self._draw.getrandbits(32))
        self._said_once([message[: 1 << 16] for message in said])

    def oversized(self) -> None:
        """More than a message may have, and descriptors that nobody asked for."""
        sock = self._connected(blocking=False)
        if sock is None:
            return
        with sock, suppress(OSError):
            if self._draw.random() < 0.5:
                channel.send(sock, _hello("trainer"))
            if self._draw.random() < 0.5:
                channel.send(sock, self._draw.randbytes(self._draw.choice((65_537, 100_000, 190_000))))
            socket.send_fds(sock, [_SAID["trainer"][1]], [0] * self._draw.choice((1, 2, 3, 200)))

    def flood(self) -> None:
        """Questions without end on many connections, whose answers nobody reads."""
        while len(self._asking) < CONNECTIONS and (sock := self._connected(blocking=False)) is not None:
            role = self._draw.choice(["ctl", "ctl", "trainer"])
            with suppress(OSError):
                channel.send(sock, _hello(role))
            self._asking[sock] = _SAID[role][1]
        for sock, question in list(self._asking.items()):
            try:
                for _ in range(50):
                    channel.send(sock, question)
            except BlockingIOError:
                continue
            except OSError:
                del self._asking[sock]
                sock.close()

    def half_open(self) -> None:
        """Connections that say nothing, or have shut their end."""
        while len(self._open) < HALF_OPEN and (sock := self._connected()) is not None:
            if self._draw.random() < 0.2:
                with suppress(OSError):
                    sock.shutdown(self._draw.choice((socket.SHUT_WR, socket.SHUT_RD)))
            self._open.append(sock)
        gone, _, _ = select.select(self._open, [], [], 0.05)
        for sock in gone:
            self._open.remove(sock)
            sock.close()


KINDS: dict[str, Callable[[Hostile], None]] = {
    "noise": Hostile.noise,
    "mutants": Hostile.mutants,
    "oversized": Hostile.oversized,
    "flood": Hostile.flood,
    "half-open": Hostile.half_open,
}


def main(address: str, kind: str, seed: str, uid: str) -> None:
    """Until stdin ends."""
    if int(uid) != os.geteuid():
        os.setgroups([])
        os.setgid(int(uid))
        os.setuid(int(uid))
    hostile, attack, times = Hostile(address, int(seed)), KINDS[kind], 0
    attack(hostile)
    print("attacks", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        attack(hostile)
        times += 1
    print(times, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
