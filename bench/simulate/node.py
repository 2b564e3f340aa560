"""A daemon with its host and its workers: helixd's core, and somebody who does what it wants done."""

from __future__ import annotations

import math
from typing import Protocol

from bench.simulate.case import Case, System
from bench.simulate.clock import Clock
from bench.simulate.corpus import Corpus
from bench.simulate.net import Net
from bench.simulate.plans import Book
from bench.simulate.workers import LATENCY_S, Worker
from helixd.core import actions as a
from helixd.core.machine import Machine
from helixd.core.stream import Stream
from libhelix.wire import messages as m

PAGE = 64
UID = 1
JOB = "simulated"
LOADER = "train"
_HOST = 1
"""The connection of the worker host."""


class Peer(Protocol):
    """A trainer's end of its connection."""

    def told(self, message: m.ToTrainer) -> None:
        """A message has come."""


class Watcher(Protocol):
    """Sees what a daemon wants done."""

    def saw(self, node: Node, actions: list[a.Action]) -> None:
        """After every event."""


class Node:
    """`cores` are for workers. Trainers are connections from 2 on. `net`: where it is node `number` of."""

    def __init__(
        self,
        clock: Clock,
        case: Case,
        system: System,
        corpus: Corpus,
        *,
        cores: int,
        slow: float,
        book: Book | None = None,
        net: Net | None = None,
        number: int = 0,
    ) -> None:
        self._book = book
        self._net, self._number = net, number
        self._tick_at = math.inf
        self._clock, self._case, self._system, self._corpus = clock, case, system, corpus
        self.cores, self._slow = cores, slow
        self.machine = Machine(
            version="0", page=PAGE, embedded=False, now=clock.now, policy=system.policy, reserve=0
        )
        self.workers: dict[int, Worker] = {}
        self.watcher: Watcher | None = None
        self._peers: dict[int, Peer] = {}

    @property
    def stream(self) -> Stream:
        """The loader."""
        return self.machine.jobs[UID, JOB].streams[LOADER]

    def connect(self, peer: Peer) -> int:
        """A trainer says hello."""
        conn = len(self._peers) + 2
        self._peers[conn] = peer
        self._open(conn)
        return conn

    def _open(self, conn: int) -> None:
        cores = tuple(range(self.cores))
        hello = m.Hello(m.PROTOCOL, "0", "host" if conn == _HOST else "trainer", JOB, conn, cores)
        self.tell(a.Opened(conn, UID, hello))

    def attach(self, conn: int, attach: m.Attach) -> None:
        """A trainer's loader attaches, at once."""
        for message in self._net.meeting(self._number, LOADER) if self._net is not None else ():
            self.tell(a.Received(conn, message))
        self.tell(a.Received(conn, attach))

    def send(self, conn: int, message: m.FromTrainer | m.FromHost) -> None:
        """A message sets out."""
        self._clock.after(LATENCY_S, self.tell, a.Received(conn, message))

    def tell(self, event: a.Event) -> None:
        """An event, and all that the core wants done about it."""
        actions = self.machine.handle(event, self._clock.now)
        if self.watcher is not None:
            self.watcher.saw(self, actions)
        for action in actions:
            self._do(action)
        due = self.machine.deadline() if self._net is not None else None
        if due is not None and max(due, self._clock.now) < self._tick_at:
            self._tick_at = max(due, self._clock.now)
            self._clock.after(self._tick_at - self._clock.now, self._tick, self._tick_at)

    def _tick(self, at: float) -> None:
        if at == self._tick_at:  # else there was an earlier one
            self._tick_at = math.inf
            self.tell(a.Tick())

    def _do(self, action: a.Action) -> None:
        match action:
            case a.SendWorker(worker, message):
                self._clock.after(LATENCY_S, self.workers[worker].told, message)
            case a.Send(conn, message, _, worker):
                if conn == _HOST:
                    self._host_told(message, worker)
                elif isinstance(message, m.StartHost):
                    self._clock.after(LATENCY_S, self._open, _HOST)
                else:
                    self._clock.after(LATENCY_S, self._peers[conn].told, message)
            case a.Log(level, text):
                if level == "error":
                    raise AssertionError(text)
            case a.Plan(ticket, planner, opening):
                # For all daemons of a job at once: they plan the same from the same rows.
                window = self._book.window(planner, opening) if self._book else planner.plan(opening)
                self._clock.after(0.0, self.tell, a.Planned(ticket, window))
            case a.OpenPeers(link) if self._net is not None:
                keys = self._net.open(self._number, self, link)
                self.tell(a.PeersOpened(link, keys, 1))
            case a.PeerSend(_, key, said, beside) if self._net is not None:
                self._net.send(self._number, key, said, beside[2] if beside is not None else 0)
            case a.MakeWorker() | a.MakeArena() | a.KnowPeers() | a.Reach() | a.Land():
                pass  # there is no memory here, and sockets are method calls
            case _:
                raise AssertionError(f"nothing fails here, and yet the core wants {action}")

    def _host_told(self, message: m.ToTrainer | m.ToHost | m.ToCtl, worker: int | None) -> None:
        match message:
            case m.Fork(number):
                assert number == worker, "the socket of another worker"
                self._fork(number)
            case m.Reserve(arena):
                self.send(_HOST, m.Reserved(arena))

    def _fork(self, number: int) -> None:
        def say(message: m.FromWorker) -> None:
            self._clock.after(LATENCY_S, self.tell, a.WorkerReceived(number, message))

        self.workers[number] = Worker(
            self._clock,
            self._corpus,
            say,
            oracle=self._system.oracle,
            slow=self._slow,
            storage_s=self._case.storage_ms * 1e-3,
        )
