"""Samples that this node decodes for others, which are late: in a ring of its own, then sent on.

    asked for --there is room, and time--> filling --ready--> being sent --all of it got there--> gone
        |                                     |
        +--------------- declined <-----------+ it is bad, or recalled

What is not acknowledged yet is bounded: a slow link is not filled with what its owner may want no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from helixd.core.actions import PeerSend, Reach
from helixd.core.aside import NO_WINDOW, Aside
from helixd.core.batch import Batch
from helixd.core.parcels import Parcel, parcel_of
from helixd.core.windows import Ahead
from libhelix.plan.layout import BatchLayout
from libhelix.plan.rows import row_problem
from libhelix.wire import peer as p
from libhelix.wire.settings import Position

if TYPE_CHECKING:
    from helixd.core.ledger import Extent

BEHIND_US = 2_000
"""Who is later than this with its own batches declines."""
PARTS, LEAST_PART, MOST_PART = 8, 16 << 10, 1 << 20
"""A sample is sent in so many messages, or in more or fewer so that none is smaller or larger than that."""
SENT_AT_ONCE = 4 << 20
CREDIT_BYTES = 2 << 20
"""So much of a sample may be on its way."""
SILENT_S = 10.0
"""What nobody has acknowledged for so long is not sent on."""
STRANGER_US = 1_000_000
"""Who is not known to be late may ask again after this."""
RING = 2
_NOWHERE = Ahead(NO_WINDOW, {}, None)


@dataclass(eq=False)
class Guest(Batch):
    """A sample of another node, `key`, which calls it `task`."""

    key: str = ""
    task: int = 0
    nbytes: int = 0
    sent: int = 0
    got: int = 0
    """Bytes that are known to be there."""
    heard: float = 0.0
    """When the last of them were acknowledged."""
    there_us: int = 0
    """How long it took to decode, waiting included."""


@dataclass(eq=False, kw_only=True)
class Guests(Aside):
    """The samples of other nodes. `say` tells a node, by its key, also with bytes of the ring."""

    link: int
    say: Callable[[str, p.PeerMessage], None]
    behind_us: Callable[[float, int], int]
    """How late this node's own batches will be, of all its loaders, if so many microseconds of guests are
    decoded before them."""
    queue_us: Callable[[float], int]
    """How long it has to decode for its own."""
    hosts: dict[str, None] = field(default_factory=dict)
    """Nodes that this one decodes for, those that were named last at the end."""
    filling: dict[tuple[str, int], Guest] = field(default_factory=dict)
    sending: dict[tuple[str, int], Guest] = field(default_factory=dict)
    more_to_send: bool = False
    delivered: int = 0
    """Samples that were decoded."""
    ring: int = RING

    # ---- what a consumer is asked ------------------------------------------------------------------

    def serve(self) -> None:
        """The memory is there."""
        super().serve()
        self.stream.out.append(Reach(self.arena))

    def no_memory(self, code: str, text: str) -> None:
        """There is none: nobody is helped."""
        super().no_memory(code, text)
        if self.holders:  # it is here for nothing else
            self.stream.fail(code, text)

    def under_way(self, now: float) -> list[Batch]:  # noqa: ARG002  # a guest has no time to lose
        """What is being decoded."""
        return list(self.filling.values())

    def mend(self, batch: Batch, sample: int) -> None:
        """It is bad: its own node sees for itself."""
        del sample
        assert isinstance(batch, Guest)
        self._decline(batch, bad=True)

    def end(self) -> None:
        """The loader ends here: nobody is helped any more."""
        self.refused = True
        for guest in list(self.filling.values()):
            self._decline(guest)
        for guest in list(self.sending.values()):
            self.say(guest.key, p.Declined(guest.task))
            self._let_go(guest)

    # ---- asked for ---------------------------------------------------------------------------------

    def said(self, key: str, message: p.Decode | p.Got | p.Recall, now: float) -> None:
        """A node asks for a sample, has got some of it, or does not want it any more."""
        where = key, message.task
        match message:
            case p.Decode():
                if where in self.filling or where in self.sending:
                    return
                if key not in self.hosts:  # not yet, or not any more: this daemon was started anew
                    self.say(key, p.Declined(message.task, STRANGER_US))
                elif not self._accept(key, message, now):
                    self.say(key, p.Declined(message.task, self.queue_us(now)))
            case p.Got(_, got) if where in self.sending:
                guest = self.sending[where]
                guest.got, guest.heard = max(guest.got, got), now
                if guest.got >= guest.nbytes:
                    self._let_go(guest)
            case p.Recall() if where in self.sending:
                self._let_go(self.sending[where])
            case p.Recall() if where in self.filling:
                self._drop(self.filling[where])
            case _:
                pass

    def _accept(self, key: str, asked: p.Decode, now: float) -> bool:
        stream, row = self.stream, asked.row
        if self.refused or stream.over:
            return False
        self.wanted = True
        if self.state != "serving" or self.ledger is None:
            return False
        if asked.of != stream.fingerprint:
            return False  # ranks go over to another loader one after the other
        guests_us = sum(guest.queued_us for guest in self.filling.values())
        if not stream.idle() and self.behind_us(now, guests_us) > BEHIND_US:
            return False
        known = 0 <= row.id < stream.settings.index_samples and len(asked.places) == len(stream.schema)
        if not known or row.error or row_problem(stream.schema, row) is not None:
            return False
        parcel = parcel_of(stream.schema, asked.places)
        if parcel is None or parcel.nbytes > self.max_bytes:
            return False
        extent = self.ledger.grant(parcel.nbytes)
        if extent is None:
            return False
        guest = self._guest(key, asked, parcel, extent, now)
        self.filling[key, asked.task] = guest
        return True

    def _guest(self, key: str, asked: p.Decode, parcel: Parcel, extent: Extent, now: float) -> Guest:
        layout = BatchLayout(parcel.nbytes, (), (parcel.places,), (parcel.record, 0), (parcel.record,))
        row, at = asked.row, Position(asked.epoch, 0, 0)
        scale = self.stream.costs.scale(row.kind)
        limit_us, group_us = self.limits_us(scale * sum(row.segment_us), None)
        guest = Guest(
            *(self, at, (row,), layout, extent, _NOWHERE, now, limit_us, group_us),
            due=now + asked.due_us * 1e-6,
            key=key,
            task=asked.task,
            nbytes=parcel.nbytes,
        )
        self._queue(guest, 0, row, scale)
        return guest

    # ---- sent --------------------------------------------------------------------------------------

    def deadline(self) -> list[float]:
        """At once while something is being sent."""
        silent = [guest.heard + SILENT_S for guest in self.sending.values()]
        return [-math.inf] if self.more_to_send else silent

    def deliver(self, now: float) -> bool:
        """Send what is ready, not too much of it at once. False: nothing here waits for room."""
        for where, guest in [entry for entry in self.filling.items() if entry[1].ready]:
            del self.filling[where]
            self.sending[where] = guest
            self.stream.history.counters.guests += 1
            self.delivered += 1
            guest.there_us, guest.heard = int((now - guest.granted) * 1e6), now
        left = SENT_AT_ONCE
        for guest in list(self.sending.values()):
            if now >= guest.heard + SILENT_S:
                self._let_go(guest)
                continue
            while left > 0 and guest.sent < min(guest.nbytes, guest.got + CREDIT_BYTES):
                left -= self._send_part(guest)
        self.more_to_send = left <= 0
        return False

    def _send_part(self, guest: Guest) -> int:
        size = max(LEAST_PART, min(MOST_PART, -(-guest.nbytes // PARTS)))
        begin = (guest.extent.offset + guest.sent) % self.ring_bytes
        size = min(size, guest.nbytes - guest.sent, self.ring_bytes - begin)
        said = p.Said(
            self.stream.name,
            p.Decoded(guest.task, guest.rows[0].id, guest.sent, guest.nbytes, guest.there_us),
        )
        self.stream.out.append(PeerSend(self.link, guest.key, said, (self.arena, begin, size)))
        guest.sent += size
        return size

    def _decline(self, guest: Guest, *, bad: bool = False) -> None:
        self.say(guest.key, p.Declined(guest.task, bad=bad))
        self._drop(guest)

    def _drop(self, guest: Guest) -> None:
        del self.filling[guest.key, guest.task]
        self.drop(guest)

    def _let_go(self, guest: Guest) -> None:
        del self.sending[guest.key, guest.task]
        assert self.ledger is not None
        self.ledger.cancel(guest.extent.generation)
