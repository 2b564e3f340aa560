"""Samples that take longer to decode than their ring looks ahead: begun before their batch has its place.

    ahead --there is room--> filling --its batch has its place--> lent --all of it is there--> being copied
                                |                                  |
                                |  it is not begun, or bad         |  it is bad
                                +------> dropped <-----------------+   and decoded in its place

A batch has its place as many windows before it is due as its ring holds batches, less one. What cannot be cut
and takes longer comes late, however many cores there are. A little room for such samples alone does for them
what rings several times as large would.
"""

from __future__ import annotations

import heapq
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from helixd.core.aside import NO_WINDOW, Aside
from helixd.core.batch import Batch, FillTask
from helixd.core.consumer import SHORTEST_WINDOW_S
from helixd.core.ledger import round_up
from helixd.core.windows import Ahead
from libhelix.errors import RecipeError
from libhelix.wire.settings import Base, Position

if TYPE_CHECKING:
    from helixd.core.consumer import Consumer
    from libhelix.wire import messages as m

AHEAD = 16
"""Micro-batches of a rank that are looked through, as far as they are planned."""
LEAST_RING = 3
"""Who asks for fewer batches has no memory for this."""
FEW_PARTS = 3
"""Samples whose parts are all smaller than one in so many are left: they are decoded side by side."""
SIZED_BY = 8
"""Samples of a rank that say how large the ring has to be."""
MOST_FOUND = 32
"""Samples of a rank that wait to be begun; where there are more, it looks no further."""
LOOKS, LOOK_LEAST_S = 16, 0.002
"""So often in a window, or so long after the last time, it looks what has to be begun."""
MARGIN = 2.0
"""Samples are begun so many windows before they have to be: not all cores are free then."""
_NOWHERE = Ahead(NO_WINDOW, {}, None)

Place = tuple[int, Position, int]
"""A rank, one of its micro-batches, and a sample in it."""


@dataclass(eq=False)
class Staged(Batch):
    """A sample of a batch of `owner`: its number `place`, in the micro-batch with that ordinal."""

    owner: Consumer | None = None
    place: int = 0
    ordinal: int = 0
    lent: FillTask | None = None
    """Its pieces in its batch, which waits for it."""

    @property
    def rank(self) -> int:
        """Whose batch it is of."""
        assert self.owner is not None
        return self.owner.rank

    @property
    def begin_by(self) -> float:
        """What is left of it takes so long."""
        return self.due - self.longest_queued_us * 1e-6

    @property
    def final(self) -> Batch:
        """What it is a sample of, once that has its place."""
        return self.lent.batch if self.lent is not None else self

    @property
    def awaited(self) -> bool:
        """Whether its rank waits."""
        return self.consumer.is_next(self) and self.final.awaited

    def let_go(self) -> None:
        """It is in its place, or nobody wants it there any more."""
        ledger = self.consumer.ledger
        assert ledger is not None
        ledger.cancel(self.extent.generation)


class _Found(NamedTuple):
    """A sample that takes long, in the micro-batch with that ordinal; `takes_s`: of what cannot be cut."""

    ordinal: int
    at: Position
    place: int
    row: m.Row
    takes_s: float


def _by(entry: tuple[float, int, int, Consumer, _Found]) -> tuple[float, int, int]:
    return entry[:3]


@dataclass(eq=False)
class _Look:
    """How far a rank's micro-batches were looked through: the next one, its ordinal; and what was found."""

    base: Base
    at: Position
    ordinal: int
    found: list[_Found] = field(default_factory=list)


@dataclass(eq=False, kw_only=True)
class Staging(Aside):
    """The staged samples of a loader on this node."""

    samples: dict[Place, Staged] = field(default_factory=dict)
    ring: int = 1
    begun: int = 0
    """Samples that were begun before their batch had its place, and stayed."""
    _looks: dict[int, _Look] = field(default_factory=dict)
    _deaths: dict[Place, int] = field(default_factory=dict)
    """Of workers, at samples whose batches have no place yet."""
    _look_after: float = 0.0
    _no_room_at: int = -1
    """The state of the ring that had no room for the next."""

    # ---- what a consumer is asked ------------------------------------------------------------------

    def under_way(self, now: float) -> list[Batch]:
        """What has pieces to give to workers, its deadlines up to date. Of a sample that has time, one part
        after the other: all parts of a long film would keep workers from what is due before it."""
        found: list[Batch] = []
        at_work = sum(sample.running > 0 for sample in self.samples.values())
        for sample in self.samples.values():
            if not sample.queued:
                continue
            sample.due = self._due(sample)
            # One worker stays with what is due; it may be short, and come late for a long one.
            free = sample.running or at_work < max(1, self.stream.worker_count() - 1)
            if sample.awaited or (free and (not sample.running or sample.begin_by <= now)):
                found.append(sample)
        return found

    def is_next(self, batch: Batch) -> bool:
        """Whether the next batch of its rank lacks it."""
        final = batch.final
        return final is not batch and bool(final.consumer.batches) and final.consumer.batches[0] is final

    def _due(self, sample: Staged) -> float:
        owner = sample.owner
        if sample.lent is not None or owner is None:
            return sample.final.due
        usual_s = self.stream.readiness.usual_s or 0.0
        return owner.next_due() + (sample.ordinal - owner.granted) * usual_s

    def mend(self, batch: Batch, sample: int) -> None:
        """It is bad: its batch sees for itself."""
        del sample
        assert isinstance(batch, Staged)
        self._give_up(batch)

    def size(self) -> None:
        """A sample for each worker, like the largest that was found; all that at most one batch a rank."""
        stream = self.stream
        largest = 0
        for found in (found for look in self._looks.values() for found in look.found[:SIZED_BY]):
            with suppress(RecipeError):  # its batch will say so
                largest = max(largest, stream.lay_out((found.row,)).nbytes)
        if not largest:
            return
        self.max_bytes = round_up(largest * 5 // 4, stream.page)
        most = len(stream.consumers) * stream.max_bytes // self.max_bytes
        self.ring = max(1, min(stream.worker_count(), most))

    # ---- begun -------------------------------------------------------------------------------------

    @property
    def _useful(self) -> bool:
        stream = self.stream
        if self.refused or stream.failure is not None or not stream.readiness.known:
            return False
        if (stream.readiness.usual_s or 0.0) < SHORTEST_WINDOW_S:
            return False  # a trainer that does nothing: whatever it is given, it waits
        # Samples of a chain are made in order.
        return stream.policy.stage and not stream.settings.chains and stream.settings.ring >= LEAST_RING

    def look(self, now: float) -> None:
        """Have workers copy what is ready; begin what is long in the batches to come."""
        self._settle()
        if not self._useful:
            return
        for consumer in self.stream.consumers.values():
            if consumer.state == "serving":
                self._look_through(consumer)
        if not self.wanted and self._cores_to_spare:
            self.wanted = any(look.found for look in self._looks.values())
        if self.ledger is not None and now >= self._look_after and self._no_room_at != self.ledger.changes:
            self._begin_some(now)

    @property
    def _cores_to_spare(self) -> bool:
        """Whether a worker has nothing to do, nor would have: else samples are late for want of cores."""
        batches = (batch for consumer in self.stream.consumers.values() for batch in consumer.batches)
        return self.stream.idle() and not any(batch.queued for batch in batches)

    def _settle(self) -> None:
        for sample in [s for s in self.samples.values() if s.lent is not None]:
            assert sample.lent is not None
            if sample.lent.batch.cancelled:
                self._give_up(sample)
            elif sample.ready:
                del self.samples[self._key(sample)]
                self.begun += 1
                self.stream.history.counters.staged += 1
                sample.lent.batch.copy(sample.lent, sample)

    def _begin_some(self, now: float) -> None:
        """What has to be begun first, if workers come to it: what they do not takes room in vain."""
        assert self.ledger is not None
        for sample in [s for s in self.samples.values() if s.lent is None and self._past(s)]:
            self._give_up(sample)
        usual_s = self.stream.readiness.usual_s or 0.0
        self._look_after = now + max(LOOK_LEAST_S, usual_s / LOOKS)
        waiting = sum(sample.began is None for sample in self.samples.values())
        most = max(1, self.stream.worker_count() // 4)
        for begin_by, owner, found in self._first(most - waiting, usual_s):
            if begin_by > now + MARGIN * usual_s:
                return
            if not self._begin(owner, found, now):
                self._no_room_at = self.ledger.changes
                return
            self._looks[owner.rank].found.remove(found)

    def _past(self, sample: Staged) -> bool:
        """Whether its batch has its place, or will have none."""
        assert sample.owner is not None
        return sample.at < sample.owner.next or self.stream.ended(sample.at)

    def _look_through(self, consumer: Consumer) -> None:
        # Half of the windows that its ring hides: workers may be at others when a batch has its place.
        most_s = (self.stream.settings.ring - 1) / 2 * (self.stream.readiness.usual_s or 0.0)
        look = self._looks.get(consumer.rank)
        if look is None or look.ordinal < consumer.granted:
            look = self._looks[consumer.rank] = _Look(consumer.base, consumer.next, consumer.granted)
        look.found = [found for found in look.found if found.ordinal >= consumer.granted]
        while look.ordinal < consumer.granted + AHEAD and len(look.found) < MOST_FOUND:
            ahead = self.stream.windows.planned.get(look.base)
            if ahead is None or look.at > ahead.window.end_position or self.stream.ended(look.at):
                return
            for place, row in enumerate(ahead.rows_of(look.at, consumer.rank)):
                longest_us = max(row.segment_us)
                takes_s = longest_us * self.stream.costs.scale(row.kind) * 1e-6
                if takes_s > most_s and longest_us * FEW_PARTS >= sum(row.segment_us) and not row.masked:
                    look.found.append(_Found(look.ordinal, look.at, place, row, takes_s))
            look.ordinal, look.at = look.ordinal + 1, ahead.after(look.at)
            if look.at > ahead.window.end_position:
                look.base = ahead.window.after

    def _first(self, count: int, usual_s: float) -> list[tuple[float, Consumer, _Found]]:
        """The first few that have to be begun, and by when, of all ranks."""
        if count <= 0:
            return []
        entries: list[tuple[float, int, int, Consumer, _Found]] = []
        for rank, look in self._looks.items():
            owner = self.stream.consumers.get(rank)
            if owner is not None and look.found:
                first = owner.next_due() - owner.granted * usual_s
                entries += [
                    (first + f.ordinal * usual_s - f.takes_s, rank, i, owner, f)
                    for i, f in enumerate(look.found)
                ]
        return [(by, owner, f) for by, _, _, owner, f in heapq.nsmallest(count, entries, key=_by)]

    def _begin(self, owner: Consumer, found: _Found, now: float) -> bool:
        """Give a sample its extent and queue its pieces. False where there is no room."""
        stream, row = self.stream, found.row
        try:
            layout = stream.lay_out((row,))
        except RecipeError:
            return True  # its batch will say so
        assert self.ledger is not None
        if layout.nbytes > self.ring_bytes:
            return True  # there never is
        extent = self.ledger.grant(layout.nbytes)
        if extent is None:
            return False
        scale = stream.costs.scale(row.kind)
        limit_us, group_us = self.limits_us(scale * sum(row.segment_us), None)
        sample = Staged(
            *(self, found.at, (row,), layout, extent, _NOWHERE, now, limit_us, group_us),
            owner=owner,
            place=found.place,
            ordinal=found.ordinal,
        )
        self.samples[self._key(sample)] = sample
        self._queue(sample, 0, row, scale)
        return True

    @staticmethod
    def _key(sample: Staged) -> Place:
        return sample.rank, sample.at, sample.place

    # ---- where it belongs --------------------------------------------------------------------------

    def claim(self, batch: Batch) -> None:
        """A batch has its place: it waits for its samples that are begun."""
        if not self.samples and not self._deaths:
            return
        for place, row in enumerate(batch.rows):
            key = batch.rank, batch.at, place
            sample = self.samples.get(key)
            if sample is not None and sample.rows[0] is row and sample.began is not None:
                sample.lent = batch.lend(place, self.stream.number_task())
                continue
            if sample is not None:
                self._give_up(sample)
            if deaths := self._deaths.pop(key, 0):
                batch.deaths[place] = deaths

    def _give_up(self, sample: Staged) -> None:
        """It is not wanted any more, or its batch decodes it itself."""
        del self.samples[self._key(sample)]
        if sample.lent is not None:
            batch = sample.lent.batch
            batch.give_back(sample.lent)
            batch.deaths[sample.place] = sample.deaths.get(0, 0)
            if batch.cancelled:
                batch.consumer.sweep()
        elif sample.deaths.get(0):
            self._deaths[self._key(sample)] = sample.deaths[0]
        self.drop(sample)

    def forget(self, rank: int) -> None:
        """A rank goes on elsewhere, or not at all."""
        self._looks.pop(rank, None)
        self._deaths = {place: deaths for place, deaths in self._deaths.items() if place[0] != rank}
        for sample in [s for s in self.samples.values() if s.rank == rank]:
            self._give_up(sample)

    def end(self) -> None:
        """The loader ends here."""
        self.refused = True
        self._looks.clear()
        for sample in list(self.samples.values()):
            self._give_up(sample)

    def check(self, copying: list[Staged]) -> None:
        """What must hold between events: every extent is a sample's, and every sample has one."""
        if self.ledger is None:
            return
        ranks = self.stream.consumers.values()
        queued = (s for c in ranks for b in (*c.batches, *c.cancelled) for s in b.sources())
        mine = [s.extent.generation for s in (*self.samples.values(), *self.cancelled, *copying, *queued)]
        if sorted(mine) != self.ledger.generations():
            raise AssertionError(f"extents {self.ledger.generations()}, samples have {sorted(mine)}")

    def view(self) -> dict[str, Any]:
        """For `helixctl status`."""
        held = sum(self.ledger.used()) if self.ledger is not None else 0
        total = self.ledger.nbytes if self.ledger is not None else 0
        return {"begun": self.begun, "at_work": len(self.samples), "bytes": {"total": total, "held": held}}
