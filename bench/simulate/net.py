"""The links between daemons of a job: what one says reaches the other after a moment, in order.

Bytes cost nothing here: `bench peers` has real links.
"""

from __future__ import annotations

from typing import Protocol

from bench.simulate.clock import Clock
from bench.simulate.workers import LATENCY_S
from helixd.core import actions as a
from libhelix.meeting import told_leader
from libhelix.wire import messages as m
from libhelix.wire import peer as p


class Hearer(Protocol):
    """A daemon."""

    def tell(self, event: a.Event) -> None:
        """An event."""


class Net:
    """`ranks[i]` are those of node i; the first leads. `sent_bytes` is what each node has said so far,
    without bytes of samples."""

    def __init__(self, clock: Clock, ranks: list[tuple[int, ...]]) -> None:
        self._clock = clock
        self._ranks = ranks
        self._links: dict[int, tuple[Hearer, int]] = {}
        self.sent_bytes = [0] * len(ranks)

    @staticmethod
    def _key(i: int) -> str:
        return f"{i:040d}"

    def _peer(self, i: int) -> m.Peer:
        return m.Peer(self._key(i), f"node{i}:1")

    def open(self, i: int, node: Hearer, link: int) -> m.Keys:
        """A node listens."""
        self._links[i] = node, link
        return m.Keys(self._key(i), "s" * 40)

    def meeting(self, i: int, name: str) -> list[m.Meet | m.Peers]:
        """What a trainer of a node tells its daemon of the others."""
        leader = self._peer(0)
        if i > 0:
            return [m.Meet("node"), m.Peers(name, leader, self._ranks[i])]
        nodes = [self._peer(k) for k in range(len(self._ranks))]
        return [m.Meet("node"), *told_leader(name, leader, self._ranks[0], nodes)]

    def send(self, i: int, key: str, said: p.Said, beside: int) -> None:
        """A node says something, with so many bytes beside it."""
        self.sent_bytes[i] += len(p.encode(said))
        if (found := self._links.get(int(key))) is not None:
            node, link = found
            said_event = a.PeerSaid(link, self._key(i), said, bytes(beside))
            self._clock.after(LATENCY_S, node.tell, said_event)
