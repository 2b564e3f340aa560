"""The rings of a job: segments that helixd makes, and whose memory the worker host takes, as the user.

wanted --MakeArena, Reserve--> reserving --Reserved--> serving
                                   |
                                   +--/dev/shm is full--> reserving, as a memfd
                                   +--no memory, or more than the quota--> refused
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from helixd.core.actions import Action, DropArena, Log, MakeArena, Send, SendWorker
from libhelix.wire import messages as m

if TYPE_CHECKING:
    from helixd.core.consumer import Consumer
    from helixd.core.pool import Pool


@dataclass(eq=False)
class Rings:
    """By their numbers, with whose they are."""

    pool: Pool
    out: list[Action]
    numbers: Callable[[], int]
    sealed: bool
    """Whether they are sealed against resizing: others than the job's user may map them."""
    quota: Callable[[int], str | None]
    """Why the user may have no further ring of so many bytes."""
    held: dict[int, Consumer] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Of all of them."""
        return sum(consumer.ring_bytes for consumer in self.held.values())

    def make(self, consumer: Consumer) -> None:
        """Make a consumer's ring and have the host take its memory."""
        if (refusal := self.quota(consumer.ring_bytes)) is not None:
            consumer.no_memory("quota", refusal)
            return
        consumer.state = "reserving"
        self._make(consumer, memfd=self.sealed)

    def _make(self, consumer: Consumer, *, memfd: bool) -> None:
        consumer.arena = self.numbers()
        self.held[consumer.arena] = consumer
        self.out.append(MakeArena(consumer.arena, consumer.ring_bytes, memfd=memfd))
        if self.pool.host is not None:
            self._reserve(consumer, self.pool.host)

    def host_came(self, host: int) -> None:
        """Those that still wait for a host get its memory."""
        for consumer in self.held.values():
            if consumer.state == "reserving":
                self._reserve(consumer, host)

    def _reserve(self, consumer: Consumer, host: int) -> None:
        # Replicas share it; the first is as good as any.
        trainers = (self.pool.trainers.get(holder.conn) for holder in consumer.live)
        cores = next((tuple(sorted(t.cores)) for t in trainers if t is not None), ())
        reserve = m.Reserve(consumer.arena, consumer.ring_bytes, cores)
        self.out.append(Send(host, reserve, arena=consumer.arena))

    def reserved(self, arena: int) -> None:
        """The host has taken the memory."""
        consumer = self.held.get(arena)
        if consumer is not None and consumer.state == "reserving" and not consumer.stream.over:
            consumer.serve()

    def reserve_failed(self, failed: m.ReserveFailed) -> None:
        """The memory is not there: another kind of segment, where that may help, or the end."""
        consumer = self.held.get(failed.arena)
        if consumer is None or consumer.state != "reserving":
            return
        if failed.shm_full:
            self.drop(consumer)
            self._make(consumer, memfd=True)
        else:
            self._refused(consumer, failed.text)

    def make_failed(self, arena: int, text: str) -> None:
        """The segment could not even be made."""
        consumer = self.held.get(arena)
        if consumer is not None:
            self._refused(consumer, text)

    def _refused(self, consumer: Consumer, text: str) -> None:
        consumer.no_memory("memory", text)
        if not consumer.holders:  # that of other nodes' samples, for which nobody waits here
            self.drop(consumer)

    def unreached(self, arena: int, text: str) -> None:
        """helixd cannot map a ring: no node decodes for it, nor in it for others."""
        consumer = self.held.get(arena)
        if consumer is None:
            return
        stream = consumer.stream
        text = f"loader {stream.name!r}: no help between nodes, a ring cannot be mapped: {text}"
        self.out.append(Log("warning", text, stream.about))
        if stream.team is not None:
            stream.team.unreached()

    def drop(self, consumer: Consumer) -> None:
        """Let go of a consumer's ring, here and in the workers."""
        if self.held.pop(consumer.arena, None) is None:
            return
        for worker in self.pool.workers.values():
            if consumer.arena in worker.arenas and not worker.closed:
                worker.arenas.remove(consumer.arena)
                self.out.append(SendWorker(worker.number, m.UnmapArena(consumer.arena)))
        self.out.append(DropArena(consumer.arena))
