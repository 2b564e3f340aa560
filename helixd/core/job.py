"""A job on this node: its worker host, its workers, its loaders, and which task runs next.

    worker:  forked --Setup--> loading --SetupDone--> able
             any --socket closed--> closed --reaped by the host, or the host is gone too--> forked again
             any --its core is given up--> retiring --its last task done--> closed

A worker holds up to two tasks, so that it never waits for the next. One that dies gives its tasks back: the
first one, which it was working on, is blamed, and a sample that two workers died of is bad.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from helixd.core.actions import Action, DropArena, Log, MakeArena, Send, SendWorker
from helixd.core.batch import DescribeTask, FillTask, Task
from helixd.core.consumer import Consumer
from helixd.core.pool import DEATHS_BEFORE_FIRST_TASK, Pool, Worker
from helixd.core.stream import Stream
from libhelix.wire import messages as m

TASKS_PER_WORKER = 2
DEATHS_PER_SAMPLE = 2
GATHER_LIMIT_S = 30.0
STARVED_LIMIT_S = 5.0
CLASH_LIMIT_S = 5.0


@dataclass(eq=False)
class Job:
    """One job of one user on this node. `numbers` gives numbers that are unique in the daemon."""

    uid: int
    name: str
    out: list[Action]
    numbers: Callable[[], int]
    page: int
    allowed_cores: frozenset[int] | None
    reserve: int | None = None
    streams: dict[str, Stream] = field(default_factory=dict)
    arenas: dict[int, Consumer] = field(default_factory=dict)
    tasks: dict[int, Task] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pool = Pool(
            self.name,
            self.out,
            self.numbers,
            self.allowed_cores,
            self.reserve,
            returned=self._returned,
            fail=self.fail,
        )

    def host_came(self, conn: int) -> None:
        """The worker host is there: give it the arenas that still wait."""
        self.pool.host_came(conn)
        for consumer in self.arenas.values():
            if consumer.state == "reserving":
                self._reserve(consumer)

    def fail(self, code: str, text: str) -> None:
        """End every loader of the job."""
        for stream in self.streams.values():
            stream.fail(code, text)

    # ---- tasks that come back ------------------------------------------------------------------------

    def _returned(self, worker: Worker, alone: bool) -> None:
        """A worker is gone: its tasks return, and whoever is to blame is blamed."""
        if alone:
            self._blame_setup(worker)
        for i, task in enumerate(worker.tasks):
            self._give_back(task, worker, blamed=i == 0 and alone and not worker.loading)

    def _blame_setup(self, worker: Worker) -> None:
        for stream in worker.loading.values():
            stream.setup_deaths += 1
            if stream.setup_deaths >= DEATHS_BEFORE_FIRST_TASK:
                stream.fail(
                    "recipe",
                    f"workers end {worker.end} while they load recipe {stream.settings.recipe}; "
                    "import it in a fresh Python to see why",
                )

    def _give_back(self, task: Task, worker: Worker, *, blamed: bool) -> None:
        del self.tasks[task.number]
        if isinstance(task, DescribeTask):
            task.deaths += blamed
            self._give_back_describe(task, worker)
            return
        deaths = task.batch.deaths.get(task.sample, 0) + blamed
        task.batch.deaths[task.sample] = deaths
        if not blamed or deaths < DEATHS_PER_SAMPLE or task.batch.cancelled:
            task.batch.give_back(task)
        elif task.mask:
            task.batch.give_back(task)
            task.stream.fail("worker-host", f"workers end {worker.end} while they write to the ring")
        else:
            self._spoil(task, self._deadly("decoded", worker))
        self._sweep(task)

    @staticmethod
    def _deadly(doing: str, worker: Worker) -> str:
        return f"{DEATHS_PER_SAMPLE} workers died while they {doing} it, the last {worker.end}"

    def _give_back_describe(self, task: DescribeTask, worker: Worker) -> None:
        stream = task.stream
        if not task.wanted:
            return
        if task.deaths == 0:
            stream.describes.insert(0, task)
        elif len(task.draws) > 1:
            # Which of them was it? Singly, only the guilty one dies again.
            for draw, sample, before in zip(task.draws, task.ids, task.occurrences):
                number = stream.number_task()
                stream.describes.append(
                    DescribeTask(number, stream, task.epoch, (draw,), (sample,), (before,), deaths=1)
                )
        elif task.deaths < DEATHS_PER_SAMPLE:
            stream.describes.append(task)
        else:
            row = m.Row(task.ids[0], (), {}, 1, (), (0,), error=self._deadly("described", worker))
            stream.described(task, (), (row,))

    def _spoil(self, task: FillTask, text: str) -> None:
        sample = task.batch.rows[task.sample].id
        if task.batch.spoiled(task) and not task.batch.cancelled:
            task.stream.bad_sample("fill", sample, text, task.batch.at)

    def _sweep(self, task: Task) -> None:
        """What the end of a running task makes possible: masking its sample, freeing its extent."""
        if isinstance(task, FillTask):
            batch = task.batch
            if batch.needs_mask(task.sample):
                batch.masked(task.sample)
                batch.deaths[task.sample] = 0
                row = batch.rows[task.sample]
                batch.add(FillTask(self.numbers(), batch, task.sample, 0, row.units, 0, mask=True))
            if batch.cancelled:
                batch.consumer.sweep()

    # ---- what workers say --------------------------------------------------------------------------

    def worker_said(self, worker: Worker, message: m.FromWorker, now: float) -> None:
        """A worker reports."""
        match message:
            case m.SetupDone(number):
                loaded = worker.loading.pop(number, None)
                worker.streams.add(number)
                if loaded is not None:
                    loaded.setup_deaths = 0
            case m.SetupFailed(number, code, text):
                stream = worker.loading.pop(number, None)
                if stream is not None:
                    stream.fail(code, text)
            case m.Described(number, schema, rows, last):
                task = self._current(worker, number)
                if isinstance(task, DescribeTask):
                    task.stream.described(task, schema, rows)
                    if last and task.draws and task.stream.failure is None:
                        task.stream.fail("protocol", f"a worker left {len(task.draws)} samples undescribed")
                    if last:
                        self._ended(worker, task, now)
            case m.Filled(number, cpu_us):
                task = self._current(worker, number)
                if isinstance(task, FillTask):
                    task.batch.filled(task, cpu_us)
                    self.pool.paced(worker, cpu_us, now)
                    if not task.mask:
                        task.stream.good.add("fill")
                    self._ended(worker, task, now)
            case m.TaskFailed(number):
                task = self._current(worker, number)
                if task is not None:
                    self._task_failed(task, message)
                    self._ended(worker, task, now)

    def _current(self, worker: Worker, number: int) -> Task | None:
        task = worker.tasks[0] if worker.tasks else None
        if task is None or task.number != number:
            self.out.append(
                Log("error", f"worker {worker.number} reports task {number}, which is not its own")
            )
            return None
        return task

    def _ended(self, worker: Worker, task: Task, now: float) -> None:
        self.pool.task_ended(worker, now)
        del self.tasks[task.number]
        self._sweep(task)

    def _task_failed(self, task: Task, failed: m.TaskFailed) -> None:
        stream = task.stream
        if isinstance(task, FillTask):
            if task.mask and not task.batch.cancelled:
                stream.fail("worker-host", f"a bad sample cannot be masked: {failed.text}")
            elif failed.fatal and not task.batch.cancelled:
                stream.fail(failed.code, failed.text)
            self._spoil(task, failed.text)
        elif failed.fatal or not task.draws:
            stream.fail(failed.code, failed.text)
        else:
            row = m.Row(task.ids[0], (), {}, 1, (), (0,), error=failed.text)
            stream.described(task, (), (row,))
            if task.draws and task.wanted:
                stream.describes.append(replace(task, number=stream.number_task()))

    # ---- arenas ------------------------------------------------------------------------------------

    def make_arena(self, consumer: Consumer, nbytes: int) -> None:
        """Make a consumer's ring and have the host take its memory."""
        consumer.arena, consumer.state = self.numbers(), "reserving"
        self.arenas[consumer.arena] = consumer
        self.out.append(MakeArena(consumer.arena, nbytes))
        if self.pool.host is not None:
            self._reserve(consumer)

    def _reserve(self, consumer: Consumer) -> None:
        assert self.pool.host is not None
        nbytes = consumer.max_bytes * consumer.stream.settings.ring
        self.out.append(Send(self.pool.host, m.Reserve(consumer.arena, nbytes), arena=consumer.arena))

    def reserved(self, arena: int) -> None:
        """The host has taken an arena's memory."""
        consumer = self.arenas.get(arena)
        if consumer is not None and consumer.state == "reserving" and not consumer.stream.over:
            consumer.stream.serve(consumer)

    def reserve_failed(self, failed: m.ReserveFailed) -> None:
        """The memory is not there: another kind of segment, where that may help, or the end."""
        consumer = self.arenas.get(failed.arena)
        if consumer is None or consumer.state != "reserving":
            return
        if failed.shm_full:
            self.drop_arena(consumer)
            consumer.arena = self.numbers()
            self.arenas[consumer.arena] = consumer
            nbytes = consumer.max_bytes * consumer.stream.settings.ring
            self.out.append(MakeArena(consumer.arena, nbytes, memfd=True))
            self._reserve(consumer)
        else:
            consumer.stream.fail("memory", failed.text)

    def arena_failed(self, arena: int, text: str) -> None:
        """Its segment could not even be made."""
        consumer = self.arenas.get(arena)
        if consumer is not None:
            consumer.stream.fail("memory", text)

    def drop_arena(self, consumer: Consumer) -> None:
        """Let go of a consumer's ring, here and in the workers."""
        if self.arenas.pop(consumer.arena, None) is None:
            return
        for worker in self.pool.workers.values():
            if consumer.arena in worker.arenas and not worker.closed:
                worker.arenas.remove(consumer.arena)
                self.out.append(SendWorker(worker.number, m.UnmapArena(consumer.arena)))
        self.out.append(DropArena(consumer.arena))

    def drop_consumer(self, consumer: Consumer) -> None:
        """Nobody is left who wants it."""
        consumer.dropped = True
        consumer.cancel_batches()
        self.drop_arena(consumer)
        stream = consumer.stream
        if stream.consumers.get(consumer.rank) is consumer:
            del stream.consumers[consumer.rank]
        if not stream.consumers:
            self._drop_stream(stream)

    def _drop_stream(self, stream: Stream) -> None:
        if stream.failure is None:
            self.streams.pop(stream.name, None)  # one that failed stays, for ranks that come late to read why
        stream.windows.clear()
        stream.describes.clear()
        for worker in self.pool.workers.values():
            if not worker.closed and (stream.number in worker.streams or stream.number in worker.loading):
                worker.streams.discard(stream.number)
                worker.loading.pop(stream.number, None)
                self.out.append(SendWorker(worker.number, m.Drop(stream.number)))

    # ---- the next task -----------------------------------------------------------------------------

    def schedule(self, now: float) -> None:
        """Everything that has become possible: rows, rings, extents, deliveries, tasks."""
        for stream in list(self.streams.values()):
            try:
                self._advance(stream, now)
            except Exception as e:  # noqa: BLE001  # a mistake of ours ends this loader, and no other
                self.out.append(Log("error", traceback.format_exc()))
                stream.fail(
                    "protocol", f"helixd made a mistake ({type(e).__name__}: {e}); its log says where"
                )
        self._assign(now)

    def _advance(self, stream: Stream, now: float) -> None:
        if not stream.over:
            stream.want_rows()
            stream.note_clash(now)
        for consumer in list(stream.consumers.values()):
            nbytes = stream.prepare(consumer) if not stream.ended(consumer.next) else None
            if nbytes is not None:
                self.make_arena(consumer, nbytes)
            while consumer.grant():
                pass
            consumer.deliver()
            while consumer.grant():
                pass
            consumer.note_starvation(now)

    def _ring_full(self, consumer: Consumer) -> None:
        stream = consumer.stream
        stream.fail(
            "ring-full",
            f"the replicas of rank {consumer.rank} hold different batches that together fill the ring of "
            f"{stream.settings.ring} batches; set ring={2 * stream.settings.ring} or release them together",
        )

    def _assign(self, now: float) -> None:
        if self.pool.host is None:
            return
        slow = self.pool.slow()
        workers = sorted(self.pool.workers.values(), key=lambda w: w.number in slow)
        for depth in range(TASKS_PER_WORKER):
            for worker in workers:
                late = worker.number in slow
                gone = worker.closed or worker.retiring or worker.orphaned is not None
                if len(worker.tasks) != depth or gone:
                    continue
                if late and depth > 0:
                    continue  # another would have to wait for it
                task = self._next_task(least_urgent=late)
                if task is not None:
                    self._give(worker, task, now)
                elif not late:
                    return

    def _next_task(self, *, least_urgent: bool) -> Task | None:
        """Describe tasks first, then the longest of the batch that is due next over all consumers: the fewest
        batches before it, then who waits longest, then whose turn was longest ago.

        `least_urgent`: of the batch that is due last, and no describe task.
        """
        undescribed = [s for s in self.streams.values() if s.describes] if not least_urgent else []
        if undescribed:
            stream = min(undescribed, key=lambda s: s.last_turn)
            stream.last_turn = self.numbers()
            return stream.describes.pop(0)
        due = [
            (consumer.distance(batch), consumer.waits_since, consumer.last_turn, batch)
            for consumer in self.arenas.values()
            for batch in consumer.batches
            if batch.queued
        ]
        if not due:
            return None
        batch = (max if least_urgent else min)(due, key=lambda d: d[:3])[3]
        batch.consumer.last_turn = self.numbers()
        return batch.take()

    def _give(self, worker: Worker, task: Task, now: float) -> None:
        stream = task.stream
        if stream.number not in worker.streams and stream.number not in worker.loading:
            worker.loading[stream.number] = stream
            setup = m.Setup(stream.number, stream.settings, stream.indexes, stream.sys_path)
            self.out.append(SendWorker(worker.number, setup))
        if isinstance(task, DescribeTask):
            message: m.ToWorker = m.Describe(
                task.number, stream.number, task.epoch, task.ids, task.occurrences
            )
        else:
            message = self._fill_message(worker, task)
        if not worker.tasks:
            worker.since = now
        worker.tasks.append(task)
        self.tasks[task.number] = task
        self.out.append(SendWorker(worker.number, message))

    def _fill_message(self, worker: Worker, task: FillTask) -> m.ToWorker:
        batch, consumer = task.batch, task.batch.consumer
        if consumer.arena not in worker.arenas:
            worker.arenas.add(consumer.arena)
            nbytes = consumer.max_bytes * consumer.stream.settings.ring
            mapped = m.MapArena(consumer.arena, nbytes)
            self.out.append(SendWorker(worker.number, mapped, arena=consumer.arena))
        places = tuple(consumer.place(task, i) for i in range(len(consumer.stream.schema)))
        record = batch.extent.offset + batch.layout.records[task.sample]
        row, number = batch.rows[task.sample], consumer.stream.number
        if task.mask:
            schema = consumer.stream.schema
            return m.Mask(task.number, number, batch.at.epoch, row.id, consumer.arena, places, record, schema)
        return m.Fill(
            task=task.number,
            stream=number,
            epoch=batch.at.epoch,
            id=row.id,
            begin=task.begin,
            end=task.end,
            arena=consumer.arena,
            places=places,
            record=record,
            occurrence=row.occurrence,
        )

    # ---- time --------------------------------------------------------------------------------------

    def deadlines(self) -> list[float]:
        """When something will be overdue."""
        due = self.pool.deadlines()
        due += [c.since + GATHER_LIMIT_S for c in self._gathering()]
        due += [since + STARVED_LIMIT_S for _, since in self._starved()]
        due += [
            s.clash_since + CLASH_LIMIT_S
            for s in self.streams.values()
            if s.clash_since is not None and not s.over
        ]
        return due

    def _gathering(self) -> list[Consumer]:
        return [
            c
            for s in self.streams.values()
            if s.failure is None
            for c in s.consumers.values()
            if c.state == "gathering" and not c.complete
        ]

    def _starved(self) -> list[tuple[Consumer, float]]:
        return [
            (c, c.starved_since)
            for c in self.arenas.values()
            if c.starved_since is not None and c.stream.failure is None
        ]

    def overdue(self, now: float) -> None:
        """Give up on what did not come, and on what cannot go on."""
        self.pool.overdue(now)
        for stream in self.streams.values():
            if (
                stream.clash_since is not None
                and not stream.over
                and now >= stream.clash_since + CLASH_LIMIT_S
            ):
                stream.clash()
        for consumer, since in self._starved():
            if now >= since + STARVED_LIMIT_S:
                self._ring_full(consumer)
        for consumer in self._gathering():
            if now >= consumer.since + GATHER_LIMIT_S:
                there = sorted(h.replica for h in consumer.live)
                consumer.stream.fail(
                    "conflict",
                    f"rank {consumer.rank} has replicas {there} of {consumer.stream.settings.replicas}; the "
                    f"others did not come within {GATHER_LIMIT_S:.0f} s",
                )

    def close(self) -> None:
        """The last trainer has left: memory, host and workers go."""
        for stream in list(self.streams.values()):
            for consumer in list(stream.consumers.values()):
                self.drop_consumer(consumer)
        self.tasks.clear()
        self.pool.close()
