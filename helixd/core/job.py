"""A job on this node: its worker host, its workers, its loaders, and the tasks that are out.

    worker:  forked --Setup--> loading --SetupDone--> able
             any --socket closed--> closed --reaped by the host, or the host is gone too--> forked again
             any --its core is given up--> retiring --its last task done--> closed

A worker holds up to two tasks, so that it never waits for the next. One that dies gives its tasks back: the
first one, which it was working on, is blamed, and a sample that two workers died of is bad.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from helixd.core.actions import About, Action, Log, Payload, Send, SendWorker
from helixd.core.aside import Aside
from helixd.core.batch import Batch, DescribeTask, FillTask, Piece, Task
from helixd.core.consumer import Consumer, Holder
from helixd.core.decode_cost import DecodeCosts
from helixd.core.dispatch import Dispatch
from helixd.core.late import LATE_S, why_late
from helixd.core.pace import Pace
from helixd.core.peering import Peering
from helixd.core.policy import Policy
from helixd.core.pool import DEATHS_BEFORE_FIRST_TASK, Pool, Worker
from helixd.core.rings import Rings
from helixd.core.stream import Stream
from helixd.errors import place_of
from libhelix.errors import HelixError
from libhelix.plan.planner import Window
from libhelix.wire import messages as m
from libhelix.wire.codec import short
from libhelix.wire.peer import ErrandMessage, Load, Said

GRANTS_AT_ONCE = 16
"""A large ring that is empty takes long to be filled with batches; others do not wait for all of it."""
DEATHS_PER_SAMPLE = 2
DEATHS_PER_MASK = 5
"""Writing a pad value, or a copy, kills nobody: who dies of it was killed from outside, or memory is bad."""
GATHER_LIMIT_S = 30.0
STARVED_LIMIT_S = 5.0
CLASH_LIMIT_S = 5.0
TELL_COSTS_S = 5.0
NEW_COST = 0.1


def _granted(consumer: Consumer, now: float, most: int) -> int:
    """Grant what has room, so many batches at most. Returns how many more it might have been."""
    while most and consumer.grant(now):
        most -= 1
    return most


@dataclass(eq=False)
class Job:
    """One job of one user on this node. `numbers` gives numbers that are unique in the daemon."""

    uid: int
    name: str
    out: list[Action]
    numbers: Callable[[], int]
    page: int
    allowed_cores: frozenset[int] | None
    policy: Policy
    reserve: int | None = None
    sealed: bool = False
    """Whether rings are sealed against resizing: others than the job's user may map them."""
    ring_quota: Callable[[int], str | None] = lambda _: None
    """Why the user may have no further ring of so many bytes."""
    version: str = ""
    costs: DecodeCosts = field(default_factory=DecodeCosts)
    streams: dict[str, Stream] = field(default_factory=dict)
    tasks: dict[int, Task] = field(default_factory=dict)
    _tell_costs_at: float = 0.0
    _more_to_grant: bool = False
    """Whether batches may have room that were not granted yet; a tick goes on with them."""
    _told_costs: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.about = About(uid=self.uid, job=self.name)
        self.peering = Peering(self.out, self.numbers, self.version)
        self.pace = Pace()
        self.pool = Pool(
            self.name,
            self.about,
            self.out,
            self.numbers,
            self.allowed_cores,
            self.reserve,
            returned=self._returned,
            fail=self.fail,
        )
        self.rings = Rings(self.pool, self.out, self.numbers, self.sealed, self.ring_quota)
        self.dispatch = Dispatch(
            self.pool, self.streams, self.rings.held, self.tasks, self.out, self.numbers, self.policy
        )

    def at(self, now: float) -> None:
        """An event is handled."""
        self.pool.now = now
        for stream in self.streams.values():
            if stream.team is not None:
                stream.team.now = now

    def host_came(self, conn: int) -> None:
        """The worker host is there, which rings may wait for."""
        self.pool.host_came(conn)
        self.rings.host_came(conn)

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
            # Where several are killed together, what one died of is soon given to another that is dead, too.
            at_it = i == 0 and (not task.suspect or worker.began == task.number)
            self._give_back(task, worker, blamed=at_it and alone and not worker.loading)

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
        self.dispatch.give_cores_back(task)
        if isinstance(task, DescribeTask):
            task.deaths += blamed
            self._give_back_describe(task, worker)
            return
        batch, piece = task.batch, task.pieces[0]
        batch.bound = None
        if len(task.pieces) > 1:  # which of them was it? Singly, only the guilty one kills again
            batch.give_back(task, suspect=blamed)
            self._sweep(task)
            return
        deaths = batch.deaths[piece.sample] = batch.deaths.get(piece.sample, 0) + blamed
        most = DEATHS_PER_SAMPLE if task.decodes else DEATHS_PER_MASK
        if not blamed or deaths < most or batch.cancelled:
            batch.give_back(task)
        elif not task.decodes:
            batch.give_back(task)
            task.stream.fail("worker-host", f"workers end {worker.end} while they write to the ring")
        else:
            batch.done()
            self._spoil(batch, piece, self._deadly("decoded", worker))
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
            for one in zip(task.draws, task.ids, task.occurrences):
                draws, ids, before = ((value,) for value in one)
                number = stream.number_task()
                stream.describes.append(
                    replace(task, number=number, draws=draws, ids=ids, occurrences=before, deaths=1)
                )
        elif task.deaths < DEATHS_PER_SAMPLE:
            stream.describes.append(task)
        else:
            row = m.Row(task.ids[0], (), {}, 1, (), (0,), error=self._deadly("described", worker))
            stream.described(task, (), (row,))

    @staticmethod
    def _spoil(batch: Batch, piece: Piece, text: str) -> None:
        sample = batch.rows[piece.sample].id
        first = batch.spoiled(piece)
        # What stood in for another and is bad is so at its own place, too, and counted there.
        if first and piece.sample not in batch.tries and not batch.cancelled:
            batch.consumer.bad_sample(sample, text, batch.at)

    @staticmethod
    def _sweep(task: Task) -> None:
        """What the end of a running task makes possible: mending bad samples, freeing its extent."""
        if isinstance(task, FillTask):
            batch = task.batch
            for piece in task.pieces:
                if batch.needs_mending(piece.sample):
                    batch.consumer.mend(batch, piece.sample)
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
            case m.Began(number):
                if self._current(worker, number) is not None:
                    worker.began = number
            case m.Described(number, schema, rows, last):
                task = self._current(worker, number)
                if isinstance(task, DescribeTask):
                    task.stream.described(task, schema, rows)
                    if last and task.draws and task.stream.failure is None:
                        task.stream.fail("protocol", f"a worker left {len(task.draws)} samples undescribed")
                    if last:
                        samples = tuple(row.id for row in rows)
                        task.stream.history.described(samples, worker.core, worker.since, now)
                        self._ended(worker, task, now)
            case m.Filled(number):
                task = self._current(worker, number)
                if isinstance(task, FillTask):
                    self._filled(worker, task, message, now)
                    self._ended(worker, task, now)
            case m.TaskFailed(number):
                task = self._current(worker, number)
                if task is not None:
                    self._task_failed(task, message)
                    self._ended(worker, task, now)

    def _filled(self, worker: Worker, task: FillTask, message: m.Filled, now: float) -> None:
        batch, failed = task.batch, {f.piece: f for f in message.failed}
        total_us = sum(message.cpu_us)
        batch.stall_us += message.stall_us
        task.stream.history.filled(task, worker.core, worker.since, now, total_us, message.stall_us)
        if task.decodes and not task.cores:
            self.pace.add(sum(piece.declared_us for piece in task.pieces), now - worker.since)
            self.pool.paced(worker, total_us + message.stall_us, now)
        batch.done()
        spent: dict[str, tuple[int, int]] = {}
        for i, (piece, cpu_us) in enumerate(zip(task.pieces, message.cpu_us, strict=True)):
            if i in failed:
                self._piece_failed(task, piece, failed[i])
                continue
            batch.filled(piece, cpu_us)
            kind = batch.rows[piece.sample].kind
            if task.decodes:
                task.stream.history.counters.decoded(kind, cpu_us * 1e-6)
            declared, measured = spent.get(kind, (0, 0))
            # What it stood still for, such as storage, keeps a worker as busy.
            stalled_us = (
                message.stall_us * cpu_us // total_us if total_us else message.stall_us // len(task.pieces)
            )
            spent[kind] = (declared + piece.declared_us, measured + cpu_us + stalled_us)
        if task.source is not None:
            task.source.let_go()
        if spent and task.decodes:
            task.stream.succeeded("fill")
            for kind, (declared, measured) in spent.items() if not task.cores else ():
                self.costs.learn(kind, declared, measured)

    def _piece_failed(self, task: FillTask, piece: Piece, failed: m.PieceFailed) -> None:
        if not task.batch.cancelled:
            if not task.decodes:
                what = "a bad sample cannot be masked" if task.mask else "a sample cannot be copied"
                task.stream.fail("worker-host", f"{what}: {failed.text}")
            elif failed.fatal:
                task.batch.consumer.fail(failed.code, failed.text)
        self._spoil(task.batch, piece, failed.text)

    def _current(self, worker: Worker, number: int) -> Task | None:
        task = worker.tasks[0] if worker.tasks else None
        if task is None or task.number != number:
            self.out.append(
                Log(
                    "error",
                    f"worker {worker.number} reports task {number}, which is not its own",
                    self.about,
                )
            )
            return None
        return task

    def _ended(self, worker: Worker, task: Task, now: float) -> None:
        self.pool.task_ended(worker, now)
        self.dispatch.give_cores_back(task)
        del self.tasks[task.number]
        self._sweep(task)

    def _task_failed(self, task: Task, failed: m.TaskFailed) -> None:
        stream = task.stream
        if isinstance(task, FillTask):
            task.batch.done()
            if task.source is not None:
                task.source.let_go()
            for i, piece in enumerate(task.pieces):
                self._piece_failed(task, piece, m.PieceFailed(i, failed.fatal, failed.code, failed.text))
        elif failed.fatal or not task.draws:
            stream.fail(failed.code, failed.text)
        else:
            row = m.Row(task.ids[0], (), {}, 1, (), (0,), error=failed.text)
            stream.described(task, (), (row,))
            if task.draws and task.wanted:
                stream.describes.append(replace(task, number=stream.number_task()))

    # ---- windows -----------------------------------------------------------------------------------

    def plans(self, ticket: int) -> bool:
        """Whether a window of one of its loaders is being planned under this ticket."""
        return any(ticket in stream.windows.planning for stream in self.streams.values())

    def planned(self, ticket: int, window: Window | HelixError) -> None:
        """A window is planned."""
        for stream in self.streams.values():
            if ticket in stream.windows.planning:
                stream.planned(ticket, window)

    # ---- other nodes -------------------------------------------------------------------------------

    def load(self) -> Load:
        """How this node is doing."""
        cores, now = self.pool.count(), self.pool.now
        behind = [s.team.remote.behind_us(now, cores) for s in self.streams.values() if s.team is not None]
        return Load(self.pace.capacity(cores), self.pace.spare(cores, now), max(behind, default=0))

    def peer_said(self, key: str, said: Said, payload: Payload, now: float) -> None:
        """A node said something of a loader; where there is none of that name, it is too early or late."""
        stream = self.streams.get(said.loader)
        if stream is None or stream.team is None:
            return
        if isinstance(said.message, ErrandMessage):
            stream.team.errand(key, said.message, payload, now)
        else:
            stream.team.said(key, said.message, now)

    # ---- who leaves ---------------------------------------------------------------------------------

    def drop_consumer(self, consumer: Consumer) -> None:
        """Nobody is left who wants it."""
        consumer.dropped = True
        consumer.cancel_batches()
        self.rings.drop(consumer)
        stream = consumer.stream
        stream.staging.forget(consumer.rank)
        if stream.consumers.get(consumer.rank) is consumer:
            del stream.consumers[consumer.rank]
        if not stream.consumers:
            self._drop_stream(stream)

    def _drop_stream(self, stream: Stream) -> None:
        if stream.failure is None:
            self.streams.pop(stream.name, None)  # one that failed stays, for ranks that come late to read why
        stream.windows.clear()
        stream.describes.clear()
        self.pool.homes.forget(stream.number)
        stream.staging.end()
        self.rings.drop(stream.staging)
        if stream.team is not None:
            stream.team.close()
            self.rings.drop(stream.team.guests)
        for worker in self.pool.workers.values():
            if not worker.closed and (stream.number in worker.streams or stream.number in worker.loading):
                worker.streams.discard(stream.number)
                worker.loading.pop(stream.number, None)
                self.out.append(SendWorker(worker.number, m.Drop(stream.number)))

    # ---- the next task -----------------------------------------------------------------------------

    def schedule(self, now: float) -> None:
        """Everything that has become possible: rows, rings, extents, deliveries, tasks."""
        self._more_to_grant = False
        for stream in list(self.streams.values()):
            try:
                self._advance(stream, now)
            except Exception as e:  # noqa: BLE001  # it may be any
                self._mistaken(stream, e)
        self.dispatch.assign(now)
        for stream in list(self.streams.values()):
            if stream.team is not None and stream.team.remote.helpers:
                try:
                    stream.team.remote.look(now, self.pool.count(), idle=self.pool.idle())
                except Exception as e:  # noqa: BLE001  # it may be any
                    self._mistaken(stream, e)
        if now >= self._tell_costs_at:
            self._tell_costs_at = now + TELL_COSTS_S
            self._tell_costs()

    def _mistaken(self, stream: Stream, e: Exception) -> None:
        """A mistake of ours ends this loader, and no other."""
        self.out.append(Log("error", traceback.format_exc(), replace(stream.about, code=place_of(e))))
        stream.fail("protocol", f"helixd made a mistake ({type(e).__name__}: {e}); its log says where")

    def _tell_costs(self) -> None:
        """Tell a trainer what was learned, for this user's next jobs, where that is something new."""
        scales, told = self.costs.scales(), self._told_costs
        if all(kind in told and abs(scale / told[kind] - 1) < NEW_COST for kind, scale in scales.items()):
            return
        for holder in [h for s in self.streams.values() if not s.over for h in s.holders()][:1]:
            self._told_costs = scales
            self.out.append(Send(holder.conn, m.Learned(holder.loader, scales)))

    def _advance(self, stream: Stream, now: float) -> None:
        if not stream.over:
            stream.want_rows()
            stream.note_clash(now)
        for consumer in list(stream.consumers.values()):
            if not stream.ended(consumer.next) and stream.prepare(consumer):
                self.rings.make(consumer)
            left = _granted(consumer, now, GRANTS_AT_ONCE)
            if consumer.deliver(now) and left:
                left = _granted(consumer, now, left)
            self._more_to_grant |= not left
            consumer.note_starvation(now)
        stream.staging.look(now)
        self._make_aside(stream.staging)
        if stream.team is not None:
            self._make_aside(stream.team.guests)
            stream.team.guests.deliver(now)

    def _make_aside(self, aside: Aside) -> None:
        if aside.lacks_ring:
            aside.size()
            if aside.max_bytes:
                self.rings.make(aside)

    def _ring_full(self, consumer: Consumer) -> None:
        stream = consumer.stream
        stream.fail(
            "ring-full",
            f"the replicas of rank {consumer.rank} hold different batches that together fill the ring of "
            f"{stream.settings.ring} batches; set ring={2 * stream.settings.ring} or release them together",
        )

    # ---- time --------------------------------------------------------------------------------------

    def deadlines(self) -> list[float]:
        """When something will be overdue."""
        due = self.pool.deadlines() + [s.team.deadline() for s in self.streams.values() if s.team is not None]
        for stream in self.streams.values():
            if stream.team is not None:
                due += stream.team.remote.deadline() + stream.team.guests.deadline()
        if self._more_to_grant:
            due.append(-math.inf)
        due += [c.since + GATHER_LIMIT_S for c in self._gathering()]
        due += [h.asked_at + LATE_S for _, h in self._waiting()]
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

    def _waiting(self) -> list[tuple[Consumer, Holder]]:
        """Who waits for a batch and was not told why."""
        return [
            (c, h)
            for s in self.streams.values()
            if s.failure is None
            for c in s.consumers.values()
            for h in c.holders
            if h.asks is not None and h.told_late != h.asks and not h.detached
        ]

    def _starved(self) -> list[tuple[Consumer, float]]:
        return [
            (c, c.starved_since)
            for c in self.rings.held.values()
            if c.starved_since is not None and c.stream.failure is None
        ]

    def overdue(self, now: float) -> None:
        """Give up on what did not come, and on what cannot go on."""
        self.pool.overdue(now)
        for stream in list(self.streams.values()):
            if stream.team is not None:
                try:
                    stream.team.beat(now)
                except Exception as e:  # noqa: BLE001  # it may be any
                    self._mistaken(stream, e)
        for stream in self.streams.values():
            if (
                stream.clash_since is not None
                and not stream.over
                and now >= stream.clash_since + CLASH_LIMIT_S
            ):
                stream.clash()
        for consumer, holder in self._waiting():
            if now >= holder.asked_at + LATE_S and holder.asks is not None:
                holder.told_late = holder.asks
                text, sample = why_late(consumer, self.pool, now)
                at = f"step {holder.asks.step} of epoch {holder.asks.epoch}"
                late = short(f"{at} is {now - holder.asked_at:.0f} s late: {text}")
                sample = sample if sample is not None and sample >= 0 else None
                self.out.append(Send(holder.conn, m.Warn(holder.loader, late, sample)))
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
        self.peering.close()
