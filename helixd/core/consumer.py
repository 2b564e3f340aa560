"""A data-parallel rank of a loader: its ring, its batches, and the replicas that hold them.

    gathering --all replicas are there, shapes known--> reserving --the memory is there--> serving

Batches are granted strictly in delivery order, delivered strictly in that order, and delivered as soon as
they are complete: a trainer that asks finds its batch in its socket.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from helixd.core.actions import Send
from helixd.core.batch import Batch, FillTask, part_limit_us, parts_of
from helixd.core.ledger import Ledger
from libhelix.errors import Oversize, RecipeError
from libhelix.plan.rows import sum_costs
from libhelix.plan.window import FILLER
from libhelix.wire import messages as m
from libhelix.wire.settings import Base, Position, Start

if TYPE_CHECKING:
    from helixd.core.stream import Stream
    from helixd.core.windows import Ahead


@dataclass(eq=False)
class Holder:
    """One replica of a consumer, in one process."""

    number: int
    conn: int
    loader: int
    replica: int
    start: Start
    taken: Position | None = None
    passed: int = 0
    """Batches of the consumer that it has taken, or that are before its start."""
    told: Ahead | None = None
    """The window that it knows of."""
    asks: Position | None = None
    asked_at: float = 0.0
    seek: int = 0
    detached: bool = False
    waits_us: deque[int] = field(default_factory=lambda: deque(maxlen=256))


@dataclass(eq=False)
class Consumer:
    """A data-parallel rank of a stream, on this node."""

    stream: Stream
    rank: int
    since: float
    state: Literal["gathering", "reserving", "serving"] = "gathering"
    arena: int = 0
    max_bytes: int = 0
    declared_max_bytes: int | None = None
    ledger: Ledger | None = None
    holders: list[Holder] = field(default_factory=list)
    batches: deque[Batch] = field(default_factory=deque)
    next: Position = Position(0, 0, 0)  # noqa: RUF009  # frozen
    base: Base = Base(0, 0, 0)  # noqa: RUF009  # frozen
    """Of the window that `next` is in."""
    seek: int = 0
    delivered: int = 0
    granted: int = 0
    cancelled: list[Batch] = field(default_factory=list)
    dropped: bool = False
    no_room: bool = False
    starved_since: float | None = None
    last_turn: int = 0
    taken_at: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=64))
    """When its last batches were taken, and their samples."""
    _samples: dict[Position, int] = field(default_factory=dict)

    @property
    def live(self) -> list[Holder]:
        """Replicas that still want batches."""
        return [h for h in self.holders if not h.detached]

    @property
    def complete(self) -> bool:
        """Whether all replicas are there."""
        return len(self.live) == self.stream.settings.replicas

    def restart(self) -> None:
        """Start where the replicas want to, after forgetting what is in flight."""
        self.cancel_batches()
        first = min((h.start for h in self.live), key=lambda s: s.at)
        self.base, self.next, self.granted = first.base, first.at, 0
        self._samples.clear()
        for holder in self.live:
            holder.taken, holder.passed, holder.told = None, 0, None
            self.seek = holder.seek

    def cancel_batches(self) -> None:
        """Forget the batches that are not delivered; their extents return when no worker writes to them."""
        for batch in self.batches:
            batch.cancel()
            self.cancelled.append(batch)
        self.batches.clear()
        self.sweep()

    def sweep(self) -> None:
        """Free the extents of cancelled batches that nobody writes to any more."""
        for batch in [b for b in self.cancelled if not b.running]:
            self.cancelled.remove(batch)
            if self.ledger is not None:
                self.ledger.cancel(batch.extent.generation)

    # ---- granting ----------------------------------------------------------------------------------

    def grant(self) -> bool:
        """Give the next batch its extent and queue its tasks. False while it must wait."""
        self.no_room = False
        clash = self.stream.clash_since is not None
        if self.state != "serving" or clash or self.stream.ended(self.next):
            return False
        ahead = self.stream.windows.planned.get(self.base)
        if ahead is None or self.next > ahead.window.end_position:
            return False
        assert self.ledger is not None
        mine = ahead.rows_of(self.next, self.rank)
        try:
            layout = self.stream.lay_out(mine)
            if layout.nbytes > self.max_bytes:
                raise Oversize(
                    f"the batch of rank {self.rank} at step {self.next.step} of epoch {self.next.epoch} has "
                    f"{layout.nbytes} bytes, the ring is made for {self.max_bytes}; set "
                    f"max_bytes={2 * layout.nbytes} in the batching"
                )
        except (Oversize, RecipeError) as e:
            self.stream.fail_from(e.code, str(e), self.next)
            return False
        extent = self.ledger.grant(layout.nbytes)
        self.no_room = extent is None
        if extent is None:
            return False
        batch = Batch(self, self.next, mine, layout, extent, ahead, self.granted)
        self._queue_tasks(batch)
        self.batches.append(batch)
        self.granted += 1
        self._samples[self.next] = sum(row.id != FILLER for row in mine)
        self.next = ahead.after(self.next)
        if self.next > ahead.window.end_position:
            self.base = ahead.window.after
        return True

    def _queue_tasks(self, batch: Batch) -> None:
        limit_us = part_limit_us(batch.rows, self.stream.worker_count())
        for sample, row in enumerate(batch.rows):
            if row.error:
                batch.add(FillTask(self.stream.number_task(), batch, sample, 0, row.units, 0, mask=True))
                continue
            for begin, end, us in parts_of(row, limit_us):
                batch.add(FillTask(self.stream.number_task(), batch, sample, begin, end, us))

    # ---- delivering --------------------------------------------------------------------------------

    def deliver(self) -> None:
        """Send every batch that is complete and next."""
        while self.batches and self.batches[0].ready:
            batch = self.batches.popleft()
            to = [h for h in self.live if h.seek == self.seek and h.start.at <= batch.at]
            for holder in self.live:
                if holder not in to:
                    holder.passed += 1
            assert self.ledger is not None
            if not to:
                self.ledger.cancel(batch.extent.generation)
                continue
            self.ledger.lease(batch.extent.generation, [h.number for h in to])
            self.delivered += 1
            for holder in to:
                holder.asks = None
                self._tell_window(batch, holder)
                self.stream.out.append(Send(holder.conn, self._ready(batch, holder)))

    def _tell_window(self, batch: Batch, holder: Holder) -> None:
        ahead = batch.ahead
        if holder.told is ahead or self.stream.planner.counted(ahead.window.base):
            return
        holder.told = ahead
        parts = ahead.parts()
        for part in parts:
            window = m.Window(holder.loader, part, last=part is parts[-1])
            self.stream.out.append(Send(holder.conn, window))

    def took(self, holder: Holder, at: Position, now: float) -> None:
        """A replica's `next()` returned a batch."""
        holder.taken = at
        holder.passed += 1
        self.taken_at.append((now, self._samples.get(at, 0)))
        first = min((h.taken for h in self.live if h.taken is not None), default=at)
        for past in [p for p in self._samples if p < first]:
            del self._samples[past]

    def _ready(self, batch: Batch, holder: Holder) -> m.Ready:
        begin, layout = batch.extent.offset, batch.layout
        return m.Ready(
            loader=holder.loader,
            at=batch.at,
            generation=batch.extent.generation,
            offset=begin,
            nbytes=batch.extent.nbytes,
            fields=tuple(m.FieldRange(begin + f.offset, f.shape) for f in layout.fields),
            table=(begin + layout.table[0], layout.table[1]),
            samples=len(batch.rows),
            global_samples=batch.ahead.samples(batch.at.step),
            costs=sum_costs(row.costs for row in batch.rows),
            global_costs=batch.ahead.costs(batch.at.step),
            decode_us=batch.decode_us,
            following=batch.ahead.after(batch.at),
            fillers=sum(row.id == FILLER for row in batch.rows),
            seek=holder.seek,
        )

    @property
    def undelivered(self) -> Position:
        """The first position that no replica has been sent."""
        return self.batches[0].at if self.batches else self.next

    def place(self, task: FillTask, field_: int) -> m.Place:
        """Where a field of a task's sample goes, from the start of the arena."""
        place = task.batch.layout.places[task.sample][field_]
        return m.Place(task.batch.extent.offset + place.offset, place.shape, place.strides, place.slot)

    # ---- who comes first ---------------------------------------------------------------------------

    def distance(self, batch: Batch) -> int:
        """How many batches the trainer takes before this one."""
        return batch.number - min((h.passed for h in self.live), default=batch.number)

    @property
    def waits_since(self) -> float:
        """Since when a replica waits for a batch; never, if none does."""
        return min((h.asked_at for h in self.live if h.asks is not None), default=math.inf)

    def note_starvation(self, now: float) -> None:
        """Note since when all replicas wait while what they hold fills the ring.

        It may be over in a moment: releases of what came before a seek are on their way.
        """
        starved = (
            self.no_room
            and bool(self.live)
            and all(h.asks == self.next for h in self.live)
            and not self.batches
            and not self.cancelled
            and self.ledger is not None
            and self.ledger.only_leased()
        )
        if not starved:
            self.starved_since = None
        elif self.starved_since is None:
            self.starved_since = now
