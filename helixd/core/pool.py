"""A job's processes: its worker host, and one worker per core that it owns.

host:    wanted --StartHost to a trainer--> asked --its hello--> there --its end--> wanted
worker:  forked --socket closed--> closed --reaped by the host, or the host is gone too--> forked again
         forked --its core is given up--> retiring --its last task done--> closed
                                          retiring --its core comes back--> forked
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from helixd.core.actions import About, Action, Close, DrainWorker, DropWorker, Log, MakeWorker, Send
from helixd.core.batch import FillTask, Task
from helixd.core.cores import Share, share
from helixd.core.homes import Homes
from helixd.core.metrics import Counters
from libhelix.wire import messages as m

if TYPE_CHECKING:
    from helixd.core.stream import Stream

SLOW = 3.0
"""A worker that takes so many times as long for the same work as the best is slow."""
DEATHS_BEFORE_FIRST_TASK = 3
EARLY_DEATH_S = 1.0
ORPHAN_LIMIT_S = 5.0
TASK_LIMIT_S = 60.0
PIECE_LIMIT_S = 10.0
"""For every further piece of a task."""
CHAIN_LIMIT_S = 3600.0
"""A chain may have to be gone through from its beginning, up to what is asked for."""
HOST_START_LIMIT_S = 30.0
HOST_ASK_AGAIN_S = 3.0


@dataclass(eq=False)
class Worker:
    """A decode worker: one process, pinned to one core. `tasks[0]` is the one it works on."""

    number: int
    core: int
    tasks: list[Task] = field(default_factory=list)
    forked: float = 0.0
    since: float = 0.0
    loading: dict[int, Stream] = field(default_factory=dict)
    streams: set[int] = field(default_factory=set)
    arenas: set[int] = field(default_factory=set)
    done: int = 0
    began: int | None = None
    """The suspect task that it said it is at."""
    pace: float | None = None
    """Seconds per CPU second of its last fill tasks, smoothed: how much of its core others take."""
    killed: bool = False
    closed: bool = False
    lent: int | None = None
    """The task of another worker that its core helps with."""
    retiring: bool = False
    """Its core is given up: it gets no more tasks, and is let go when it has none."""
    let_go: bool = False
    """We have closed its socket; its end is nobody's fault."""
    orphaned: float | None = None
    """Since when its host is gone, which alone could reap or kill it; it dies with its host."""
    status: int | None = None

    @property
    def limit_s(self) -> float:
        """How long its task may take."""
        task = self.tasks[0] if self.tasks else None
        if task is not None and task.stream.settings.chains and task.stream.consumers:
            return CHAIN_LIMIT_S  # of a loader that is gone, it would keep others waiting
        further = len(task.pieces) - 1 if isinstance(task, FillTask) else 0
        return TASK_LIMIT_S + PIECE_LIMIT_S * further

    @property
    def able(self) -> bool:
        """Whether it may be given a task."""
        return not self.closed and not self.retiring and self.orphaned is None and self.lent is None

    @property
    def fills(self) -> bool:
        """Whether it holds a task that decodes."""
        return any(isinstance(task, FillTask) for task in self.tasks)

    @property
    def end(self) -> str:
        """How its process ended, for people."""
        if self.status is None:
            return "with its host"
        return f"by signal {-self.status}" if self.status < 0 else f"with exit code {self.status}"


@dataclass(eq=False)
class Core:
    """A CPU core, with its worker and how often that died before its first task. `owned` now, or once."""

    number: int
    owned: bool = False
    worker: Worker | None = None
    early_deaths: int = 0


@dataclass
class HostAsked:
    """A worker host is awaited since `since`; trainer `conn` was asked for it at `last`."""

    conn: int
    since: float
    last: float


@dataclass(eq=False)
class Trainer:
    """A connected trainer process."""

    conn: int
    pid: int
    cores: frozenset[int]
    waits: bool = False
    """Whether it waits for us, and so reads at once what it is told."""


@dataclass(eq=False)
class Pool:
    """The processes of a job. `returned(worker, alone)` gets the tasks of a worker that is gone; `alone` says
    that it did not go with its host. `fail` ends the job's loaders."""

    name: str
    about: About
    out: list[Action]
    numbers: Callable[[], int]
    allowed_cores: frozenset[int] | None
    reserve: int | None
    """Cores per trainer process that stay free; None for the default."""
    returned: Callable[[Worker, bool], None]
    fail: Callable[[str, str], None]
    trainers: dict[int, Trainer] = field(default_factory=dict)
    cores: dict[int, Core] = field(default_factory=dict)
    workers: dict[int, Worker] = field(default_factory=dict)
    host: int | None = None
    host_asked: HostAsked | None = None
    host_deaths: int = 0
    host_cores: frozenset[int] | None = None
    most_cores: int | None = None
    """That may decode for a job, by its user's quota."""
    limit_millis: int | None = None
    """What the last host that came has said of its cgroup."""
    share: Share = field(default_factory=Share)
    homes: Homes = field(default_factory=Homes)
    warned_cores: bool = False
    counters: Counters = field(default_factory=Counters)
    """The daemon's."""
    now: float = 0.0
    """The time of the event that is being handled."""

    # ---- worker host -------------------------------------------------------------------------------

    def want_host(self, now: float) -> None:
        """See to it that the job has a worker host, or is being given one."""
        if self.host is not None or self.host_asked is not None or not self.trainers:
            return
        self.host_asked = HostAsked(self._most_attentive(-1), now, now)
        self.out.append(Send(self.host_asked.conn, m.StartHost()))

    def _most_attentive(self, but: int) -> int:
        """A trainer that waits for us, the next one after `but` round the trainers; else the next one."""
        conns = list(self.trainers)
        at = conns.index(but) + 1 if but in conns else 0
        order = conns[at:] + conns[:at]
        return next((c for c in order if self.trainers[c].waits), order[0])

    def _ask_another_for_host(self, asked: HostAsked, now: float) -> None:
        """The trainer that was asked reads nothing, deep in its own work, or failed: ask another, too."""
        asked.conn, asked.last = self._most_attentive(asked.conn), now
        self.out.append(Send(asked.conn, m.StartHost()))

    def revive(self, now: float) -> None:
        """A loader comes: what was given up before is tried once more."""
        self.host_deaths = 0
        for core in self.cores.values():
            core.early_deaths = 0
            self._fork(core)
        self.want_host(now)

    def host_came(self, conn: int) -> None:
        """The worker host is there: one worker per core."""
        self.host, self.host_asked = conn, None
        for core in self.cores.values():
            self._fork(core)

    def host_gone(self, why: str, now: float) -> None:
        """The worker host died, and its workers die with it; a trainer starts another."""
        self.host = None
        for worker in list(self.workers.values()):
            if worker.orphaned is None:
                worker.orphaned = now
            if worker.closed:
                self._worker_gone(worker)
        self.host_deaths += 1
        if self.host_deaths > DEATHS_BEFORE_FIRST_TASK:
            self.fail("worker-host", f"the worker host died {self.host_deaths} times without decoding: {why}")
        else:
            self.out.append(
                Log(
                    "warning",
                    f"job {self.name!r}: the worker host is gone ({why}); another is started",
                    self.about,
                )
            )
            self.want_host(now)

    def host_failed(self, text: str) -> None:
        """A trainer could not start the worker host."""
        self.host_asked = None
        self.fail("worker-host", text)

    # ---- cores and workers -------------------------------------------------------------------------

    def allow(self, cores: frozenset[int] | None, reserve: int | None, most: int | None) -> None:
        """The operator has changed what jobs may have."""
        self.allowed_cores, self.reserve, self.most_cores = cores, reserve, most
        self.warned_cores = False
        self.take_cores()

    def host_may_use(self, cores: frozenset[int], limit_millis: int | None) -> None:
        """The host says what the job's cgroup leaves it."""
        self.host_cores, self.limit_millis = cores or None, limit_millis
        self.take_cores()

    def trainer_may_use(self, conn: int, cores: frozenset[int]) -> None:
        """A trainer says where it may run now."""
        if conn in self.trainers:
            self.trainers[conn].cores = cores
            self.take_cores()

    def take_cores(self) -> None:
        """Own the cores that are the job's share now, one worker each; give up those that are no more."""
        self.share = share(
            [t.cores for t in self.trainers.values()],
            host=self.host_cores,
            limit_millis=self.limit_millis,
            allowed=self.allowed_cores,
            reserve=self.reserve,
            most=self.most_cores,
        )
        if self.share.outside and not self.warned_cores:
            self.warned_cores = True
            self.out.append(
                Log(
                    "warning",
                    f"job {self.name!r}: none of its cores is among those that helixd may use, "
                    f"{sorted(self.allowed_cores or ())}; it decodes on {sorted(self.share.owned)}",
                    self.about,
                )
            )
        for core in list(self.cores.values()):
            if core.owned and core.number not in self.share.owned:
                self._give_up(core)
        for number in sorted(self.share.owned):
            core = self.cores.setdefault(number, Core(number))
            if not core.owned:
                self._take(core)
        self.homes.settle(self.share.owned)

    def _take(self, core: Core) -> None:
        core.owned, core.early_deaths = True, 0
        if core.worker is not None:
            core.worker.retiring = False  # where it is let go already, another follows it
        self._fork(core)

    def _give_up(self, core: Core) -> None:
        core.owned = False
        if core.worker is not None:
            core.worker.retiring = True
            self._let_go_if_idle(core.worker)

    def _let_go_if_idle(self, worker: Worker) -> None:
        """A worker that retires ends by itself when its socket is closed."""
        if worker.retiring and not worker.tasks and not worker.closed:
            worker.let_go = True
            self.worker_closed(worker)

    def answered(self, conn: int) -> None:
        """A trainer has been sent the batch that it waited for: it need not read at once any more."""
        if conn in self.trainers:
            self.trainers[conn].waits = False

    def home(self, loader: int, chain: int) -> Worker | None:
        """The worker that makes all samples of a loader's chain; None while its core has none."""
        core = self.homes.core_of((loader, chain))
        return self.cores[core].worker if core is not None else None

    def idle(self) -> bool:
        """Whether a worker has nothing to do."""
        return any(worker.able and not worker.tasks for worker in self.workers.values())

    def count(self) -> int:
        """How many workers the job has, or will have when its host is there."""
        return max(1, len(self.share.owned))

    def _fork(self, core: Core) -> None:
        if core.worker is not None or self.host is None or not core.owned:
            return
        core.worker = Worker(self.numbers(), core.number, forked=self.now)
        self.workers[core.worker.number] = core.worker
        self.out.append(MakeWorker(core.worker.number))
        self.out.append(Send(self.host, m.Fork(core.worker.number, core.number), worker=core.worker.number))

    def worker_closed(self, worker: Worker) -> None:
        """A worker's socket is closed: it writes no more. How it ended is the host's to say, and whether it
        is to blame: workers die with their host, too."""
        worker.closed = True
        self.out.append(DropWorker(worker.number))
        if worker.status is not None or worker.orphaned is not None:
            self._worker_gone(worker)

    def worker_exited(self, worker: Worker, status: int) -> None:
        """The host has reaped a worker."""
        worker.status = status
        if worker.closed:
            self._worker_gone(worker)
        else:
            self.out.append(DrainWorker(worker.number))

    def _worker_gone(self, worker: Worker) -> None:
        """Its tasks return, whoever is to blame is blamed, its core gets another worker."""
        del self.workers[worker.number]
        core = self.cores[worker.core]
        core.worker = None
        alone = worker.orphaned is None and not worker.let_go
        if not worker.let_go:
            self.counters.worker_gone(killed=worker.killed, status=worker.status)
        if alone:
            self.out.append(
                Log("warning", f"worker {worker.number} on core {worker.core} ended {worker.end}", self.about)
            )
        self.returned(worker, alone)
        if not alone:
            self._fork(core)  # where another host has come, or the core came back, meanwhile
            return
        at_once = self.now < worker.forked + EARLY_DEATH_S
        if at_once and not worker.tasks and not worker.loading and not worker.done:
            core.early_deaths += 1
        if core.early_deaths > DEATHS_BEFORE_FIRST_TASK:
            self.fail("worker-host", f"workers on core {core.number} end {worker.end} as soon as they start")
            return
        self._fork(core)

    def paced(self, worker: Worker, cpu_us: int, now: float) -> None:
        """A worker's fill task took so much CPU time."""
        if cpu_us > 0:
            pace = (now - worker.since) * 1e6 / cpu_us
            worker.pace = pace if worker.pace is None else 0.7 * worker.pace + 0.3 * pace

    def slow(self) -> set[int]:
        """Workers whose cores others use far more than the best's: what is due must not wait for them."""
        paces = {w.number: w.pace for w in self.workers.values() if w.pace is not None and not w.closed}
        best = min(paces.values(), default=0.0)
        return {number for number, pace in paces.items() if pace > SLOW * best}

    def task_ended(self, worker: Worker, now: float) -> None:
        """A worker has done its first task, and goes on with the next."""
        worker.tasks.pop(0)
        worker.since = now
        worker.done += 1
        self.cores[worker.core].early_deaths = 0
        self.host_deaths = 0
        self._let_go_if_idle(worker)

    # ---- time --------------------------------------------------------------------------------------

    def deadlines(self) -> list[float]:
        """When something will be overdue."""
        due = []
        if self.host is not None:  # only a host can kill
            due += [w.since + w.limit_s for w in self._killable()]
        due += [w.orphaned + ORPHAN_LIMIT_S for w in self.workers.values() if w.orphaned is not None]
        if self.host_asked is not None:
            due.append(self.host_asked.last + HOST_ASK_AGAIN_S)
        return due

    def _killable(self) -> list[Worker]:
        """Workers of the host that is there, at a task."""
        return [w for w in self.workers.values() if w.tasks and not w.killed and w.orphaned is None]

    def overdue(self, now: float) -> None:
        """Kill stuck workers; ask on, and at last give up, for a host that does not come."""
        for worker in list(self.workers.values()):
            if worker.orphaned is not None and now >= worker.orphaned + ORPHAN_LIMIT_S:
                # Killed with its host long ago; a child that a recipe forked still holds its socket.
                self.out.append(DrainWorker(worker.number))
                worker.orphaned = now
        for worker in self._killable():
            if self.host is not None and now >= worker.since + worker.limit_s:
                worker.killed = True
                text = f"worker {worker.number} is stuck for {worker.limit_s:.0f} s: killed"
                self.out.append(Log("warning", text, self.about))
                self.out.append(Send(self.host, m.Kill(worker.number)))
        asked = self.host_asked
        if asked is not None and not any(t.waits for t in self.trainers.values()):
            asked.since = now  # nobody waits: there is time until somebody does
        if asked is not None and now >= asked.since + HOST_START_LIMIT_S:
            self.host_failed(f"no worker host came within {HOST_START_LIMIT_S:.0f} s")
        elif asked is not None and now >= asked.last + HOST_ASK_AGAIN_S:
            self._ask_another_for_host(asked, now)

    def close(self) -> None:
        """The job is over: host and workers go."""
        for worker in self.workers.values():
            if not worker.closed:
                self.out.append(DropWorker(worker.number))
        self.workers.clear()
        if self.host is not None:
            self.out.append(Close(self.host))
            self.host = None

    def check(self) -> None:
        """What must hold of cores and workers between events."""
        owned = {core.number for core in self.cores.values() if core.owned}
        if owned != self.share.owned:
            raise AssertionError(f"cores {sorted(owned)} are owned, the share is {sorted(self.share.owned)}")
        for worker in self.workers.values():
            core = self.cores[worker.core]
            if core.worker is not worker:
                raise AssertionError(f"worker {worker.number} is not the one of its core {worker.core}")
            if worker.retiring == core.owned:
                raise AssertionError(f"worker {worker.number} is retiring, or its core is given up: not both")
            if worker.retiring and not worker.tasks and not worker.closed:
                raise AssertionError(f"worker {worker.number} is retiring and idle, and was not let go")
