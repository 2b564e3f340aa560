"""The daemon's decisions: `handle(event, now)` takes what happened and returns what to do.

connection:  opened --trainer--> attaches, is served, leaves
                    --host-----> serves the job of its user that has its name
                    --ctl------> asks
job:         from the first trainer's hello to the last one's end
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from helixd.core.account import trace, why
from helixd.core.actions import (
    About,
    Action,
    ArenaFailed,
    Close,
    Closed,
    Event,
    Log,
    Opened,
    PeerSaid,
    PeersFailed,
    PeersOpened,
    Planned,
    Received,
    Reconfigured,
    Send,
    Stop,
    Tick,
    Unreached,
    WorkerClosed,
    WorkerReceived,
)
from helixd.core.batch import FillTask
from helixd.core.consumer import Consumer, Holder
from helixd.core.guests import Guests
from helixd.core.job import GATHER_LIMIT_S, Job
from helixd.core.metrics import Counters
from helixd.core.policy import PRODUCTION, Policy
from helixd.core.pool import Trainer
from helixd.core.stream import Stream
from helixd.core.turns import Turns
from helixd.core.view import counted, view
from helixd.quota import Quota
from libhelix.errors import HelixError
from libhelix.wire import messages as m
from libhelix.wire.codec import short
from libhelix.wire.settings import Base, Position, Start, differences

FIRST_TRAINER_LIMIT_S = 30.0
STATUS_PART_CHARS = 15_000
MAX_LOADERS = 64


@dataclass(eq=False)
class Connection:
    """A process that said hello. `loaders` are its attachments, by its own numbers for them."""

    number: int
    uid: int
    role: str
    job: Job | None = None
    loaders: dict[int, tuple[Consumer, Holder]] = field(default_factory=dict)


@dataclass(eq=False)
class Parked:
    """An attachment that waits for the ranks of the last loader of its name to leave."""

    conn: int
    attach: m.Attach
    since: float


class Machine:
    """One node's daemon. `embedded`: it serves one job and ends with its last trainer."""

    def __init__(
        self,
        *,
        version: str,
        page: int,
        embedded: bool,
        now: float,
        cores: frozenset[int] | None = None,
        reserve: int | None = None,
        pid: int = 0,
        policy: Policy = PRODUCTION,
        quota: Quota = Quota(),  # noqa: B008  # frozen
        shown: Mapping[str, Any] | None = None,
        uid: int = 0,
    ) -> None:
        self.version = version
        self.pid = pid
        self.page = page
        self.policy = policy
        self.embedded = embedded
        self.uid = uid
        """The daemon's own; it and root may drain it."""
        self.draining = False
        self.quota = quota
        self.shown = shown or {}
        """The operator's settings, for people."""
        self.allowed_cores = cores
        self.reserve = reserve
        self.jobs: dict[tuple[int, str], Job] = {}
        self.ignored_messages = 0
        self.counters = Counters()
        self.turns = Turns()
        """How long the runtime was away from its sockets; it adds, we show."""
        self._started = now
        self._connections: dict[int, Connection] = {}
        self._parked: list[Parked] = []
        self._out: list[Action] = []
        self._numbers = itertools.count(1)
        self._stopping = False
        self._served = False

    @property
    def connections(self) -> int:
        """Processes that have said hello and are here."""
        return len(self._connections)

    @property
    def takes_jobs(self) -> bool:
        """Whether a trainer that comes now is served."""
        return not self._stopping and not self.draining

    # ---- the two things a runtime calls --------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Action]:
        """What to do about an event, in order."""
        for job in self.jobs.values():
            job.at(now)
        concerned = self._concerned(event)
        match event:
            case Opened():
                self._opened(event, now)
            case Received(conn, message):
                self._received(self._connections[conn], message, now)
            case Closed(conn, why):
                self._closed(conn, why, now)
            case WorkerReceived(worker, said):
                for job in concerned:
                    job.worker_said(job.pool.workers[worker], said, now)
            case WorkerClosed(worker):
                for job in concerned:
                    job.pool.worker_closed(job.pool.workers[worker])
            case ArenaFailed(arena, text):
                for job in concerned:
                    job.rings.make_failed(arena, text)
            case Unreached(arena, text):
                for job in concerned:
                    job.rings.unreached(arena, text)
            case Planned(ticket, window):
                for job in concerned:
                    job.planned(ticket, window)
            case PeersOpened(_, keys, port):
                for job in concerned:
                    job.peering.opened(keys, port)
            case PeersFailed(_, text):
                for job in concerned:
                    job.peering.failed(text)
            case PeerSaid(_, key, said, payload):
                for job in concerned:
                    job.peer_said(key, said, payload, now)
            case Reconfigured():
                self._reconfigure(event)
            case Tick():
                for job in concerned:
                    job.overdue(now)
        if self._parked:
            self._unpark(now)
        of_one = (Received, WorkerReceived, Planned, PeersOpened, PeersFailed, PeerSaid)
        for job in concerned if isinstance(event, of_one) else list(self.jobs.values()):
            if self.jobs.get((job.uid, job.name)) is job:
                job.schedule(now)
        self._stop_if_done(now)
        return self.take_actions()

    def _concerned(self, event: Event) -> list[Job]:
        """The jobs that an event is about; what it makes possible for others, they do not wait for."""
        if isinstance(event, Received):
            job = self._connections[event.conn].job
            return [job] if job is not None else []
        if isinstance(event, Planned):
            return [job for job in self.jobs.values() if job.plans(event.ticket)]
        if isinstance(event, (PeersOpened, PeersFailed, PeerSaid)):
            return [job for job in self.jobs.values() if job.peering.link == event.link]
        if isinstance(event, (WorkerReceived, WorkerClosed)):
            return [job for job in self.jobs.values() if event.worker in job.pool.workers]
        return list(self.jobs.values())

    def take_actions(self) -> list[Action]:
        """What is to be done so far; `handle` returns it, unless an event could not be handled."""
        out = self._out[:]
        self._out.clear()
        return out

    def deadline(self) -> float | None:
        """When `Tick` is due, or None."""
        due = [d for job in self.jobs.values() for d in job.deadlines()]
        due += [parked.since + GATHER_LIMIT_S for parked in self._parked]
        if self.embedded and not self.jobs:
            due.append(self._started + FIRST_TRAINER_LIMIT_S)
        return min(due, default=None)

    # ---- connections -------------------------------------------------------------------------------

    def _opened(self, event: Opened, now: float) -> None:
        hello = event.hello
        conn = Connection(event.conn, event.uid, hello.role)
        self._connections[event.conn] = conn
        if hello.protocol != m.PROTOCOL:
            self._refuse(
                conn,
                "protocol",
                f"helixd {self.version} speaks protocol {m.PROTOCOL}, libhelix {hello.version} speaks "
                f"protocol {hello.protocol}; install one version of datahelix for both",
            )
            return
        if hello.role == "trainer":
            job = self.jobs.get((event.uid, hello.job))
            if job is None:
                if (refusal := self._refuses_job(event.uid)) is not None:
                    self._refuse(conn, *refusal)
                    return
                job = Job(
                    event.uid,
                    hello.job,
                    self._out,
                    self._number,
                    self.page,
                    self.allowed_cores,
                    self.policy,
                    self.reserve,
                    sealed=not self.embedded,
                    ring_quota=partial(self._refuses_ring, event.uid, hello.job),
                    version=self.version,
                )
                job.pool.most_cores = self.quota.job_cores
                job.pool.counters = self.counters
                self.jobs[event.uid, hello.job] = job
            conn.job = job
            self._served = True
            job.pool.trainers[conn.number] = Trainer(conn.number, hello.pid, frozenset(hello.cores))
            self._welcome(conn)
            job.pool.take_cores()
            job.pool.want_host(now)
        elif hello.role == "host":
            self._host_opened(conn, hello)
        else:
            self._welcome(conn)

    def _refuses_job(self, uid: int) -> tuple[str, str] | None:
        """Code and text, where a user may have no further job here."""
        if self.draining:
            return "unreachable", (
                "this helixd is being drained and takes no new job; wait for the node's maintenance, "
                "or run the job elsewhere"
            )
        text = self.quota.refuses_job(sum(of == uid for of, _ in self.jobs))
        return ("quota", text) if text is not None else None

    def _refuses_ring(self, uid: int, name: str, nbytes: int) -> str | None:
        """Why a job may have no further ring of so many bytes; None where there is no reason."""
        used = sum(job.rings.nbytes for job in self.jobs.values() if job.uid == uid)
        return self.quota.refuses_ring(used, self.jobs[uid, name].rings.nbytes, nbytes)

    def _reconfigure(self, event: Reconfigured) -> None:
        self.allowed_cores, self.reserve = event.cores, event.reserve
        self.quota, self.shown = event.quota, event.shown
        for job in self.jobs.values():
            job.pool.allow(event.cores, event.reserve, event.quota.job_cores)

    def summary(self) -> str:
        """How it stands, in a line."""
        ranks = sum(len(job.pool.trainers) for job in self.jobs.values())
        workers = sum(len(job.pool.workers) for job in self.jobs.values())
        words = [counted(len(self.jobs), "job"), counted(ranks, "trainer"), counted(workers, "worker")]
        return ", ".join(words) + (", draining" if self.draining else "")

    def _host_opened(self, conn: Connection, hello: m.Hello) -> None:
        job = self.jobs.get((conn.uid, hello.job))
        if job is None or job.pool.host is not None:
            self._refuse(conn, "worker-host", f"job {hello.job!r} waits for no worker host")
            return
        conn.job = job
        self._welcome(conn)
        job.pool.host_may_use(frozenset(hello.cores), hello.limit_millis)
        job.host_came(conn.number)

    def _welcome(self, conn: Connection) -> None:
        self._out.append(Send(conn.number, m.Welcome(m.PROTOCOL, self.version)))

    def _refuse(self, conn: Connection, code: str, text: str) -> None:
        self._out.append(Send(conn.number, m.Refused(code, short(text))))
        self._out.append(Close(conn.number))

    def _closed(self, number: int, why: str, now: float) -> None:
        conn = self._connections.pop(number, None)
        if conn is None or conn.job is None:
            return
        job = conn.job
        if conn.role == "host":
            if job.pool.host == number:
                job.pool.host_gone(why, now)
            return
        for consumer, holder in list(conn.loaders.values()):
            if consumer.ledger is not None:
                consumer.ledger.release_all(holder.number)
            self._leave(job, consumer, holder)
            consumer.holders = [h for h in consumer.holders if h is not holder]
        job.pool.trainers.pop(number, None)
        job.peering.left(number)
        if not job.pool.trainers:
            del self.jobs[job.uid, job.name]
            job.close()
            return
        job.pool.take_cores()
        if job.pool.host_asked is not None and job.pool.host_asked.conn == number:
            job.pool.host_asked = None
            job.pool.want_host(now)

    def _received(
        self, conn: Connection, message: m.FromTrainer | m.FromHost | m.FromCtl, now: float
    ) -> None:
        job = conn.job
        match message:
            case m.Meet() if job is not None:
                job.peering.meet(conn.number, message)
            case m.Peers() if job is not None:
                job.peering.know(conn.number, message)
            case m.Attach() if job is not None:
                self._attach(conn, job, message, now)
            case m.Help() if job is not None:
                self._help(conn, job, message, now)
            case m.HostFailed(text) if job is not None:
                job.pool.host_failed(text)
            case m.Ask() | m.Took() | m.Release() | m.Seek() | m.Detach():
                self._loader_said(conn, message, now)
            case m.Reserved(arena) if job is not None:
                job.rings.reserved(arena)
            case m.ReserveFailed() if job is not None:
                job.rings.reserve_failed(message)
            case m.Exited(worker, status) if job is not None:
                if worker in job.pool.workers:
                    job.pool.worker_exited(job.pool.workers[worker], status)
            case m.Cores(cores, limit_millis) if job is not None:
                if conn.number == job.pool.host:
                    job.pool.host_may_use(frozenset(cores), limit_millis)
                else:
                    job.pool.trainer_may_use(conn.number, frozenset(cores))
            case m.StatusAsk():
                self._status(conn, message, now)
            case m.Drain(cancel):
                if conn.uid not in (0, self.uid):
                    self._refuse(conn, "usage", "draining a daemon is for root, and for the user it runs as")
                    return
                self.draining = not cancel
                self._out.append(Log("info", "is being drained" if self.draining else "takes jobs again"))
                self._status(conn, m.StatusAsk(), now)
            case _:
                self.ignored_messages += 1

    # ---- loaders -----------------------------------------------------------------------------------

    def _attach(self, conn: Connection, job: Job, attach: m.Attach, now: float) -> None:
        if attach.loader in conn.loaders:
            self._refuse(conn, "protocol", f"loader number {attach.loader} is attached already")
            return
        self._waits(conn, True)
        job.costs.start_from(attach.scales)
        stream = job.streams.get(attach.name)
        if stream is not None and self._must_wait(conn, stream, attach):
            self._parked.append(Parked(conn.number, attach, now))
            return
        if stream is not None and stream.failure is not None:
            if conn.number not in stream.told:
                stream.told.add(conn.number)
                why = stream.failure
                failed = m.Failed(attach.loader, why.code, why.text, None, why.sample)
                self._out.append(Send(conn.number, failed))
                return
            # This process knows why the last loader of this name ended, and starts afresh.
            del job.streams[attach.name]
            stream = None
        if stream is None:
            stream = self._new_stream(conn, job, attach, now)
        if stream is None:
            return
        problem = self._misfit(conn, job, stream, attach)
        if problem is not None:
            stream.fail("conflict", problem)
            self._fail_attach(conn, attach, stream, "conflict", problem)
            return
        self._place(conn, stream, attach, now)

    def _new_stream(self, conn: Connection, job: Job, asked: m.Attach | m.Help, now: float) -> Stream | None:
        """A loader, or, where there can be none, nothing: who asks is told why."""
        if len(job.streams) >= MAX_LOADERS:
            text = f"job {job.name!r} has {MAX_LOADERS} loaders; close() those that are done"
            self._fail_attach(conn, asked, None, "conflict", text)
            return None
        try:
            stream = Stream(
                number=self._number(),
                name=asked.name,
                about=About(job.uid, job=job.name, loader=asked.name),
                settings=asked.settings,
                indexes=asked.indexes,
                sys_path=asked.sys_path,
                out=self._out,
                number_task=self._number,
                worker_count=job.pool.count,
                page=self.page,
                answered=job.pool.answered,
                idle=job.pool.idle,
                costs=job.costs,
                policy=self.policy,
            )
        except HelixError as e:
            self._fail_attach(conn, asked, None, e.code, str(e))
            return None
        stream.history.counters = self.counters
        stream.join(job.peering.team(stream, job.load, job.pool.count))
        job.streams[asked.name] = stream
        job.pool.revive(now)
        return stream

    def _help(self, conn: Connection, job: Job, asked: m.Help, now: float) -> None:
        """A loader of which this node has no rank: samples of others are decoded, as long as it is held."""
        if asked.loader in conn.loaders or job.peering.met is None:
            self._refuse(conn, "protocol", f"loader number {asked.loader} cannot be helped")
            return
        before = job.streams.get(asked.name)
        if before is not None and before.failure is None:
            text = f"job {job.name!r} has a loader {asked.name!r} here already"
            self._fail_attach(conn, asked, None, "conflict", text)
            return
        job.streams.pop(asked.name, None)
        job.costs.start_from(asked.scales)
        job.peering.help(asked.name, asked.leader, asked.address)
        stream = self._new_stream(conn, job, asked, now)
        if stream is None:
            return
        assert stream.team is not None, "its table is there"
        holder = Holder(self._number(), conn.number, asked.loader, 0, Start(Base(0, 0, 0), Position(0, 0, 0)))
        stream.team.guests.holders.append(holder)
        conn.loaders[asked.loader] = (stream.team.guests, holder)

    @staticmethod
    def _must_wait(conn: Connection, stream: Stream, attach: m.Attach) -> bool:
        """Whether this process has left this loader and comes with the next of that name, while other ranks
        are still at the last: they will leave, too."""
        if stream.failure is not None or conn.number not in stream.left:
            return False
        consumer = stream.consumers.get(attach.dp_rank)
        going_on = consumer is not None and consumer.state != "gathering"
        return going_on or bool(differences(stream.settings, attach.settings))

    @staticmethod
    def _beyond(stream: Stream, attach: m.Attach) -> str | None:
        """Whether a rank has gone on with the old weights where another waits with new ones; what to say."""
        schedule = attach.settings.schedule
        if schedule == stream.settings.schedule or stream.failure is not None:
            return None
        if differences(stream.settings, replace(attach.settings, schedule=stream.settings.schedule)):
            return None
        at = attach.start.at
        for consumer in stream.consumers.values():
            if any(h.taken is not None and h.taken >= at for h in consumer.live):
                return (
                    f"loader {stream.name!r}: rank {attach.dp_rank} has called set_weights before step "
                    f"{at.step} of epoch {at.epoch}, and rank {consumer.rank} has taken that step with the "
                    "old weights; call it on every rank in the same step"
                )
        return None

    def _unpark(self, now: float) -> None:
        for parked in self._parked[:]:
            conn = self._connections.get(parked.conn)
            if conn is None or conn.job is None:
                self._parked.remove(parked)
                continue
            stream = conn.job.streams.get(parked.attach.name)
            if stream is not None and (beyond := self._beyond(stream, parked.attach)) is not None:
                self._parked.remove(parked)
                stream.fail("conflict", beyond)
                self._fail_attach(conn, parked.attach, stream, "conflict", beyond)
                continue
            if stream is not None and self._must_wait(conn, stream, parked.attach):
                if now < parked.since + GATHER_LIMIT_S:
                    continue
                stream.left.discard(conn.number)  # they do not leave: it is a conflict after all
            self._parked.remove(parked)
            self._attach(conn, conn.job, parked.attach, now)

    def _misfit(self, conn: Connection, job: Job, stream: Stream, attach: m.Attach) -> str | None:
        """Why this attachment cannot join the loader, for both sides to read; None where it can."""
        who = f"loader {stream.name!r} of job {job.name!r}"
        different = differences(stream.settings, attach.settings)
        if different:
            return (
                f"{who}: rank {attach.dp_rank} has other settings than others: {'; '.join(different)}; give "
                "all ranks the same, and loaders that live side by side a name= of their own"
            )
        settings = stream.settings
        if attach.dp_rank >= settings.dp_size or attach.replica >= settings.replicas:
            return (
                f"{who}: there is no rank {attach.dp_rank}, replica {attach.replica} "
                f"among {settings.dp_size} ranks of {settings.replicas} replicas"
            )
        if stream.team is not None and attach.dp_rank not in stream.team.ranks:
            return f"{who}: rank {attach.dp_rank} is on this node, and was not there when its nodes met"
        if stream.planner.settled(attach.start.unpacked()) is None:
            return f"{who}: rank {attach.dp_rank} starts at {attach.start.at}, where no epoch has a step"
        consumer = stream.consumers.get(attach.dp_rank)
        if consumer is None:
            return None
        place = f"rank {attach.dp_rank}" + (f", replica {attach.replica}" if settings.replicas > 1 else "")
        for holder in consumer.live:
            if holder.replica == attach.replica:
                mine = holder.conn == conn.number
                return (
                    f"{who}: {place} is attached twice, "
                    + (
                        "both times by one process; close() the first loader"
                        if mine
                        else "by two processes; give each its own dp_rank, or, where they share "
                        "batches as tensor-parallel peers do, replica= and replicas=, or mesh="
                    )
                    + "; loaders that live side by side want a name= of their own"
                )
        if consumer.state != "gathering":
            return f"{who}: {place} left while its other replicas went on; restart them together"
        return None

    def _place(self, conn: Connection, stream: Stream, attach: m.Attach, now: float) -> None:
        consumer = stream.consumers.get(attach.dp_rank)
        if consumer is None:
            consumer = Consumer(stream, attach.dp_rank, now)
            stream.consumers[attach.dp_rank] = consumer
        start = stream.planner.settled(attach.start.unpacked())
        assert start is not None, "found to fit"
        holder = Holder(self._number(), conn.number, attach.loader, attach.replica, start)
        consumer.holders.append(holder)
        if len(consumer.live) == 1:
            consumer.base, consumer.next = start.base, start.at
        consumer.declared_max_bytes = max(consumer.declared_max_bytes or 0, attach.max_bytes or 0) or None
        conn.loaders[attach.loader] = (consumer, holder)
        if stream.team is not None:
            stream.team.tell(holder)
            stream.team.learn(attach.placed)
        if consumer.complete:
            consumer.restart()

    def _fail_attach(
        self, conn: Connection, attach: m.Attach | m.Help, stream: Stream | None, code: str, text: str
    ) -> None:
        if stream is not None:
            stream.told.add(conn.number)
        self._out.append(Send(conn.number, m.Failed(attach.loader, code, short(text))))

    def _loader_said(
        self, conn: Connection, message: m.Ask | m.Took | m.Release | m.Seek | m.Detach, now: float
    ) -> None:
        found = conn.loaders.get(message.loader)
        if found is None:
            self.ignored_messages += 1  # of a loader that failed or was detached meanwhile
            return
        consumer, holder = found
        if isinstance(consumer, Guests) and not isinstance(message, m.Detach):
            self.ignored_messages += 1
            return
        match message:
            case m.Ask(_, at):
                consumer.asked(holder, at, now)
                self._waits(conn, True)
            case m.Took(_, taking, tier):
                holder.tier = tier or holder.tier
                self._took(conn, consumer, holder, taking, now)
            case m.Release(_, generation, took):
                if took is not None:
                    self._took(conn, consumer, holder, took, now)
                if consumer.ledger is not None:
                    consumer.ledger.release(generation, holder.number)
            case m.Seek(_, start, seek):
                self._seek(consumer, holder, start.unpacked(), seek)
            case m.Detach():
                assert conn.job is not None
                self._leave(conn.job, consumer, holder)

    def _took(
        self, conn: Connection, consumer: Consumer, holder: Holder, taking: m.Taking, now: float
    ) -> None:
        if taking.at < holder.start.at or holder.detached:
            return  # of before a seek, or on its way when the loader was closed
        if holder.asks is None or holder.asks <= taking.at:
            holder.asks = None
            self._waits(conn, False)
        consumer.took(holder, taking, now)
        holder.waits_us.append(taking.wait_us)

    def _seek(self, consumer: Consumer, holder: Holder, to: Start, seek: int) -> None:
        start = consumer.stream.planner.settled(to)
        if start is None:
            consumer.stream.fail("usage", f"rank {consumer.rank} seeks {to.at}, where no epoch has a step")
            return
        holder.start, holder.seek, holder.taken = start, seek, None
        consumer.stream.readiness.forget()
        consumer.stream.bad.pop(start.at.epoch, None)  # it is gone through again, its bad samples too
        self._restart_if_agreed(consumer)

    @staticmethod
    def _restart_if_agreed(consumer: Consumer) -> None:
        """Replicas seek one after the other; the consumer goes where they want when the last has."""
        seeks = {h.seek for h in consumer.live}
        all_there = consumer.complete or consumer.state != "gathering"
        if all_there and len(seeks) == 1 and seeks != {consumer.seek}:
            consumer.restart()

    def _leave(self, job: Job, consumer: Consumer, holder: Holder) -> None:
        holder.detached = True
        consumer.stream.left.add(holder.conn)
        if not consumer.live and not consumer.dropped:
            job.drop_consumer(consumer)
        elif consumer.live:
            self._restart_if_agreed(consumer)
        conn = self._connections.get(holder.conn)
        if conn is not None and consumer.dropped:
            conn.loaders.pop(holder.loader, None)

    @staticmethod
    def _waits(conn: Connection, waits: bool) -> None:
        trainer = conn.job.pool.trainers.get(conn.number) if conn.job is not None else None
        if trainer is not None:
            trainer.waits = waits

    # ---- the rest ----------------------------------------------------------------------------------

    def _status(self, conn: Connection, ask: m.StatusAsk, now: float) -> None:
        mine = [j for j in self.jobs.values() if conn.uid in (0, j.uid)]
        match ask.about:
            case "why":
                jobs = why(mine, ask.first, ask.last)
            case "trace":
                jobs = trace(mine)
            case _:
                jobs = view(mine)
        state = {
            "about": ask.about,
            "version": self.version,
            "pid": self.pid,
            "uptime_s": round(now - self._started, 3),
            "draining": self.draining,
            "config": self.shown,
            "loop": self.turns.view(),
            "peer_bytes": self.counters.peer_bytes,
            "jobs": jobs,
        }
        text = msgspec.json.encode(state).decode()
        parts = [text[i : i + STATUS_PART_CHARS] for i in range(0, len(text), STATUS_PART_CHARS)]
        for i, part in enumerate(parts):
            self._out.append(Send(conn.number, m.Status(part, last=i == len(parts) - 1)))

    def _stop_if_done(self, now: float) -> None:
        if self.jobs or self._stopping:
            return
        if self.draining:
            self._stopping = True
            self._out.append(Stop("it is drained"))
            return
        if not self.embedded:
            return
        if self._served or now >= self._started + FIRST_TRAINER_LIMIT_S:
            self._stopping = True
            why = (
                "the last trainer has left"
                if self._served
                else f"no trainer came in {FIRST_TRAINER_LIMIT_S:.0f} s"
            )
            self._out.append(Stop(why))

    def _number(self) -> int:
        return next(self._numbers)

    def check(self) -> None:
        """What must hold between events; tests call it after each."""
        for job in self.jobs.values():
            job.pool.check()
            held = [t.number for w in job.pool.workers.values() for t in w.tasks]
            if sorted(held) != sorted(job.tasks):
                raise AssertionError(f"tasks {sorted(job.tasks)} are out, workers hold {sorted(held)}")
            tasks = [t.source for t in job.tasks.values() if isinstance(t, FillTask) and t.source is not None]
            for stream in job.streams.values():
                stream.staging.check([source for source in tasks if source.consumer is stream.staging])
            for consumer in job.rings.held.values():
                if consumer.ledger is not None:
                    consumer.ledger.check()
                order = [b.at for b in consumer.batches]
                if order != sorted(order):
                    raise AssertionError(f"batches of rank {consumer.rank} out of order: {order}")
