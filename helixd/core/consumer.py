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
from helixd.core.batch import Batch, Piece, part_limits_us, parts_of
from helixd.core.ledger import Extent, Ledger
from helixd.core.readiness import features_of
from libhelix.errors import Oversize, RecipeError
from libhelix.plan.rows import HOPELESS, sum_costs
from libhelix.plan.window import FILLER
from libhelix.wire import messages as m
from libhelix.wire.settings import Base, Position, Start

if TYPE_CHECKING:
    from helixd.core.pool import Pool, Worker
    from helixd.core.stream import Stream
    from helixd.core.windows import Ahead
    from libhelix.plan.layout import BatchLayout

FREE_US = 1000
"""What a part takes of which its recipe says nothing, until that is learned."""
SHORTEST_WINDOW_S = 0.01
RING_LATE = 16
"""Of the last 64 batches; when so many came late for want of room, the trainer is told."""
LATEST_REPORT_S = 600.0
"""A trainer tells at the latest with its next message that it took a batch."""


@dataclass(eq=False)
class Holder:
    """One replica of a consumer, in one process."""

    number: int
    conn: int
    loader: int
    replica: int
    start: Start
    taken: Position | None = None
    told: Ahead | None = None
    """The window that it knows of."""
    asks: Position | None = None
    asked_at: float = 0.0
    told_late: Position | None = None
    """The batch of which it was told why it is late."""
    seek: int = 0
    tier: m.Tier | None = None
    """How its batches get to an accelerator."""
    detached: bool = False
    waits_us: deque[int] = field(default_factory=lambda: deque(maxlen=256))


@dataclass(frozen=True)
class _Prepared:
    """A batch that has no extent yet."""

    at: Position
    ahead: Ahead
    rows: tuple[m.Row, ...]
    layout: BatchLayout


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
    granted: int = 0
    """Micro-batches that have had their place, since it began anew."""
    delivered: int = 0
    cancelled: list[Batch] = field(default_factory=list)
    dropped: bool = False
    no_room: bool = False
    no_room_since: float | None = None
    """Since when the next batch waits for room in the ring."""
    starved_since: float | None = None
    last_turn: int = 0
    taken_at: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=64))
    """When its last batches were taken, and their samples."""
    _pending: dict[Position, int] = field(default_factory=dict)
    """Batches that were granted and are not taken by all replicas, in order, and their samples."""
    _dues: dict[Position, float] = field(default_factory=dict)
    """When these will be asked for."""
    _next_due: float = 0.0
    _took_last: tuple[float, Position] | None = None
    _prepared: _Prepared | None = None
    """The next batch, while it waits for room."""
    _full_at: tuple[int, Position] | None = None
    """The state of the ring that had no room for it."""
    _ring_limits: deque[bool] = field(default_factory=lambda: deque(maxlen=64))
    _lost: int | None = 0
    """Samples of the batches so far, which were all bad; None once one was not."""
    _due_from: int | None = None
    """The version of predictions that deadlines are made from; None: to be made anew."""

    @property
    def live(self) -> list[Holder]:
        """Replicas that still want batches."""
        return [h for h in self.holders if not h.detached]

    @property
    def ring_bytes(self) -> int:
        """Of its ring."""
        return self.max_bytes * self.stream.settings.ring

    def serve(self) -> None:
        """The ring's memory is there."""
        self.stream.serve(self)

    def no_memory(self, code: str, text: str) -> None:
        """There is none for a ring."""
        self.stream.fail(code, text)

    def fail(self, code: str, text: str) -> None:
        """A sample cannot be decoded, nor can others."""
        self.stream.fail(code, text)

    def bad_sample(self, sample: int, text: str, at: Position) -> None:
        """A sample cannot be decoded."""
        self.stream.bad_sample("fill", sample, text, at)

    @property
    def complete(self) -> bool:
        """Whether all replicas are there."""
        return len(self.live) == self.stream.settings.replicas

    def restart(self) -> None:
        """Start where the replicas want to, after forgetting what is in flight."""
        self.cancel_batches()
        first = min((h.start for h in self.live), key=lambda s: s.at)
        self.base, self.next = first.base, first.at
        self._pending.clear()
        self.granted = 0
        self.stream.staging.forget(self.rank)
        self._took_last, self._due_from, self.no_room_since = None, None, None
        for holder in self.live:
            holder.taken, holder.told = None, None
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

    def grant(self, now: float) -> bool:
        """Give the next batch its extent and queue its pieces. False while it must wait."""
        clash = self.stream.clash_since is not None
        full = self.ledger is not None and self._full_at == (self.ledger.changes, self.next)
        if full and self.no_room and self.stream.failure is None and not clash:
            return False  # as before: most events change nothing here
        self.no_room = False
        if self.state != "serving" or clash or self.stream.ended(self.next):
            return False
        ahead = self.stream.windows.planned.get(self.base)
        if ahead is None or self.next > ahead.window.end_position:
            return False
        assert self.ledger is not None
        prepared = self._prepared
        if prepared is None or prepared.ahead is not ahead or prepared.at != self.next:
            prepared = self._prepared = self._prepare(ahead)
        if prepared is None:
            return False
        if self._full_at == (self.ledger.changes, prepared.at):
            self.no_room = True
            return False
        extent = self.ledger.grant(prepared.layout.nbytes)
        self.no_room = extent is None
        if extent is None:
            self._full_at = (self.ledger.changes, prepared.at)
            self.no_room_since = now if self.no_room_since is None else self.no_room_since
            return False
        mine = prepared.rows
        self.stream.readiness.granted(self.next, self.rank, features_of(mine))
        batch = self._batch(mine, prepared.layout, extent, ahead, now)
        self.batches.append(batch)
        self.stream.staging.claim(batch)
        self.granted += 1
        self._pending[self.next] = sum(row.id != FILLER for row in mine)
        self._due_from, self.no_room_since, self._prepared = None, None, None
        self.next = ahead.after(self.next)
        if self.next > ahead.window.end_position:
            self.base = ahead.window.after
        return True

    def _prepare(self, ahead: Ahead) -> _Prepared | None:
        """The next batch, laid out; None where it cannot be, which ends the loader."""
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
            return None
        return _Prepared(self.next, ahead, mine, layout)

    def _batch(
        self, rows: tuple[m.Row, ...], layout: BatchLayout, extent: Extent, ahead: Ahead, now: float
    ) -> Batch:
        stream = self.stream
        scales = {kind: stream.costs.scale(kind) for kind in {row.kind for row in rows}}
        work_us = sum(scales[row.kind] * sum(row.segment_us) for row in rows)
        limit_us, group_us = self.limits_us(work_us, self.next)
        waited = self.no_room_since
        idle = waited is not None and stream.idle()
        batch = Batch(self, self.next, rows, layout, extent, ahead, now, limit_us, group_us, waited, idle)
        for sample, row in enumerate(rows):
            if row.masked:
                batch.mask(sample)
            else:
                self._queue(batch, sample, row, scales[row.kind])
        return batch

    def limits_us(self, work_us: float, at: Position | None) -> tuple[int, int]:
        """The dearest that parts of a batch of so much work, and groups of them, should be."""
        stream = self.stream
        # Not more than the usual one: it is the windows before it that it is to be ready in.
        window_s = stream.readiness.usual_s if stream.readiness.known else None
        if window_s is not None and at is not None:
            window_s = min(window_s, stream.readiness.window_s(at, self.rank))
        return part_limits_us(work_us, stream.worker_count(), window_s, stream.settings.ring)

    def _queue(self, batch: Batch, sample: int, row: m.Row, scale: float) -> None:
        most_us = batch.limit_us / scale if self.stream.policy.split else math.inf
        for begin, end, us in parts_of(row, most_us):
            us = us or FREE_US
            batch.add(Piece(sample, begin, end, int(us * scale), us))

    def mend(self, batch: Batch, sample: int) -> None:
        """A sample is bad and no piece of it is left: another stands in for it, or it is masked."""
        if self.stream.settings.on_bad == "replace":
            tried = batch.tries.get(sample, 0)
            others = batch.ahead.stand_ins(batch.at, self.rank, sample)
            if tried < len(others):
                row = others[tried]
                batch.replace(sample, row)
                self._queue(batch, sample, row, self.stream.costs.scale(row.kind))
                return
            batch.replace(sample, batch.ahead.rows_of(batch.at, self.rank)[sample])
        batch.mask(sample)

    # ---- delivering --------------------------------------------------------------------------------

    def deliver(self, now: float) -> bool:
        """Send every batch that is complete and next. Whether that has made room in the ring."""
        freed = False
        while self.batches and self.batches[0].ready:
            batch = self.batches.popleft()
            to = [h for h in self.live if h.seek == self.seek and h.start.at <= batch.at]
            assert self.ledger is not None
            if not to:
                self.ledger.cancel(batch.extent.generation)
                freed = True
                continue
            self._look_at(batch)
            self.ledger.lease(batch.extent.generation, [h.number for h in to])
            self.delivered += 1
            self.stream.history.delivered(batch, now)
            for holder in to:
                holder.asks = None
                self.stream.answered(holder.conn)
                self._tell_window(batch, holder)
                self.stream.out.append(Send(holder.conn, self._ready(batch, holder)))
        return freed

    def _look_at(self, batch: Batch) -> None:
        """Tell which samples of a batch could not be described, and whether any sample so far is good."""
        stream = self.stream
        if stream.settings.on_bad != "raise":
            for row in batch.ahead.rows_of(batch.at, self.rank):
                if row.error and row.id != FILLER:
                    stream.bad_sample("describe", row.bad, row.error, batch.at)
        samples = sum(row.id != FILLER for row in batch.rows)
        if self._lost is None or not samples:
            return
        self._lost = self._lost + samples if batch.masked == len(batch.rows) else None
        if self._lost is not None and self._lost >= HOPELESS:
            stream.nothing_good(self._lost, batch.at)

    def _tell_window(self, batch: Batch, holder: Holder) -> None:
        ahead = batch.ahead
        if holder.told is ahead or self.stream.planner.counted(ahead.window.base):
            return
        holder.told = ahead
        parts = ahead.parts()
        for part in parts:
            window = m.Window(holder.loader, part, last=part is parts[-1])
            self.stream.out.append(Send(holder.conn, window))

    def took(self, holder: Holder, taking: m.Taking, now: float) -> None:
        """A replica's `next()` returned a batch."""
        before, holder.taken = holder.taken, taking.at
        self._due_from = None
        # The clock of a node is one for all its processes; only one in another time namespace is off.
        taken_s = taking.taken_us * 1e-6
        told = taking.taken_us > 0 and now - LATEST_REPORT_S < taken_s <= now
        taken_s = taken_s if told else now
        if holder is self.live[0]:  # replicas do the same at the same time
            self.taken_at.append((now, self._pending.get(taking.at, 0)))
            self._took_last = (taken_s, taking.at)
            self.stream.readiness.took(self.rank, taking, before, now)
            counters = self.stream.history.counters
            counters.waits.add(taking.wait_us * 1e-6)
            counters.samples += self._pending.get(taking.at, 0)
            record = self.stream.history.took(self, taking, before, taken_s)
            if record is not None:
                late = record.wait_s > self.stream.readiness.miss_s()
                counters.misses += late and record.asked is not None and record.ready > record.asked
                self._note_ring(record.idle and late)
        first = min((h.taken for h in self.live if h.taken is not None), default=taking.at)
        for past in [p for p in self._pending if p <= first]:
            del self._pending[past]

    def _note_ring(self, limits: bool) -> None:
        """Whether a batch came late although a core was idle, for want of room; warn where many do."""
        # A trainer that does nothing between two batches always waits, and says nothing about rings.
        self._ring_limits.append(limits and (self.stream.readiness.usual_s or 0.0) > SHORTEST_WINDOW_S)
        if sum(self._ring_limits) >= RING_LATE and not self.stream.warned_ring:
            self.stream.warned_ring = True
            ring = self.stream.settings.ring
            text = (
                f"the ring limits: {sum(self._ring_limits)} of the last {len(self._ring_limits)} batches "
                f"came late while cores were idle; set ring={ring + max(2, ring // 2)}"
            )
            for holder in self.live:
                self.stream.out.append(Send(holder.conn, m.Warn(holder.loader, text)))

    def asked(self, holder: Holder, at: Position, now: float) -> None:
        """A replica's `next()` waits."""
        if at < self.undelivered:
            return  # it is on its way: the question has crossed it
        holder.asks, holder.asked_at = at, now
        self._due_from = None

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

    # ---- who comes first ---------------------------------------------------------------------------

    def first_queued(self, worker: Worker, pool: Pool) -> Batch | None:
        """The batch that is due first of those with a piece to give to a worker, its deadline up to date."""
        self._look_at_dues()
        queued = (batch for batch in self.batches if batch.queued)
        if chains := self.stream.settings.chains:
            number = self.stream.number
            return next((b for b in queued if pool.home(number, b.rows[0].id % chains) is worker), None)
        if self.stream.policy.by_piece:
            return next(queued, None)
        return next((b for b in queued if b.bound in (None, worker.number)), None)

    def is_next(self, batch: Batch) -> bool:
        """Whether it is the next batch of its rank."""
        return self.batches[0] is batch

    def next_due(self) -> float:
        """When the next batch that has no place yet is expected to be asked for."""
        self._look_at_dues()
        return self._next_due

    def _look_at_dues(self) -> None:
        version = self.stream.readiness.model.version
        if self._due_from != version:
            self._due_from = version
            self._make_dues()

    def _make_dues(self) -> None:
        """Deadlines: the next batch is asked for when the window of the last one is over, or is waited for
        already; each further one a window later."""
        window_s, rank = self.stream.readiness.window_s, self.rank
        if (waits_since := self._waits_since()) is not None:
            due = waits_since
        elif self._took_last is not None:
            due = self._took_last[0] + window_s(self._took_last[1], rank)
        else:
            due = self.since
        self._dues = {}
        for at in self._pending:
            self._dues[at] = due
            due += window_s(at, rank)
        for batch in self.batches:
            batch.due = self._dues.get(batch.at, due)
        self._next_due = due

    def due(self, at: Position) -> float | None:
        """When a batch is expected to be asked for, as far as that was needed."""
        return self._dues.get(at)

    @property
    def waits(self) -> bool:
        """Whether a replica waits for a batch."""
        return self._waits_since() is not None

    def _waits_since(self) -> float | None:
        """Since when a replica waits for a batch; None if none does."""
        asking = [h.asked_at for h in self.holders if h.asks is not None and not h.detached]
        return min(asking) if asking else None

    def note_starvation(self, now: float) -> None:
        """Note since when all replicas wait while what they hold fills the ring.

        It may be over in a moment: releases of what came before a seek are on their way.
        """
        starved = (
            self.no_room
            and not self.batches
            and not self.cancelled
            and bool(self.live)
            and all(h.asks == self.next for h in self.live)
            and self.ledger is not None
            and self.ledger.only_leased()
        )
        if not starved:
            self.starved_since = None
        elif self.starved_since is None:
            self.starved_since = now
