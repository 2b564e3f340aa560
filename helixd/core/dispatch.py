"""Which task a worker gets next.

Describe tasks first, since nothing can be laid out without rows. Then of the batches that are due first, over
all ranks and loaders of a job, the longest piece. Loaders whose next batches are missing share the cores, so
that one that cannot keep up does not starve another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helixd.core.actions import Action, SendWorker
from helixd.core.batch import Batch, DescribeTask, FillTask, Task
from helixd.core.policy import Policy
from helixd.core.pool import Pool, Worker
from libhelix.wire import messages as m

if TYPE_CHECKING:
    from helixd.core.consumer import Consumer
    from helixd.core.staging import Staged
    from helixd.core.stream import Stream

TASKS_PER_WORKER = 2
SOON_US = 8_000
"""A worker is given its next task when the one it is at is expected to end within this."""
MAX_THREADS = 4


@dataclass(eq=False)
class Dispatch:
    """Gives the tasks of a job to its workers. All that it refers to is the job's."""

    pool: Pool
    streams: dict[str, Stream]
    arenas: dict[int, Consumer]
    tasks: dict[int, Task]
    out: list[Action]
    numbers: Callable[[], int]
    policy: Policy
    _shared_from_us: int = 0
    """What the loader whose turn it was last had got until then."""

    def assign(self, now: float) -> None:
        """Give every worker that is free, or soon will be, something to do."""
        if self.pool.host is None:
            return
        slow = self.pool.slow()
        workers = sorted(self.pool.workers.values(), key=lambda w: w.number in slow)
        for depth in range(TASKS_PER_WORKER):
            for worker in workers:
                late = worker.number in slow
                if len(worker.tasks) != depth or not worker.able:
                    continue
                if depth > 0 and (late or self._left_us(worker, now) > SOON_US):
                    continue  # another would have to wait for it, and other workers may be free before
                task = self._next_task(worker, now, least_urgent=late)
                if task is not None:
                    self._give(worker, task, now)
                elif not late and self.policy.by_piece and not self._chained:
                    return  # nor is there one for any other

    @property
    def _chained(self) -> bool:
        """Whether there is work that only some worker may do."""
        return any(stream.settings.chains for stream in self.streams.values())

    @staticmethod
    def _left_us(worker: Worker, now: float) -> float:
        """What a worker's task is still expected to take."""
        task = worker.tasks[0]
        return task.cost_us - (now - worker.since) * 1e6 if isinstance(task, FillTask) else 0.0

    def _next_task(self, worker: Worker, now: float, *, least_urgent: bool) -> Task | None:
        """Describe tasks first; then of the batches that are due first the longest piece, over all consumers.

        `least_urgent`: of the batch that is due last, and no describe task.
        """
        undescribed = [s for s in self.streams.values() if s.describes] if not least_urgent else []
        if undescribed:
            stream = min(undescribed, key=lambda s: s.last_turn)
            stream.last_turn = self.numbers()
            return stream.describes.pop(0)
        found = [b for c in self.arenas.values() if (b := c.first_queued(worker, self.pool)) is not None]
        if not found:
            return None
        lacking = self._lacking(found) if len(self.streams) > 1 and self.policy.by_deadline else {}
        if len(lacking) > 1 and not least_urgent:
            found = self._whose_turn(lacking)
        batch = max(found, key=lambda b: b.begin_by) if least_urgent else self._due_first(found, now)
        batch.consumer.last_turn = self.numbers()
        batch.bound = worker.number
        idle = sum(w.able and not w.tasks and w is not worker for w in self.pool.workers.values())
        task = batch.take(self.numbers, idle)
        if len(lacking) > 1:
            batch.consumer.stream.shared_us += task.cost_us
        if self.policy.split and not worker.tasks:
            self._lend_cores(worker, task, now)
        return task

    def _lend_cores(self, worker: Worker, task: FillTask, now: float) -> None:
        """Let idle cores help with a piece that cannot be cut, is long, and would come late: the codec
        decodes with a thread on each. They take nothing else until it ends."""
        piece, batch = task.pieces[0], task.batch
        whole = len(task.pieces) == 1 and task.decodes and batch.rows[piece.sample].threads
        if not whole or piece.cost_us <= batch.limit_us or now + piece.cost_us * 1e-6 <= batch.due:
            return
        # Who only describes is about to be idle: the first long sample comes while rows are asked for.
        idle = [w for w in self.pool.workers.values() if w.able and not w.fills and w is not worker]
        helpers = idle[: MAX_THREADS - 1]
        if helpers:
            task.cores = (worker.core, *(w.core for w in helpers))
            for helper in helpers:
                helper.lent = task.number

    def give_cores_back(self, task: Task) -> None:
        """A task has ended: cores that helped with it work again."""
        if isinstance(task, FillTask) and task.cores:
            for worker in self.pool.workers.values():
                if worker.lent == task.number:
                    worker.lent = None

    def _due_first(self, found: list[Batch], now: float) -> Batch:
        """Of those that are due at about the same time, such as those of one step, one that is begun, so that
        it ends; else the one with the longest piece, which would end last."""
        if not self.policy.by_deadline:
            return min(found, key=lambda b: (b.granted, b.consumer.last_turn))
        # Who is past its time and does not ask is not more urgent than who does.
        dues = [(b.begin_by if b.awaited else max(b.begin_by, now), b) for b in found]
        due, first = min(dues, key=lambda entry: entry[0])
        until = due + first.consumer.stream.readiness.about_s
        about = (b for due, b in dues if due <= until)
        return min(
            about,
            key=lambda b: (
                not b.awaited,
                b.began is None,
                -b.longest_queued_us,
                b.consumer.last_turn,
            ),
        )

    def _whose_turn(self, lacking: dict[int, list[Batch]]) -> list[Batch]:
        """The loader that got least, among several; one that comes later has no claim on what went before."""
        streams = [some[0].consumer.stream for some in lacking.values()]
        for stream in streams:
            stream.shared_us = max(stream.shared_us, self._shared_from_us)
        first = min(streams, key=lambda s: s.shared_us)
        self._shared_from_us = first.shared_us
        return lacking[first.number]

    @staticmethod
    def _lacking(found: list[Batch]) -> dict[int, list[Batch]]:
        """By loader, the batches that are the next of their rank."""
        lacking: dict[int, list[Batch]] = {}
        for batch in found:
            if batch.consumer.is_next(batch):
                lacking.setdefault(batch.consumer.stream.number, []).append(batch)
        return lacking

    def _give(self, worker: Worker, task: Task, now: float) -> None:
        stream = task.stream
        if stream.number not in worker.streams and stream.number not in worker.loading:
            worker.loading[stream.number] = stream
            setup = m.Setup(stream.number, stream.settings, stream.indexes, stream.sys_path)
            self.out.append(SendWorker(worker.number, setup))
        if isinstance(task, DescribeTask):
            message: m.ToWorker = m.Describe(
                task.number, stream.number, task.epoch, task.ids, task.occurrences, task.suspect
            )
        else:
            message = self._fill_message(worker, task)
        if not worker.tasks:
            worker.since = now
        if isinstance(task, FillTask) and task.batch.began is None:
            task.batch.began = now
        worker.tasks.append(task)
        self.tasks[task.number] = task
        self.out.append(SendWorker(worker.number, message))

    def _fill_message(self, worker: Worker, task: FillTask) -> m.ToWorker:
        batch, consumer = task.batch, task.batch.consumer
        self._map(worker, consumer)
        number, start, layout = consumer.stream.number, batch.extent.offset, batch.layout
        if task.mask:
            sample = task.pieces[0].sample
            return m.Mask(
                task.number,
                number,
                batch.at.epoch,
                batch.rows[sample].id,
                consumer.arena,
                start,
                layout.places[sample],
                layout.records[sample],
                consumer.stream.schema,
            )
        if task.source is not None:
            self._map(worker, task.source.consumer)
            return self._copy_message(task, task.source)
        pieces = []
        for piece in task.pieces:
            row, at = batch.rows[piece.sample], piece.sample
            pieces.append(
                m.Piece(row.id, row.occurrence, piece.begin, piece.end, layout.records[at], layout.places[at])
            )
        return m.Fill(
            task.number,
            number,
            batch.at.epoch,
            consumer.arena,
            start,
            tuple(pieces),
            task.cores,
            task.suspect,
        )

    def _map(self, worker: Worker, consumer: Consumer) -> None:
        """Let a worker map a ring, if it has not yet."""
        if consumer.arena not in worker.arenas:
            worker.arenas.add(consumer.arena)
            mapped = m.MapArena(consumer.arena, consumer.ring_bytes)
            self.out.append(SendWorker(worker.number, mapped, arena=consumer.arena))

    @staticmethod
    def _copy_message(task: FillTask, source: Staged) -> m.Copy:
        batch, sample = task.batch, task.pieces[0].sample
        stream = batch.consumer.stream
        return m.Copy(
            task.number,
            stream.number,
            batch.rows[sample].id,
            m.Slots(
                source.consumer.arena, source.extent.offset, source.layout.places[0], source.layout.records[0]
            ),
            m.Slots(
                batch.consumer.arena,
                batch.extent.offset,
                batch.layout.places[sample],
                batch.layout.records[sample],
            ),
            stream.schema,
        )
