"""One micro-batch on its way to its extent, and the tasks that fill it.

sample:  queued --> running --> filled
                       |
                       +--> bad --(its other parts have ended)--> masked --> filled
batch:   filling --> ready (every sample filled)         filling --> cancelled --> gone (no part runs)
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from helixd.core.ledger import Extent
from libhelix.plan.layout import BatchLayout
from libhelix.wire.messages import Row
from libhelix.wire.settings import Position

if TYPE_CHECKING:
    from helixd.core.consumer import Consumer
    from helixd.core.stream import Stream
    from helixd.core.windows import Ahead

MIN_PART_US = 10_000
"""Parts are not made cheaper than this: opening the file again would show."""


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
    def wanted(self) -> bool:
        """Whether a row of it is waited for."""
        return any(self.stream.windows.asked(self.epoch, d) for d in self.draws)


@dataclass(eq=False)
class FillTask:
    """Fill units [begin, end) of a sample; `mask`: give it the pad value instead, it is bad."""

    number: int
    batch: Batch
    sample: int
    begin: int
    end: int
    cost_us: int
    mask: bool = False

    @property
    def stream(self) -> Stream:
        """The loader it works for."""
        return self.batch.consumer.stream


Task = DescribeTask | FillTask


@dataclass(eq=False)
class Batch:
    """A micro-batch of one consumer, in an extent of its ring."""

    consumer: Consumer
    at: Position
    rows: tuple[Row, ...]
    layout: BatchLayout
    extent: Extent
    ahead: Ahead
    number: int
    cancelled: bool = False
    running: int = 0
    decode_us: int = 0
    deaths: dict[int, int] = field(default_factory=dict)
    """Workers that died of each sample, whichever part of it they were at."""
    _queue: list[tuple[int, int, FillTask]] = field(default_factory=list)
    _parts_left: dict[int, int] = field(default_factory=dict)
    _bad: set[int] = field(default_factory=set)

    def add(self, task: FillTask) -> None:
        """Queue a task that was not queued before."""
        self._parts_left[task.sample] = self._parts_left.get(task.sample, 0) + 1
        self._push(task)

    def _push(self, task: FillTask) -> None:
        heapq.heappush(self._queue, (-task.cost_us, task.number, task))  # longest first

    def take(self) -> FillTask | None:
        """The longest queued task, now running."""
        if not self._queue:
            return None
        self.running += 1
        return heapq.heappop(self._queue)[2]

    def give_back(self, task: FillTask) -> None:
        """A running task did not run: its worker died before its turn, or under it."""
        self.running -= 1
        if task.sample in self._bad:
            self._end_part(task.sample)
        elif not self.cancelled:
            self._push(task)

    def filled(self, task: FillTask, cpu_us: int) -> None:
        """A running task is done."""
        self.running -= 1
        self.decode_us += cpu_us
        self._end_part(task.sample)

    def spoiled(self, task: FillTask) -> bool:
        """A running task failed: its sample is bad. True the first time a sample is.

        The caller adds a mask task once `needs_mask` says that no part of it runs any more.
        """
        self.running -= 1
        first = task.sample not in self._bad
        self._bad.add(task.sample)
        waiting = [entry for entry in self._queue if entry[2].sample == task.sample]
        if waiting:
            self._queue = [entry for entry in self._queue if entry[2].sample != task.sample]
            heapq.heapify(self._queue)
        self._parts_left[task.sample] -= len(waiting)
        self._end_part(task.sample)
        return first

    def needs_mask(self, sample: int) -> bool:
        """Whether a bad sample's parts have all ended and its slots still hold what they left."""
        return sample in self._bad and sample not in self._parts_left and not self.cancelled

    def masked(self, sample: int) -> None:
        """A bad sample is about to be masked: it is an ordinary sample again."""
        self._bad.discard(sample)

    def _end_part(self, sample: int) -> None:
        self._parts_left[sample] -= 1
        if not self._parts_left[sample]:
            del self._parts_left[sample]

    @property
    def queued(self) -> bool:
        """Whether a task waits for a worker."""
        return bool(self._queue)

    @property
    def ready(self) -> bool:
        """Whether every sample is in place."""
        return not self._parts_left and not self._bad

    def cancel(self) -> None:
        """Nobody wants it any more; its extent is free once `running` is 0."""
        self.cancelled = True
        self._queue.clear()


def parts_of(row: Row, limit_us: int) -> list[tuple[int, int, int]]:
    """Cut a sample into (begin, end, cost in us), each of whole segments and, where cuts allow, no dearer
    than `limit_us`."""
    bounds = (0, *row.cuts, row.units)
    parts: list[tuple[int, int, int]] = []
    begin, cost = 0, 0
    for segment, us in enumerate(row.segment_us):
        if cost and cost + us > limit_us:
            parts.append((begin, bounds[segment], cost))
            begin, cost = bounds[segment], 0
        cost += us
    parts.append((begin, row.units, cost))
    return parts


def part_limit_us(rows: tuple[Row, ...], workers: int) -> int:
    """The dearest a part of this batch should be, so that its workers end at about the same time."""
    total = sum(sum(row.segment_us) for row in rows)
    return max(MIN_PART_US, total // (2 * max(1, workers)))
