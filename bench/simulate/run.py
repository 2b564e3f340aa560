"""A case under a system, from the first hello to the last sample, and the figures that came of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from bench.simulate.case import REGROUP, Case, System
from bench.simulate.clock import Clock
from bench.simulate.corpus import Corpus
from bench.simulate.net import Net
from bench.simulate.node import Node, Watcher
from bench.simulate.outcome import Outcome, outcome_of
from bench.simulate.plans import Book, planning, told_once
from bench.simulate.rank import Barrier, Rank
from libhelix.wire.settings import FixedBatch, RecipeSpec, Settings


@dataclass
class Simulation:
    """All parts of it, which tests look at. A daemon serves its part of a node, `node_of` says which."""

    case: Case
    system: System
    clock: Clock
    corpus: Corpus
    barrier: Barrier
    nodes: list[Node] = field(default_factory=list)
    node_of: list[int] = field(default_factory=list)
    ranks: list[Rank] = field(default_factory=list)
    net: Net | None = None

    def run(self) -> None:
        """Until every rank has taken its last step, and, but for daemons that speak to each other for ever,
        workers have decoded all that is ahead."""
        ended, steps = self.barrier.ended, self.case.last_step
        with told_once():
            if self.net is None:
                self.clock.run()
            else:
                self.clock.run(until=lambda: len(ended) == steps)


def simulated(
    case: Case, system: System, corpus: Corpus | None = None, watcher: Watcher | None = None
) -> Simulation:
    """All parts, connected and attached, before the first thing happens."""
    clock, corpus = Clock(), corpus or Corpus(case)
    barrier = Barrier(clock, case.all_ranks)
    made = Simulation(case, system, clock, corpus, barrier)
    settings = _settings(case, system, corpus.count)
    parts = 1 if system.pooled else case.ranks
    if system.linked is not None:
        ranks = [tuple(range(i * case.ranks, (i + 1) * case.ranks)) for i in range(case.nodes)]
        made.net = Net(clock, ranks)
    alike = parts * case.nodes > 1 and made.net is None
    book = Book(corpus, oracle=system.oracle) if alike else None
    with planning(slices=system.plan == "slices", book=book):
        for number in range(case.nodes * parts):
            part, at = number % parts, number // parts
            slow, cores = case.slowness(at), _share(case.cores, part, parts)
            node = Node(
                clock, case, system, corpus, cores=cores, slow=slow, book=book, net=made.net, number=at
            )
            node.watcher = watcher
            made.nodes.append(node)
            made.node_of.append(at)
            mine = [
                Rank(
                    clock,
                    node,
                    barrier,
                    at * case.ranks + part * (case.ranks // parts) + r,
                    settings,
                    window_us=corpus.window_us,
                    last_step=case.last_step,
                )
                for r in range(case.ranks // parts)
            ]
            for rank in mine:
                rank.connect()
            for rank in mine:
                rank.attach()
            made.ranks += mine
    return made


def simulate(case: Case, system: System, corpus: Corpus | None = None) -> Outcome:
    """Run it."""
    made = simulated(case, system, corpus)
    made.run()
    return outcome(made)


def outcome(made: Simulation) -> Outcome:
    """Of one that ran."""
    case = made.case
    takings = [rank.taken for rank in made.ranks]
    done: list[list[tuple[float, float, int, float]]] = [[] for _ in range(case.nodes)]
    for node, at in zip(made.nodes, made.node_of):
        for worker in node.workers.values():
            done[at] += [(d.began, d.ended, d.sample, d.work_s) for d in worker.done]
    copies = sum(rank.copies for rank in made.ranks)
    found = outcome_of(case, takings, made.barrier.ended, done, copies=copies, events=made.clock.events)
    if made.net is None:
        return found
    sent = made.net.sent_bytes
    return msgspec.structs.replace(found, leader_bytes=sent[0], node_bytes=max(sent[1:], default=0))


def _share(cores: int, part: int, parts: int) -> int:
    """Cores of a part: all of them are used, and each has one at least."""
    return max(1, cores // parts + (part < cores % parts))


def _settings(case: Case, system: System, count: int) -> Settings:
    samples = case.samples // case.micro
    return Settings(
        recipe=RecipeSpec("bench.simulate", "Simulated", "{}"),
        index_fingerprint="",
        index_samples=count,
        batching=FixedBatch(samples, regroup=REGROUP if system.plan == "window" else 1),
        seed=case.seed,
        shuffle=False,
        dp_size=case.all_ranks,
        replicas=1,
        micro_batches=case.micro,
        ring=system.ring or case.lookahead,
        placement=system.linked or "static",
        on_bad="raise",
    )
