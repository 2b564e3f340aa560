"""What batches and tasks went through lately, for `helixctl why` and `helixctl trace`. All times are the
node's monotonic clock, in seconds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from helixd.core.metrics import Counters
from libhelix.wire.messages import Taking
from libhelix.wire.settings import Position

if TYPE_CHECKING:
    from helixd.core.batch import Batch, FillTask
    from helixd.core.consumer import Consumer

BATCHES_KEPT = 4096
TASKS_KEPT = 8192
ERRANDS_KEPT = 2048


class BatchRecord(msgspec.Struct, eq=False, array_like=True):
    """A delivered batch. `due`: when it was predicted to be asked for, as of its last task.

    no_room_since   since when it had waited for room in the ring; None: it had not
    longest         seconds of its longest task, and the sample that was most of it
    asked, wait_s   when it was asked for, and how long its trainer then waited; None: not taken yet
    window_s        how long the trainer was busy with it
    opening         its rank's first one since it came, or went on elsewhere: nothing was decoded ahead
    idle            whether a core had nothing to do when there was room for it
    """

    at: Position
    rank: int
    no_room_since: float | None
    granted: float
    began: float
    ready: float
    due: float
    decode_us: int
    stall_us: int
    longest: tuple[float, int]
    nbytes: int
    asked: float | None = None
    wait_s: float = 0.0
    window_s: float | None = None
    opening: bool = False
    idle: bool = False


class TaskRecord(msgspec.Struct, frozen=True, array_like=True):
    """A task of a worker: describing samples (`at` is None), or filling them."""

    core: int
    began: float
    ended: float
    cpu_us: int
    stall_us: int
    due: float | None
    rank: int | None
    at: Position | None
    samples: tuple[int, ...]


class ErrandRecord(msgspec.Struct, frozen=True, array_like=True):
    """A sample that another node decoded: sent for at `began`, here at `ended`.

    takes_s     what that was predicted to take
    decode_us   what it took there, waiting included
    """

    node: str
    began: float
    ended: float
    takes_s: float
    decode_us: int
    nbytes: int
    due: float
    rank: int
    at: Position
    sample: int


@dataclass(eq=False)
class History:
    """The last batches, tasks and errands of a loader; `counters` are the daemon's."""

    batches: deque[BatchRecord] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    tasks: deque[TaskRecord] = field(default_factory=lambda: deque(maxlen=TASKS_KEPT))
    errands: deque[ErrandRecord] = field(default_factory=lambda: deque(maxlen=ERRANDS_KEPT))
    counters: Counters = field(default_factory=Counters)
    _open: dict[tuple[int, Position], BatchRecord] = field(default_factory=dict)
    """Delivered batches that their rank is not done with."""

    def delivered(self, batch: Batch, now: float) -> None:
        """A batch is ready and was sent."""
        record = BatchRecord(
            batch.at,
            batch.consumer.rank,
            batch.no_room_since,
            batch.granted,
            batch.began if batch.began is not None else now,
            now,
            batch.due,
            batch.decode_us,
            batch.stall_us,
            batch.longest,
            batch.extent.nbytes,
            idle=batch.idle,
        )
        self.batches.append(record)
        self._open[record.rank, record.at] = record
        if len(self._open) > BATCHES_KEPT:
            del self._open[next(iter(self._open))]

    def took(
        self, consumer: Consumer, taking: Taking, before: Position | None, taken_s: float
    ) -> BatchRecord | None:
        """A rank took a batch, and is done with that of `before`. The record of the one taken."""
        record = self._open.get((consumer.rank, taking.at))
        if record is not None:
            record.wait_s = taking.wait_us * 1e-6
            record.opening = before is None
            record.asked = taken_s - record.wait_s
            due = consumer.due(taking.at)
            record.due = due if due is not None else record.due
        done = self._open.pop((consumer.rank, before), None) if before is not None else None
        if done is not None and taking.window_us:
            done.window_s = taking.window_us * 1e-6
        return record

    def filled(self, task: FillTask, core: int, began: float, now: float, cpu_us: int, stall_us: int) -> None:
        """A worker has ended a task."""
        self.counters.filled(now - began, cpu_us, stall_us)
        batch = task.batch
        samples = tuple(batch.rows[piece.sample].id for piece in task.pieces)
        rank, at = batch.rank, batch.at
        self.tasks.append(TaskRecord(core, began, now, cpu_us, stall_us, batch.due, rank, at, samples))
        if now - began > batch.longest[0]:
            longest = max(task.pieces, key=lambda piece: piece.cost_us)
            batch.longest = (now - began, batch.rows[longest.sample].id)

    def described(self, samples: tuple[int, ...], core: int, began: float, now: float) -> None:
        """A worker has described samples."""
        self.counters.described(now - began)
        self.tasks.append(TaskRecord(core, began, now, 0, 0, None, None, None, samples))
