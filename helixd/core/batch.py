"""One micro-batch on its way to its extent, and the tasks that fill it.

piece:   queued --take--> in a task --filled--> gone
sample:  filling --one of its pieces failed--> bad --(its other pieces have ended)--> masked --> filled
                                                bad --(another stands in for it)--> filling
batch:   filling --> ready (every sample filled)         filling --> cancelled --> gone (no task runs)
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from helixd.core.ledger import Extent
from libhelix.plan.layout import BatchLayout
from libhelix.recipe import OPENING_US
from libhelix.wire.messages import MAX_PIECES, MAX_PLACES, Row
from libhelix.wire.settings import Position

if TYPE_CHECKING:
    from helixd.core.consumer import Consumer
    from helixd.core.staging import Staged
    from helixd.core.stream import Stream
    from helixd.core.windows import Ahead

MIN_PART_US = 10_000
"""Parts are not made cheaper than this: opening the file again would show."""
CHEAP_CUT_US = 20 * OPENING_US
"""Parts as dear as this lose a twentieth to opening the file again: cut further only where time presses."""
EVEN_US = 2_000
"""Parts of a sample need not be more alike than this."""
COPY_US = 500
"""What copying a sample is taken to take."""
GROUP_US = 8_000
"""Short pieces are given to a worker together, up to this: messages would cost more than they."""


@dataclass(eq=False)
class DescribeTask:
    """Describe draws of an epoch: `ids` are their samples. `deaths`: workers that died of it."""

    number: int
    stream: Stream
    epoch: int
    draws: tuple[int, ...]
    ids: tuple[int, ...]
    occurrences: tuple[int, ...]
    deaths: int = 0

    @property
    def suspect(self) -> bool:
        """Whether a worker died of it."""
        return self.deaths > 0

    @property
    def wanted(self) -> bool:
        """Whether a row of it is waited for."""
        return any(self.stream.windows.asked(self.epoch, d) for d in self.draws)


@dataclass(eq=False, slots=True)
class Piece:
    """Units [begin, end) of a sample. `cost_us` is what it is expected to take, of which the recipe says
    `declared_us`. `alone`: a worker died of a task that it was in with others."""

    sample: int
    begin: int
    end: int
    cost_us: int
    declared_us: int = 0
    alone: bool = False


@dataclass(eq=False)
class FillTask:
    """Fill pieces of a batch, one after the other; `mask`: give its one sample the pad value, it is bad;
    `source`: copy its one sample from there.

    `cores`: those that decode it together, where there are several.
    """

    number: int
    batch: Batch
    pieces: tuple[Piece, ...]
    mask: bool = False
    source: Staged | None = None
    cores: tuple[int, ...] = ()

    @property
    def decodes(self) -> bool:
        """Whether it does what recipes do."""
        return not self.mask and self.source is None

    @property
    def stream(self) -> Stream:
        """The loader it works for."""
        return self.batch.consumer.stream

    @property
    def suspect(self) -> bool:
        """Whether a worker died of it, or of a task that it was in with others."""
        first = self.pieces[0]
        return self.decodes and (first.alone or self.batch.deaths.get(first.sample, 0) > 0)

    @cached_property
    def cost_us(self) -> int:
        """What it is expected to take."""
        return sum(piece.cost_us for piece in self.pieces)


Task = DescribeTask | FillTask


@dataclass(eq=False)
class Batch:
    """A micro-batch of one consumer, in an extent of its ring. `due`: when it will be asked for."""

    consumer: Consumer
    at: Position
    rows: tuple[Row, ...]
    layout: BatchLayout
    extent: Extent
    ahead: Ahead
    granted: float
    limit_us: int
    group_us: int
    """What pieces that are given to a worker together may take."""
    no_room_since: float | None = None
    """Since when it had waited for room in the ring."""
    idle: bool = False
    """Whether a core had nothing to do when there was room at last."""
    due: float = 0.0
    bound: int | None = None
    """The worker that decodes all of it, where policy says so."""
    cancelled: bool = False
    running: int = 0
    """Tasks of it that workers hold."""
    decode_us: int = 0
    stall_us: int = 0
    began: float | None = None
    """When its first task was given to a worker."""
    longest: tuple[float, int] = (0.0, 0)
    """Seconds of its longest task, and the sample that was most of it."""
    deaths: dict[int, int] = field(default_factory=dict)
    """Workers that died of each sample, whichever part of it they were at."""
    masked: int = 0
    """Samples that got the pad value, fillers too."""
    tries: dict[int, int] = field(default_factory=dict)
    """How many others have stood in for a sample."""
    stay: set[int] = field(default_factory=set)
    """Samples that no other node is asked for: one has failed on them."""
    _queue: list[tuple[int, int, int, Piece]] = field(default_factory=list)
    _parts_left: dict[int, int] = field(default_factory=dict)
    _bad: set[int] = field(default_factory=set)
    _masks: list[Piece] = field(default_factory=list)
    _copies: list[tuple[Piece, Staged]] = field(default_factory=list)

    @property
    def rank(self) -> int:
        """Whose it is."""
        return self.consumer.rank

    @property
    def final(self) -> Batch:
        """The batch that it becomes part of: itself."""
        return self

    @property
    def awaited(self) -> bool:
        """Whether its rank waits."""
        return self.consumer.waits

    @property
    def begin_by(self) -> float:
        """The order in which batches are begun."""
        return self.due

    def add(self, piece: Piece) -> None:
        """Queue a piece that was not queued before."""
        self._parts_left[piece.sample] = self._parts_left.get(piece.sample, 0) + 1
        self._push(piece)

    def mask(self, sample: int) -> None:
        """Queue that a bad sample gets the pad value; no piece of it may be left."""
        self.masked += 1
        self._bad.discard(sample)
        self.deaths[sample] = 0
        self._parts_left[sample] = self._parts_left.get(sample, 0) + 1
        self._masks.append(Piece(sample, 0, self.rows[sample].units, 0))

    def replace(self, sample: int, row: Row) -> None:
        """Another sample stands in for a bad one, of which no piece is left; its pieces follow, by `add`."""
        self._bad.discard(sample)
        self.deaths[sample] = 0
        self.stay.discard(sample)
        self.tries[sample] = self.tries.get(sample, 0) + 1
        self.rows = (*self.rows[:sample], row, *self.rows[sample + 1 :])

    def _push(self, piece: Piece) -> None:
        heapq.heappush(self._queue, (-piece.cost_us, piece.sample, piece.begin, piece))  # longest first

    @property
    def longest_queued_us(self) -> int:
        """What its longest queued piece is expected to take."""
        return -self._queue[0][0] if self._queue else 0

    def take(self, number: Callable[[], int], idle: int = 0) -> FillTask:
        """A task: the longest queued piece, and where that is short, the next ones beside it; but so many
        `idle` workers get their share."""
        self.running += 1
        if self._copies:
            piece, source = self._copies.pop()
            return FillTask(number(), self, (piece,), source=source)
        if not self._queue:
            return FillTask(number(), self, (self._masks.pop(),), mask=True)
        share = -(-len(self._queue) // (idle + 1))
        pieces = [heapq.heappop(self._queue)[3]]
        fields = max(1, len(self.consumer.stream.schema))
        us, most = pieces[0].cost_us, min(MAX_PIECES, MAX_PLACES // fields, share)
        while self._queue and len(pieces) < most and not pieces[0].alone:
            us += -self._queue[0][0]
            if us > self.group_us or self._queue[0][3].alone:
                break
            pieces.append(heapq.heappop(self._queue)[3])
        return FillTask(number(), self, tuple(pieces))

    @property
    def queued_us(self) -> int:
        """What its queued pieces are expected to take."""
        return -sum(entry[0] for entry in self._queue)

    def untouched(self) -> dict[int, int]:
        """Samples of which every piece is queued, and what these are expected to take."""
        units: dict[int, int] = {}
        us: dict[int, int] = {}
        for negative_us, sample, _, piece in self._queue:
            units[sample] = units.get(sample, 0) + piece.end - piece.begin
            us[sample] = us.get(sample, 0) - negative_us
        out = self._bad | self.stay
        whole = (sample for sample, some in units.items() if some == self.rows[sample].units)
        return {sample: us[sample] for sample in whole if sample not in out}

    def lend(self, sample: int, number: int) -> FillTask:
        """All pieces of an untouched sample, as a task that no worker here gets."""
        pieces = tuple(entry[3] for entry in self._queue if entry[1] == sample)
        self._queue = [entry for entry in self._queue if entry[1] != sample]
        heapq.heapify(self._queue)
        self.running += 1
        return FillTask(number, self, pieces)

    def copy(self, task: FillTask, source: Staged) -> None:
        """The pieces of a sample that was lent are all there, in the extent of `source`."""
        self.running -= 1
        sample = task.pieces[0].sample
        self._parts_left[sample] = 1
        self.decode_us += source.decode_us
        self.stall_us += source.stall_us
        if len(self._parts_left) == 1:  # it is all that was waited for
            self.longest = max(self.longest, source.longest)
        self._copies.append((Piece(sample, 0, self.rows[sample].units, COPY_US), source))

    def sources(self) -> list[Staged]:
        """Of copies that no worker has yet."""
        return [source for _, source in self._copies]

    def give_back(self, task: FillTask, *, suspect: bool = False) -> None:
        """A running task did not run: its worker died before its turn, or under it. `suspect`: one of its
        pieces may have killed it; they are tried singly."""
        self.running -= 1
        if task.source is not None:
            if self.cancelled:
                task.source.let_go()
            else:
                self._copies.append((task.pieces[0], task.source))
            return
        for piece in task.pieces:
            piece.alone = piece.alone or (suspect and len(task.pieces) > 1)
            if piece.sample in self._bad:
                self._end_part(piece.sample)
            elif task.mask and not self.cancelled:
                self._masks.append(piece)
            elif not self.cancelled:
                self._push(piece)

    def done(self) -> None:
        """A running task has ended; its pieces follow, by `filled` or `spoiled`."""
        self.running -= 1

    def filled(self, piece: Piece, cpu_us: int) -> None:
        """A piece is in its place."""
        self.decode_us += cpu_us
        self._end_part(piece.sample)

    def spoiled(self, piece: Piece) -> bool:
        """A piece failed: its sample is bad. True the first time a sample is.

        The caller masks or replaces it once `needs_mending` says that no piece of it is left.
        """
        first = piece.sample not in self._bad
        self._bad.add(piece.sample)
        waiting = [entry for entry in self._queue if entry[1] == piece.sample]
        if waiting:
            self._queue = [entry for entry in self._queue if entry[1] != piece.sample]
            heapq.heapify(self._queue)
        self._parts_left[piece.sample] -= len(waiting)
        self._end_part(piece.sample)
        return first

    def needs_mending(self, sample: int) -> bool:
        """Whether a bad sample's pieces have all ended and its slots still hold what they left."""
        return sample in self._bad and sample not in self._parts_left and not self.cancelled

    def _end_part(self, sample: int) -> None:
        self._parts_left[sample] -= 1
        if not self._parts_left[sample]:
            del self._parts_left[sample]

    @property
    def queued(self) -> bool:
        """Whether a task waits for a worker."""
        return bool(self._queue or self._masks or self._copies)

    @property
    def ready(self) -> bool:
        """Whether every sample is in place."""
        return not self._parts_left and not self._bad

    def cancel(self) -> None:
        """Nobody wants it any more; its extent is free once `running` is 0."""
        self.cancelled = True
        self._queue.clear()
        self._masks.clear()
        for _, source in self._copies:
            source.let_go()
        self._copies.clear()


def parts_of(row: Row, limit_us: float) -> list[tuple[int, int, int]]:
    """Cut a sample into as few (begin, end, declared us) as have to be where each is of whole segments and,
    as far as cuts allow, no dearer than `limit_us`; they are about equally dear. Parts beyond the first open
    the file again."""
    if len(row.segment_us) == 1:
        return [(0, row.units, row.segment_us[0])]
    parts = _cut(row, limit_us)
    low_us = limit_us if len(parts) == 1 else sum(us for _, _, us in parts) / len(parts)
    while limit_us - low_us > EVEN_US:
        middle_us = (low_us + limit_us) / 2
        tried = _cut(row, middle_us)
        if len(tried) > len(parts):
            low_us = middle_us
        else:
            parts, limit_us = tried, middle_us
    return parts


def _cut(row: Row, limit_us: float) -> list[tuple[int, int, int]]:
    bounds = (0, *row.cuts, row.units)
    parts: list[tuple[int, int, int]] = []
    begin, cost = 0, 0
    for segment, us in enumerate(row.segment_us):
        if cost and cost + us > limit_us:
            parts.append((begin, bounds[segment], cost))
            begin, cost = bounds[segment], OPENING_US
        cost += us
    parts.append((begin, row.units, cost))
    return parts


def part_limits_us(work_us: float, workers: int, window_s: float | None, ring: int) -> tuple[int, int]:
    """The dearest a part of a batch should be, and a group of short ones: a quarter of its window.

    Parts are not cut smaller than pays; groups are not larger than that. A batch of a `ring` of three or more
    is begun windows before it is due: parts may take all of these but one, as long as cutting them further
    would cost more than a little. While windows are unknown: what lets all workers end at about the same
    time, with room for cuts that lie unevenly.
    """
    if window_s is None:
        return max(MIN_PART_US, int(work_us / (2 * max(1, workers)) * 1.25)), GROUP_US
    window_us = window_s * 1e6
    spare_us = min(CHEAP_CUT_US, max(0, ring - 2) * window_us)
    return int(max(MIN_PART_US, window_us / 4, spare_us)), int(min(GROUP_US, window_us / 4))
