"""A node in one thread: the real core and the real client session, joined by lists; fake host and workers.

Every message waits in a queue per link until `step` picks that link, so that a seed decides the history.
Memory is a model: the fake workers' writes are checked against what trainers hold at that moment.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from helixd.core import actions as a
from helixd.core.machine import Machine
from libhelix.errors import HelixError, UsageError
from libhelix.plan.planner import Planner, epoch_windows
from libhelix.plan.progress import Progress
from libhelix.plan.window import FILLER
from libhelix.recipe import DTYPES
from libhelix.session import Attachment
from libhelix.wire import codec
from libhelix.wire import messages as m
from libhelix.wire.settings import Base, FixedBatch, IndexRef, Position, RecipeSpec, Settings, Start

PAGE = 64
UNIT_US = 9000
"""What a unit of a sample takes."""
SCHEMAS: dict[str, m.Schema] = {
    "stack": (m.FieldSpec("x", "uint8", "stack", 1, rows_per_unit=4),),
    "pad": (m.FieldSpec("x", "uint8", "pad", 2), m.FieldSpec("y", "int64", "stack", 0)),
    "pack": (m.FieldSpec("x", "uint8", "pack", 2),),
    "ragged": (m.FieldSpec("x", "float32", "ragged", 1),),
}


def settings(layout: str, **changes: Any) -> Settings:
    """Settings of a small loader; `layout` travels as the recipe's name."""
    base: dict[str, Any] = {
        "recipe": RecipeSpec("world", layout, "{}"),
        "index_fingerprint": "f",
        "index_samples": 40,
        "batching": FixedBatch(2),
        "seed": 1,
        "shuffle": True,
        "dp_size": 2,
        "replicas": 1,
        "micro_batches": 1,
        "ring": 3,
        "on_bad": "mask",
    }
    return Settings(**{**base, **changes})


def start_at(epoch: int, step: int, micro: int = 0, *, per_step: int = 4) -> Start:
    """A start where steps of `per_step` samples follow from counting."""
    return Start(Base(epoch, step, step * per_step), Position(epoch, step, micro))


def row_of(layout: str, sample: int, *, long: bool = False) -> m.Row:
    """The row of a sample. `long`: it takes long, and some cannot be cut."""
    cuts: tuple[int, ...] = (1, 2, 3)
    segment_us: tuple[int, ...] = (UNIT_US,) * 4
    if long:
        cuts, segment_us = ((), (40 * UNIT_US,)) if sample % 3 else ((2,), (20 * UNIT_US,) * 2)
    shapes, costs = shapes_of(layout, sample), {"tokens": sample % 13}
    return m.Row(sample, shapes, costs, 4, cuts, segment_us, f"g{sample % 3}")


@lru_cache(maxsize=64)
def planned(settings_: Settings, epochs: int = 8) -> dict[Position, list[list[int]]]:
    """Every batch of the first epochs, by position and rank."""
    planner = Planner(settings_)
    layout = settings_.recipe.qualname
    found = {}
    for epoch in range(epochs):
        start = Base(epoch, 0, 0)
        for window in epoch_windows(planner, start, lambda _, s: row_of(layout, s), SCHEMAS[layout]):
            for k, step in enumerate(window.steps):
                for micro, ranks in enumerate(step):
                    at = Position(epoch, window.base.step + k, micro)
                    found[at] = [
                        [i for d in draws for i in ([d] if d == FILLER else planner.ids(epoch, [d]))]
                        for draws in ranks
                    ]
    return found


def number(settings_: Settings, at: Position) -> int:
    """How many batches stand before a position."""
    return sorted(planned(settings_)).index(at)


def shapes_of(layout: str, sample: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of a sample; they depend on nothing else."""
    n = sample * 7 % 5
    return {
        "stack": ((16,),),
        "pad": ((n, 3 + sample % 2), ()),
        "pack": ((n, 6),),
        "ragged": ((n * 3,),),
    }[layout]


@dataclass(eq=False)
class FakeWorker:
    """Does what it is told, one message a step, in the order told."""

    number: int
    core: int
    inbox: deque[m.ToWorker] = field(default_factory=deque)
    outbox: deque[m.FromWorker] = field(default_factory=deque)
    layouts: dict[int, str] = field(default_factory=dict)
    arenas: set[int] = field(default_factory=set)
    dead: bool = False


@dataclass(eq=False)
class FakeTrainer:
    """A rank: the real session, a position, and batches it keeps."""

    conn: int
    rank: int
    replica: int
    settings: Settings
    name: str
    progress: Progress
    attachment: Attachment
    arena: int | None = None
    inbox: deque[tuple[m.ToTrainer, int | None]] = field(default_factory=deque)
    outbox: deque[Any] = field(default_factory=deque)
    keeps: dict[int, tuple[int, int]] = field(default_factory=dict)
    taken: list[Position] = field(default_factory=list)
    copies: int = 0
    asked: bool = False

    @property
    def at(self) -> Position:
        """The position of its next batch."""
        return self.progress.at


class Carried(bytes):
    """Bytes between nodes; of what is in them only who filled the records is known."""

    records: Mapping[int, tuple[int, bool, set[int]]] = MappingProxyType({})


class World:
    """The node. `rng` decides everything that is not decided by the core."""

    def __init__(
        self, rng: random.Random, cores: int = 2, embedded: bool = False, long: bool = False
    ) -> None:
        self.rng = rng
        self.now = 0.0
        self.cores = tuple(range(cores))
        """Where the next process that connects may run."""
        self.host_cores: tuple[int, ...] | None = None
        """The host's cpuset, where that is another."""
        self.limit_millis: int | None = None
        self.machine = Machine(version="0", page=PAGE, embedded=embedded, now=0.0)
        self.trainers: list[FakeTrainer] = []
        self.workers: dict[int, FakeWorker] = {}
        self.host: int | None = None
        self.host_wanted = False
        self.host_out: deque[Any] = deque()
        self.made: set[int] = set()
        self.arenas: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        """Of all arenas there have been: workers may be at one that is gone."""
        self.filled: dict[tuple[int, int], tuple[int, bool, set[int]]] = {}
        self.bad: set[int] = set()
        self.undescribed: set[int] = set()
        self.deadly: set[int] = set()
        self.logs: list[str] = []
        self.stopped = False
        self.plans: deque[a.Plan] = deque()
        self.late: deque[a.Event] = deque()
        self.following: deque[a.Event] = deque()
        """What comes of actions, before anything else does."""
        self.unmappable = False
        """Whether helixd itself cannot map rings."""
        self.delivered: dict[tuple[str, int, Position], list[int]] = {}
        self.told: dict[int, list[Any]] = {}
        self.long = long
        """Whether samples take longer than rings look ahead."""
        self.copied = 0
        """Samples that were begun before their batch had its place."""
        self.window_us = 10_000 if long else 0
        """What trainers say that they compute for; 0: they do not say."""
        self.net: Any = None
        """Other nodes: `send(world, key, said)`; `meets` are the messages of a trainer before it attaches."""
        self._conns = 100

    # ---- the core ----------------------------------------------------------------------------------

    def tell(self, event: a.Event) -> None:
        """An event, and all that the core wants done about it."""
        for action in self.machine.handle(event, self.now):
            self._do(action)
        self.machine.check()
        while self.following:
            self.tell(self.following.popleft())

    def _do(self, action: a.Action) -> None:
        match action:
            case a.Send(conn, message, arena, worker):
                codec.encode(message)
                self.told.setdefault(conn, []).append(message)
                if conn == self.host:
                    self._host_told(message, worker)
                for trainer in self.trainers:
                    if trainer.conn == conn:
                        trainer.inbox.append((message, arena))  # type: ignore[arg-type]
            case a.SendWorker(worker, message, arena):
                codec.encode(message)
                if isinstance(message, m.MapArena):
                    assert arena in self.arenas
                if worker in self.workers and not self.workers[worker].dead:
                    self.workers[worker].inbox.append(message)
            case a.Close(conn):
                if conn == self.host:
                    self._host_gone()
                self.tell(a.Closed(conn, "closed"))
            case a.MakeWorker(worker):
                self.made.add(worker)
            case a.DropWorker(worker):
                self.made.remove(worker)
                if worker in self.workers and not self.workers[worker].dead:
                    self.workers[worker].dead = True  # its socket is closed: it ends after what it is at
                    if self.host is not None:
                        self.host_out.append(m.Exited(worker, 0))
            case a.DrainWorker(worker):
                gone = self.workers[worker]
                while gone.outbox:
                    self.tell(a.WorkerReceived(worker, gone.outbox.popleft()))
                if worker in self.made:
                    self.tell(a.WorkerClosed(worker))
            case a.MakeArena(arena, nbytes):
                self.arenas[arena] = self.sizes[arena] = nbytes
            case a.DropArena(arena):
                del self.arenas[arena]
            case a.Plan():
                self.plans.append(action)
            case a.OpenPeers(link):
                if self.net is None:
                    self.tell(a.PeersFailed(link, "there is no net"))
                else:
                    self.tell(a.PeersOpened(link, self.net.keys(self), 1))
            case a.KnowPeers() | a.ClosePeers():
                pass
            case a.PeerSend(_, key, said, bytes_of):
                if self.net is not None:
                    self.net.send(self, key, said, self._carried(*bytes_of) if bytes_of else Carried())
            case a.Reach(arena) if self.unmappable:
                self.following.append(a.Unreached(arena, "no address space"))
            case a.Land(arena, payload, to):
                assert isinstance(payload, Carried)
                for source, begin, count in to:
                    self._written(arena, begin, count)
                    for at, entry in payload.records.items():
                        if source <= at < source + count:
                            self.filled[arena, begin + at - source] = entry
            case a.Log(_, text):
                self.logs.append(text)
            case a.Stop():
                self.stopped = True

    def _carried(self, arena: int, begin: int, count: int) -> Carried:
        assert 0 <= begin < begin + count <= self.arenas[arena]
        carried = Carried(count)
        inside = ((where, at) for where, at in self.filled if where == arena and begin <= at < begin + count)
        carried.records = {at - begin: self.filled[where, at] for where, at in inside}
        return carried

    def _host_told(self, message: Any, worker: int | None) -> None:
        match message:
            case m.Reserve(arena):
                self.host_out.append(m.Reserved(arena))
            case m.Fork(number, core):
                assert worker == number
                assert number in self.made
                assert all(x.dead for x in self.workers.values() if x.core == core), "two on one core"
                self.workers[number] = FakeWorker(number, core)

    # ---- trainers ----------------------------------------------------------------------------------

    def connect(self, role: str = "trainer", uid: int = 1, job: str = "j", protocol: int = m.PROTOCOL) -> int:
        """A new connection that has said hello."""
        self._conns += 1
        hello = m.Hello(protocol, "0", role, job, self._conns, self.cores)  # type: ignore[arg-type]
        self.tell(a.Opened(self._conns, uid, hello))
        return self._conns

    def attach(
        self,
        rank: int,
        settings_: Settings,
        *,
        replica: int = 0,
        name: str = "train",
        start: Start = start_at(0, 0),  # noqa: B008  # frozen
        conn: int | None = None,
        placed: dict[tuple[int, int], m.Speeds] | None = None,
    ) -> FakeTrainer:
        """A rank that connects and attaches."""
        conn = conn if conn is not None else self.connect()
        for message in self.net.meets(self, name) if self.net is not None else ():
            self.tell(a.Received(conn, message))
        attachment = Attachment(len(self.trainers) + 1)
        try:
            progress = Progress(Planner(settings_))
        except UsageError:  # a real trainer would not come so far; the core has to refuse it too
            progress = Progress(Planner(settings("stack")))
        progress.go_to(start)
        trainer = FakeTrainer(conn, rank, replica, settings_, name, progress, attachment)
        self.trainers.append(trainer)
        attach = m.Attach(
            trainer.attachment.loader,
            name,
            rank,
            replica,
            settings_,
            (IndexRef("i", "r"),),
            (),
            start.packed(),
            placed=tuple(m.Placed(*first, speeds) for first, speeds in (placed or {}).items()),
        )
        codec.encode(attach)
        self.tell(a.Received(conn, attach))
        return trainer

    def kill_trainer(self, trainer: FakeTrainer) -> None:
        """SIGKILL of its process."""
        gone = [t for t in self.trainers if t.conn == trainer.conn]
        self.trainers = [t for t in self.trainers if t.conn != trainer.conn]
        for t in gone:
            t.keeps.clear()
        self.tell(a.Closed(trainer.conn, "killed"))

    def trainer_step(self, trainer: FakeTrainer, keep: int) -> None:
        """Read, take a batch if one is there, let go of some that are kept."""
        while trainer.inbox:
            message, arena = trainer.inbox.popleft()
            if isinstance(
                message, (m.Attached, m.Dealt, m.Window, m.Ready, m.Failed, m.Learned, m.Bad, m.Warn)
            ):
                if message.loader != trainer.attachment.loader:
                    continue
                if isinstance(message, m.Attached):
                    assert arena is not None
                    trainer.arena = arena
                release = trainer.attachment.received(message)
                if release is not None:
                    trainer.outbox.append(release)
        if self.net is not None and not self.net.may_take(trainer):
            return
        ready = trainer.attachment.take(trainer.at) if trainer.attachment.state != "new" else None
        if ready is not None:
            self._took(trainer, ready)
        elif not trainer.asked:
            trainer.asked = True
            trainer.outbox.append(m.Ask(trainer.attachment.loader, trainer.at))
        while trainer.keeps and (len(trainer.keeps) > keep or self.rng.random() < 0.2):
            generation = self.rng.choice(list(trainer.keeps))
            del trainer.keeps[generation]
            trainer.attachment.held.pop(generation)
            trainer.outbox.append(m.Release(trainer.attachment.loader, generation))

    def _took(self, trainer: FakeTrainer, ready: m.Ready) -> None:
        assert trainer.arena is not None
        size = ready.table[1] // ready.samples
        records = [
            self.filled[self._at(trainer.arena, ready.table[0] + i * size)] for i in range(ready.samples)
        ]
        ids = [sample for sample, *_ in records]
        self._check_ids(trainer, ready.at, ids)
        assert ids.count(FILLER) == ready.fillers
        for sample, *entry in ((r[0], *r) for r in records if r[0] != FILLER):
            assert entry[1] or entry[2] == set(range(4)), f"{ready.at}: sample {sample} has units {entry[2]}"
            assert entry[1] == (sample in self.bad or sample in self.deadly)
        trainer.taken.append(ready.at)
        trainer.asked = False
        trainer.outbox.append(
            m.Took(trainer.attachment.loader, m.Taking(ready.at, 0, window_us=self.window_us))
        )
        if trainer.attachment.may_hold(ready):
            trainer.attachment.held[ready.generation] = (ready.offset, ready.nbytes)
            trainer.keeps[ready.generation] = (ready.offset, ready.nbytes)
        else:
            trainer.copies += 1
            trainer.outbox.append(m.Release(trainer.attachment.loader, ready.generation))
        trainer.progress.took(ready.following, trainer.attachment.window)

    def _check_ids(self, trainer: FakeTrainer, at: Position, ids: list[int]) -> None:
        """The samples are those that are planned for the rank.

        A sample whose describe failed has no cost to plan by: then only the step that it is in is certain,
        and only where steps follow from counting.
        """
        chosen = trainer.settings
        key = (trainer.name, trainer.rank, at)
        self.delivered[key] = ids
        if chosen.placement == "dynamic":
            return  # the step has its samples; which rank has which, load decides
        if not self.deadly:
            expected = planned(chosen)[at][trainer.rank]
            if chosen.on_bad == "replace":
                expected = [self._given_for(chosen, expected, i) for i in range(len(expected))]
            assert ids == expected, f"{at}: {ids}"
            return
        others = [
            i
            for (name, rank, there), them in self.delivered.items()
            if name == trainer.name and there == at and rank != trainer.rank
            for i in them
        ]
        assert not set(ids) & set(others), f"{at}: ranks share a sample"

    def _given_for(self, chosen: Settings, batch: list[int], i: int) -> int:
        """The sample that stands where one was planned; windows are of one batch of the rank."""
        assert isinstance(chosen.batching, FixedBatch)
        assert chosen.batching.regroup == chosen.micro_batches == 1
        rows = {s: row_of(chosen.recipe.qualname, s) for s in batch if s != FILLER}
        fits = {s: (row.shapes, row.costs) for s, row in rows.items()}
        others = [s for s in batch[i + 1 :] + batch[:i] if s != FILLER and fits[s] == fits.get(batch[i])]
        tried = (s for s in [batch[i], *others[:3]] if s not in self.bad)
        return next(tried, batch[i])

    # ---- host and workers --------------------------------------------------------------------------

    def start_host(self) -> None:
        """What a trainer does when asked to."""
        self.host = self._conns = self._conns + 1
        cores = self.cores if self.host_cores is None else self.host_cores
        hello = m.Hello(m.PROTOCOL, "0", "host", "j", self.host, cores, self.limit_millis)
        self.tell(a.Opened(self.host, 1, hello))

    def limit_host(self, cores: tuple[int, ...], limit_millis: int | None = None) -> None:
        """Its cgroup changes, and it says so."""
        self.host_cores, self.limit_millis = cores, limit_millis
        if self.host is not None:
            self.host_out.append(m.Cores(cores, limit_millis))

    def _host_gone(self) -> None:
        self.host = None
        self.host_out.clear()

    def kill_host(self) -> None:
        """Its workers die with it; the events come in any order."""
        host, self.host = self.host, None
        assert host is not None
        self.host_out.clear()
        events: list[a.Event] = [a.Closed(host, "killed")]
        for worker in self.workers.values():
            self._read_out(worker)
            if not worker.dead and worker.number in self.made:
                events.append(a.WorkerClosed(worker.number))
            worker.dead = True
        self.rng.shuffle(events)
        # Some ends are seen at once, some only when the next host has come.
        seen = max(self.rng.randrange(len(events) + 1), events.index(a.Closed(host, "killed")) + 1)
        self.late.extend(events[seen:])
        for event in events[:seen]:
            self.tell(event)

    def kill_worker(self, worker: FakeWorker, *, seen: bool = True) -> None:
        """SIGKILL; what it had sent is read first, then its end is seen in any order, or is yet to be."""
        self._read_out(worker)
        worker.dead = True
        if self.host is None or worker.number not in self.made:
            return
        self.host_out.append(m.Exited(worker.number, -9))
        if not seen:
            self.late.append(a.WorkerClosed(worker.number))
            return
        if self.rng.random() < 0.5:
            self.host_step()
        if worker.number in self.made:
            self.tell(a.WorkerClosed(worker.number))

    def _read_out(self, worker: FakeWorker) -> None:
        while worker.outbox and not worker.dead and worker.number in self.made:
            self.tell(a.WorkerReceived(worker.number, worker.outbox.popleft()))

    def host_step(self) -> None:
        """The host reports the next thing."""
        if self.host is not None and self.host_out:
            self.tell(a.Received(self.host, self.host_out.popleft()))

    def worker_step(self, worker: FakeWorker) -> None:
        """The worker does the next thing it was told."""
        if worker.outbox:
            self.tell(a.WorkerReceived(worker.number, worker.outbox.popleft()))
            return
        if not worker.inbox:
            return
        message = worker.inbox.popleft()
        match message:
            case m.Setup(number, settings_):
                worker.layouts[number] = settings_.recipe.qualname
                worker.outbox.append(m.SetupDone(number))
            case m.MapArena(arena):
                worker.arenas.add(arena)
            case m.UnmapArena(arena):
                worker.arenas.remove(arena)
            case m.Describe():
                self._describe(worker, message)
            case m.Fill() | m.Mask():
                self._fill(worker, message)
            case m.Copy():
                self._copy(worker, message)

    def _describe(self, worker: FakeWorker, task: m.Describe) -> None:
        layout = worker.layouts[task.stream]
        if task.suspect:
            worker.outbox.append(m.Began(task.task))
        rows = []
        for sample in task.ids:
            if sample in self.deadly and self.rng.random() < 0.5:
                self.kill_worker(worker)
                return
            if sample in self.undescribed:
                rows.append(m.Row(sample, (), {}, 1, (), (0,), error="its file is gone"))
            else:
                rows.append(row_of(layout, sample, long=self.long))
        cut = self.rng.randrange(len(rows))
        if cut:
            worker.outbox.append(m.Described(task.task, SCHEMAS[layout], tuple(rows[:cut]), last=False))
        worker.outbox.append(m.Described(task.task, SCHEMAS[layout], tuple(rows[cut:]), last=True))

    def _fill(self, worker: FakeWorker, task: m.Fill | m.Mask) -> None:
        assert task.arena in worker.arenas
        schema = SCHEMAS[worker.layouts[task.stream]]
        if isinstance(task, m.Mask):
            self._touched(task.arena, task.start, schema, task.places, task.record)
            self.filled[self._at(task.arena, task.start + task.record)] = (task.id, True, set())
            worker.outbox.append(m.Filled(task.task, (10,)))
            return
        if task.suspect:
            worker.outbox.append(m.Began(task.task))
        failed = []
        for i, piece in enumerate(task.pieces):
            record = task.start + piece.record
            self._touched(task.arena, task.start, schema, piece.places, piece.record)
            if piece.id in self.deadly:
                self.kill_worker(worker)
                return
            if piece.id in self.bad:
                failed.append(m.PieceFailed(i, False, "media", f"sample {piece.id} is broken"))
                continue
            sample, masked, units = self.filled.get(self._at(task.arena, record), (-1, False, set()))
            if sample != piece.id or masked:
                units = set()
            self.filled[self._at(task.arena, record)] = (
                piece.id,
                False,
                units | set(range(piece.begin, piece.end)),
            )
        cpu_us = tuple(UNIT_US * (piece.end - piece.begin) for piece in task.pieces)
        worker.outbox.append(m.Filled(task.task, cpu_us, 0, tuple(failed)))

    def _copy(self, worker: FakeWorker, task: m.Copy) -> None:
        assert {task.source.arena, task.target.arena} <= worker.arenas
        layout = worker.layouts[task.stream]
        row = row_of(layout, task.id)
        source = self.filled[self._at(task.source.arena, task.source.start + task.source.record)]
        assert source == (task.id, False, set(range(row.units))), "it is not there, or not any more"
        for here, there in zip(task.source.places, task.target.places, strict=True):
            assert here.shape == there.shape or 0 in here.shape
        target = task.target
        self._touched(target.arena, target.start, task.schema, target.places, target.record)
        self.filled[self._at(target.arena, target.start + target.record)] = source
        self.copied += 1
        worker.outbox.append(m.Filled(task.task, (10,)))

    def _at(self, arena: int, offset: int) -> tuple[int, int]:
        return arena, offset % self.sizes[arena]

    def _touched(
        self, arena: int, start: int, schema: m.Schema, places: tuple[m.Place, ...], record: int
    ) -> None:
        for spec, place in zip(schema, places):
            self._written(arena, start + place.offset, DTYPES[spec.dtype] * math.prod(place.slot))
        self._written(arena, start + record, 8)

    def _written(self, arena: int, offset: int, nbytes: int) -> None:
        for trainer in self.trainers:
            if trainer.arena == arena and nbytes:
                for begin, size in trainer.keeps.values():
                    ring = self.arenas[arena]
                    apart = (offset - begin) % ring >= size and (begin - offset) % ring >= nbytes
                    assert apart, "a leased byte is overwritten"

    def plan_step(self) -> None:
        """The next window is planned."""
        action = self.plans.popleft()
        try:
            window: Any = action.planner.plan(action.opening)
        except HelixError as e:
            window = e
        self.tell(a.Planned(action.ticket, window))

    # ---- histories ---------------------------------------------------------------------------------

    def step(self, keep: int = 2) -> None:
        """One thing happens, somewhere."""
        self.now += 0.001
        doers: list[Any] = list(self.trainers)
        doers += [w for w in self.workers.values() if not w.dead]
        doers.append("host")
        doers += ["late"] if self.late else []
        doers += ["planner"] if self.plans else []
        doer = self.rng.choice(doers)
        if isinstance(doer, FakeTrainer):
            if doer.outbox and self.rng.random() < 0.7:
                self.tell(a.Received(doer.conn, doer.outbox.popleft()))
            else:
                self.trainer_step(doer, keep)
        elif isinstance(doer, FakeWorker):
            self.worker_step(doer)
        elif doer == "planner":
            self.plan_step()
        elif doer == "late":
            event = self.late.popleft()
            if isinstance(event, a.WorkerClosed) and event.worker in self.made:
                self.tell(event)
        elif self.host is None:
            wanted = any(isinstance(msg, m.StartHost) for t in self.trainers for msg, _ in t.inbox)
            if wanted or any(job.pool.host_asked for job in self.machine.jobs.values()):
                self.start_host()
        else:
            self.host_step()

    def drain(self, until: Position, keep: int = 2, limit: int = 60_000) -> None:
        """No more faults: every trainer gets there, or this fails."""
        for _ in range(limit):
            if all(t.at >= until for t in self.trainers):
                return
            self.step(keep)
        raise AssertionError(
            f"stuck: {[(t.rank, t.at, len(t.keeps)) for t in self.trainers]} {self.logs[-5:]}"
        )
