"""Several nodes in one thread: a World each, and a net between them that loses, doubles and reorders."""

from __future__ import annotations

import random
from typing import Any

from helixd.core import actions as a
from libhelix.wire import codec
from libhelix.wire import messages as m
from libhelix.wire import peer as p
from libhelix.wire.settings import FixedBatch, IndexRef, Position, Settings
from tests.helixd.core.world import Carried, FakeTrainer, World, planned, settings


class Nodes:
    """`ranks[i]` are those of node i; the first has rank 0 and leads. A thing happens every `tick_s`."""

    tick_s = 0.02

    def __init__(
        self,
        rng: random.Random,
        settings: Settings,
        ranks: list[list[int]],
        *,
        loss: float = 0.0,
        cores: int = 2,
        helpers: int = 0,
    ) -> None:
        self.rng = rng
        self.settings = settings
        self.ranks = ranks
        self.loss = loss
        self.cores = cores
        self.wire: list[tuple[int, int, bytes, Carried]] = []
        """What is on its way: from, to, what, and what is beside it."""
        self.sent: dict[str, int] = {}
        self.cut: set[int] = set()
        """Nodes whose link is down."""
        self.dropped: set[str] = set()
        """Kinds of messages that never arrive."""
        self.frozen: set[int] = set()
        """Nodes that stand still, as by SIGSTOP."""
        self.lost: list[tuple[int, FakeTrainer]] = []
        """Trainers without a daemon, and their nodes."""
        self.now = 0.0
        self.delivered: dict[tuple[int, Position], list[int]] = {}
        self.places = range(len(ranks), len(ranks) + helpers)
        """Of nodes without ranks that may come."""
        self.worlds = [self._new() for _ in range(len(ranks) + helpers)]
        for i in range(len(ranks)):
            for rank in ranks[i]:
                self.worlds[i].attach(rank, settings)

    def _new(self) -> World:
        world = World(self.rng, self.cores)
        world.now = self.now
        world.net = self
        return world

    def may_take(self, trainer: FakeTrainer) -> bool:
        """Ranks wait for one another at the end of every step."""
        return all(t.at >= trainer.at for t in self.trainers)

    # ---- the net -----------------------------------------------------------------------------------

    @staticmethod
    def _key(i: int) -> str:
        return f"{i:040d}"

    def _where(self, world: World) -> int:
        return next((i for i, w in enumerate(getattr(self, "worlds", [])) if w is world), -1)

    def keys(self, world: World) -> m.Keys:
        i = self._where(world)
        return m.Keys(self._key(i), "s" * 40)

    def meets(self, world: World, name: str) -> list[Any]:
        peers = tuple(m.Peer(self._key(i), f"node{i}:1") for i in range(len(self.ranks)))
        ranks = tuple(self.ranks[self._where(world)])
        if world is not self.worlds[0]:
            return [m.Meet("h"), m.Peers(name, peers[0], ranks)]
        keys = tuple(self._key(i) for i in self.places)
        return [m.Meet("h"), m.Peers(name, peers[0], ranks, peers, helpers=keys)]

    def help(self, i: int, settings: Settings) -> int:
        """A node without ranks comes."""
        world, leader = self.worlds[i], m.Peer(self._key(0), "node0:1")
        conn = world.connect()
        world.tell(a.Received(conn, m.Meet("h")))
        help_ = m.Help(1, "train", settings, (IndexRef("i", "r"),), (), leader, f"node{i}:1")
        codec.encode(help_)
        world.tell(a.Received(conn, help_))
        return conn

    def send(self, world: World, key: str, said: p.Said, beside: Carried) -> None:
        source, to = self._where(world), int(key)
        data = p.encode(said)
        assert len(data) < p.MAX_PEER_BYTES
        name = type(said.message).__name__
        self.sent[name] = self.sent.get(name, 0) + 1
        if {source, to} & self.cut or name in self.dropped or self.rng.random() < self.loss:
            return
        self.wire += [(source, to, data, beside)] * (2 if self.rng.random() < self.loss else 1)

    def _deliver(self) -> None:
        at = self.rng.randrange(len(self.wire)) if self.loss else 0
        source, to, data, beside = self.wire.pop(at)
        if to in self.frozen:
            self.wire.append((source, to, data, beside))
            return
        world = self.worlds[to]
        job = next(iter(world.machine.jobs.values()), None)
        if job is not None and job.peering.link is not None:
            world.tell(a.PeerSaid(job.peering.link, self._key(source), p.decode(data), beside))

    # ---- histories ---------------------------------------------------------------------------------

    def step(self) -> None:
        """One thing happens, somewhere."""
        self.now += self.tick_s
        self._come_back()
        if self.wire and self.rng.random() < 0.4:
            self._deliver()
        alive = [i for i in range(len(self.worlds)) if i not in self.frozen]
        i = self.rng.choice(alive)
        world = self.worlds[i]
        world.now = self.now
        due = world.machine.deadline()
        if due is not None and due <= self.now:
            world.tell(a.Tick())
        world.step()
        for (_, rank, at), ids in world.delivered.items():
            before = self.delivered.setdefault((rank, at), ids)
            assert before == ids, f"rank {rank} was given other samples for {at}"

    def restart(self, i: int) -> None:
        """kill -9 of a daemon: its trainers go to the next, at their positions."""
        for t in self.worlds[i].trainers:
            for message, _ in t.inbox:  # is read before the end of the socket is
                if isinstance(message, m.Dealt):
                    t.attachment.received(message)
            self.lost.append((i, t))
        self.worlds[i] = self._new()

    def _come_back(self) -> None:
        """A trainer whose daemon is gone sees it when it asks for a batch: not while it waits for others."""
        for i, t in [(i, t) for i, t in self.lost if self.may_take(t)]:
            self.lost.remove((i, t))
            start = t.progress.start
            new = self.worlds[i].attach(t.rank, self.settings, start=start, placed=t.attachment.placed)
            new.progress, new.taken, new.attachment.placed = t.progress, t.taken, t.attachment.placed

    @property
    def supplied(self) -> bool:
        """Whether every node has all the windows that its ranks need next."""
        jobs = [job for world in self.worlds for job in world.machine.jobs.values()]
        streams = [s for job in jobs for s in job.streams.values()]
        joined = all(s.team is not None and (s.team.leads or s.team.joined) for s in streams)
        return len(streams) == len(self.ranks) and joined and not any(s.windows.missing for s in streams)

    @property
    def trainers(self) -> list[FakeTrainer]:
        return [t for world in self.worlds for t in world.trainers] + [t for _, t in self.lost]

    def drain(self, until: Position, limit: int = 400_000) -> None:
        """No more faults: every rank gets there, or this fails."""
        self.cut.clear()
        self.frozen.clear()
        self.loss = 0.0
        for _ in range(limit):
            if all(t.at >= until for t in self.trainers):
                return
            self.step()
        where = [(t.rank, t.at) for t in self.trainers]
        streams = [s for w in self.worlds for job in w.machine.jobs.values() for s in job.streams.values()]
        waits = [s.team.waits_for(self.now) for s in streams if s.team is not None]
        raise AssertionError(f"stuck: {where} {waits} {[w.logs[-3:] for w in self.worlds]}")


class Uneven(Nodes):
    """The workers of node `slow` do one thing where others do eight; trainers compute for 20 ms."""

    slow = 1
    tick_s = 0.002

    def _new(self) -> World:
        world = super()._new()
        world.window_us = 20_000
        slowly = world.worker_step

        def step(worker: Any) -> None:
            if self._where(world) != self.slow or self.rng.random() < 0.125:
                slowly(worker)

        world.worker_step = step  # type: ignore[method-assign]
        return world

    def count(self, what: str) -> int:
        """Samples of all nodes of which something came."""
        return sum(getattr(world.machine.counters.remote, what) for world in self.worlds)


def fixed(dp_size: int, layout: str = "stack", **changes: Any) -> Settings:
    """Settings of two samples a rank."""
    chosen: dict[str, Any] = {"dp_size": dp_size, "batching": FixedBatch(2), "index_samples": 20 * dp_size}
    return settings(layout, **{**chosen, **changes})


def check_steps(nodes: Nodes, chosen: Settings, until: Position) -> None:
    """Every step that was gone through had the samples that one node would give it, each on one rank."""
    for at, ranks in planned(chosen).items():
        if at < until:
            given = sorted(i for (_, where), ids in nodes.delivered.items() if where == at for i in ids)
            assert given == sorted(i for ids in ranks for i in ids), f"{at}"
