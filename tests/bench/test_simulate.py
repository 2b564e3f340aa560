"""`bench simulate`: the daemon's own scheduler in virtual time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from bench.__main__ import main
from bench.simulate.case import FULL, LADDER, RANK_LOCAL, REGROUP, SYSTEMS, WARM_UP_STEPS, Case, System
from bench.simulate.clock import Clock
from bench.simulate.command import Plan, planned, run
from bench.simulate.corpus import OPEN_US, Corpus
from bench.simulate.node import Node
from bench.simulate.report import TARGETS, concerned
from bench.simulate.run import outcome, simulate, simulated
from bench.simulate.slices import BASE, full, label, short
from helixd.core import actions as a
from helixd.core.batch import Batch, FillTask, Piece
from helixd.core.job import Job
from helixd.core.pool import Worker
from helixd.core.staging import Staged
from libhelix.wire import messages as m
from libhelix.wire.settings import Position

SMALL = Case(cores=4, ranks=4, samples=4, steps=8)
NAMES = list(SYSTEMS)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_the_same_every_time(name: str) -> None:
    assert simulate(SMALL, SYSTEMS[name]) == simulate(SMALL, SYSTEMS[name])


def test_another_seed_is_another_run() -> None:
    other = msgspec.structs.replace(SMALL, seed=1)
    assert simulate(SMALL, FULL).seconds != simulate(other, FULL).seconds


@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("name", [name for name in NAMES if SYSTEMS[name].linked is None])
def test_every_sample_of_the_steps_that_were_taken_is_decoded_once(name: str, micro: int) -> None:
    case = msgspec.structs.replace(SMALL, micro=micro)
    made = simulated(case, SYSTEMS[name])
    made.run()
    units: Counter[int] = Counter()
    for node in made.nodes:
        for worker in node.workers.values():
            for done in worker.done:
                for sample, begin, end in done.parts:
                    units[sample] += end - begin
    assert all(count == made.corpus.units(sample) for sample, count in units.items())
    taken = case.last_step * case.per_step
    ahead = case.all_ranks * case.lookahead * case.samples
    assert set(range(taken)) <= set(units), "every sample of a step was decoded"
    assert len(units) <= taken + ahead, "and beyond it no more than rings hold"
    positions = [Position(0, step, j) for step in range(case.last_step) for j in range(micro)]
    assert all([t.at for t in rank.taken] == positions for rank in made.ranks)


@pytest.mark.parametrize("case", [SMALL, msgspec.structs.replace(SMALL, demand=1.2, sigma=1.5, micro=2)])
@pytest.mark.parametrize("name", NAMES)
def test_nobody_is_faster_than_the_bound(name: str, case: Case) -> None:
    found = simulate(case, SYSTEMS[name])
    assert 0 < found.of_ideal <= found.of_bound + 1e-9
    assert found.of_bound <= 1 + 1e-9
    assert 0 <= found.misses <= 1
    assert 0 < found.busy <= 1 + 1e-9


def test_the_whole_ladder_is_worth_its_while() -> None:
    case = msgspec.structs.replace(Case(), steps=16, cores=32)
    corpus = Corpus(case)
    rates = [simulate(case, system, corpus).rate for system in (RANK_LOCAL, SYSTEMS["samples"], FULL)]
    assert rates[0] < rates[1] < rates[2]


def test_cheap_samples_are_not_cut_to_no_purpose() -> None:
    # One a core and step: quarters of a window would each open the file anew, and cores have no time for it.
    case = Case(cores=32, samples=4, sigma=0.3, demand=0.9, decode_ms=21.0, steps=16)
    assert simulate(case, FULL).of_bound > 0.92


def test_storage_that_is_slow_keeps_workers_and_no_cpu() -> None:
    fast, slow = (simulated(msgspec.structs.replace(SMALL, storage_ms=ms), FULL) for ms in (0.0, 50.0))
    for made in (fast, slow):
        made.run()
    assert slow.barrier.ended[-1] > 1.05 * fast.barrier.ended[-1] - 0.05 * fast.barrier.ended[0]
    work = [
        sum(done.work_s for node in made.nodes for worker in node.workers.values() for done in worker.done)
        for made in (fast, slow)
    ]
    assert work[0] == pytest.approx(work[1])
    assert all(
        done.ended - done.began > 0.05
        for node in slow.nodes
        for worker in node.workers.values()
        for done in worker.done
    )


def test_many_nodes_plan_once_and_share_a_barrier() -> None:
    made = simulated(msgspec.structs.replace(SMALL, nodes=3), FULL)
    made.run()
    one, *others = (node.stream.windows for node in made.nodes)
    shared = {id(ahead) for ahead in one.planned.values()}
    assert shared
    assert all({id(ahead) for ahead in other.planned.values()} == shared for other in others)
    assert {len(rank.taken) for rank in made.ranks} == {SMALL.last_step}
    assert len(made.barrier.ended) == SMALL.last_step


def test_a_slow_node_makes_all_wait() -> None:
    two = msgspec.structs.replace(SMALL, nodes=2)
    slow = simulate(msgspec.structs.replace(two, slow_node=2.0), FULL)
    assert slow.seconds > 1.2 * simulate(two, FULL).seconds


@pytest.mark.parametrize(("name", "at_least"), [("remote", 0.7), ("placed", 0.75)])
def test_nodes_that_work_together_bear_with_slow_ones(name: str, at_least: float) -> None:
    # The leader is one of the slow nodes.
    case = msgspec.structs.replace(SMALL, nodes=4, slow_node=3.0, slow_nodes=2, steps=24, demand=0.9)
    alone, together = simulate(case, FULL), simulated(case, SYSTEMS[name])
    together.run()
    found = outcome(together)
    assert alone.of_shared < 0.6
    assert at_least < found.of_shared <= 1 + 1e-9
    assert found.leader_bytes > found.node_bytes > 0
    decoded = {
        sample
        for node in together.nodes
        for worker in node.workers.values()
        for done in worker.done
        for sample, _, _ in done.parts
    }
    assert set(range(case.last_step * case.per_step)) <= decoded
    assert {len(rank.taken) for rank in together.ranks} == {case.last_step}


def test_what_cannot_be_cut_is_begun_before_its_batch_has_its_place() -> None:
    case = msgspec.structs.replace(SMALL, cuts=0, cores=16, samples=4, demand=0.9, steps=24)
    inside, ahead = simulate(case, SYSTEMS["windows"]), simulated(case, FULL)
    ahead.run()
    assert outcome(ahead).of_bound > 1.15 * inside.of_bound
    assert outcome(ahead).misses < inside.misses
    staging = ahead.nodes[0].stream.staging
    assert staging.begun > 24
    assert staging.ring_bytes <= case.ranks * staging.stream.max_bytes


def test_slices_are_those_of_a_distributed_sampler() -> None:
    made = simulated(SMALL, RANK_LOCAL)
    made.run()
    step = next(iter(made.nodes[0].stream.windows.planned.values())).window
    assert step.steps[0][0][1] == tuple(step.base.draw + 1 + 4 * i for i in range(4))


# ---- what the scheduler promises -----------------------------------------------------------------------


def urgency(batch: Batch, now: float, taken_us: int = 0) -> float:
    """When a batch has to be begun; who is past that time and does not ask is not more urgent than who does.

    `taken_us`: of a piece that was just taken.
    """
    by = batch.due - max(taken_us, batch.longest_queued_us) * 1e-6 if isinstance(batch, Staged) else batch.due
    return by if batch.awaited else max(by, now)


class Orders:
    """Checks, whenever a task is given, that no piece waits that is due clearly before it."""

    def __init__(self) -> None:
        self.given = 0
        self.waiting: list[tuple[float, float]] = []

    def saw(self, node: Node, actions: list[a.Action]) -> None:
        """After every event."""
        tasks = [
            x.message.task for x in actions if isinstance(x, a.SendWorker) and isinstance(x.message, m.Fill)
        ]
        for job in node.machine.jobs.values():
            given = [t for n in tasks if isinstance(t := job.tasks.get(n), FillTask)]
            now = job.pool.now
            for batch in _queued(node) if given else ():
                about = node.stream.readiness.about_s
                self.given += 1
                due = urgency(batch, now)
                ends = [urgency(t.batch, now, t.pieces[0].cost_us) for t in given]
                self.waiting += [(d, due) for d in ends if due < d - about]


def _queued(node: Node) -> Iterator[Batch]:
    for consumer in node.stream.consumers.values():
        yield from (batch for batch in consumer.batches if batch.queued)


@pytest.mark.parametrize("micro", [1, 4])
def test_what_is_due_first_is_decoded_first(micro: int) -> None:
    orders = Orders()
    case = msgspec.structs.replace(SMALL, micro=micro, demand=1.1)
    simulated(case, FULL, watcher=orders).run()
    assert orders.given > 100
    assert not orders.waiting


def test_without_deadlines_it_is_not() -> None:
    orders = Orders()
    case = msgspec.structs.replace(SMALL, micro=4, demand=1.1)
    simulated(case, SYSTEMS["no-deadlines"], watcher=orders).run()
    assert orders.waiting


class Lateness:
    """When every batch should be ready at the latest: from its grant on, the work that is due no later than
    it, and what workers have in hands, over the cores, and the longest part once more. What comes to be due
    no later than it counts, too: by being granted, or since its rank is late and does not ask."""

    def __init__(self, corpus: Corpus, cores: int) -> None:
        self._corpus, self._cores = corpus, cores
        self.granted: dict[tuple[int, Position], float] = {}
        self.work_us: dict[tuple[int, Position], float] = {}
        self.longest_us: dict[tuple[int, Position], float] = {}
        self.before: dict[tuple[int, Position], set[tuple[int, Position]]] = {}
        """What counts, by what it comes before."""

    def saw(self, node: Node, actions: list[a.Action]) -> None:
        """After every event."""
        del actions
        for job in node.machine.jobs.values():
            for consumer in (c for s in job.streams.values() for c in s.consumers.values()):
                consumer.first_queued(Worker(0, 0), job.pool)  # brings deadlines up to date
                for batch in consumer.batches:
                    if (consumer.rank, batch.at) not in self.granted:
                        self._granted(node, job, batch)
            if job.streams:
                self._overtaken(node, job)

    def _granted(self, node: Node, job: Job, new: Batch) -> None:
        about_s = node.stream.readiness.about_s
        pending = [b for c in node.stream.consumers.values() for b in c.batches]
        hands = [
            (task.batch, sum(self._us(task.batch, p) for p in task.pieces), (job.pool.now - w.since) * 1e6)
            for w in job.pool.workers.values()
            for task in w.tasks
            if isinstance(task, FillTask)
        ]
        sooner = [b for b in pending if b.due <= new.due + about_s]
        due = [us for b in sooner for us in self._queued(b)]
        key = (new.consumer.rank, new.at)
        self.granted[key] = job.pool.now
        self.work_us[key] = sum(due) + sum(us for _, us, _ in hands)
        self.longest_us[key] = max([*due, *(us for _, us, _ in hands)])
        self.before[key] = {(b.consumer.rank, b.at) for b in sooner}

    def _overtaken(self, node: Node, job: Job) -> None:
        """Count what is due no later than what waits, and was not."""
        now, about_s = job.pool.now, node.stream.readiness.about_s
        dues = [(urgency(b, now), (b.consumer.rank, b.at), b) for b in _queued(node)]
        for due, key, _ in dues:
            for sooner, other, batch in dues:
                if sooner <= due + about_s and other not in self.before[key]:
                    self.before[key].add(other)
                    work = self._queued(batch)
                    self.work_us[key] += sum(work)
                    self.longest_us[key] = max(self.longest_us[key], *work)

    def _queued(self, batch: Batch) -> list[float]:
        return [self._us(batch, piece) for _, _, _, piece in batch._queue]

    def _us(self, batch: Batch, piece: Piece) -> float:
        sample = batch.rows[piece.sample].id
        return self._corpus.part_us(sample, piece.begin, piece.end) + OPEN_US

    def latest(self, key: tuple[int, Position]) -> float:
        """When the batch of a rank and position should be ready."""
        us = self.work_us[key] / self._cores + (1 - 1 / self._cores) * self.longest_us[key]
        return self.granted[key] + us * 1e-6


def late_by(case: Case) -> list[tuple[float, float]]:
    """By batch: how far beyond that moment it was ready, and the longest part before it. Seconds."""
    corpus = Corpus(case)
    lateness = Lateness(corpus, case.cores)
    made = simulated(case, FULL, corpus, lateness)
    made.run()
    ready = {(b.rank, b.at): b.ready for b in made.nodes[0].stream.history.batches}
    return [(ready[k] - lateness.latest(k), lateness.longest_us[k] * 1e-6) for k in ready]


def test_a_batch_is_ready_when_the_work_before_it_allows() -> None:
    found = late_by(Case(steps=8))
    assert len(found) > 200
    # But for one part: a batch that is begun goes before one that is due an eighth of a window sooner.
    assert max(late / longest for late, longest in found) <= 1
    assert sum(late > 0.002 for late, _ in found) / len(found) < 0.05


@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("demand", [0.8, 1.2])
def test_on_few_cores_it_is_so_but_for_two_parts(micro: int, demand: float) -> None:
    # Deadlines move while a batch waits, and the second task of a worker waits for its first.
    found = late_by(msgspec.structs.replace(SMALL, micro=micro, demand=demand))
    assert max(late / longest for late, longest in found) <= 2
    assert sum(late > 0.002 for late, _ in found) / len(found) < 0.15


# ---- samples, clock, command ---------------------------------------------------------------------------


def test_rows_have_the_shares_that_decoding_takes() -> None:
    case = msgspec.structs.replace(SMALL, noise=0.0)
    corpus = Corpus(case)
    for sample in range(200):
        row = corpus.row(sample, oracle=False)
        assert len(row.segment_us) == len(row.cuts) + 1 == row.units == corpus.units(sample)
        whole = corpus.part_us(sample, 0, row.units)
        assert sum(row.segment_us) == pytest.approx(whole, abs=row.units)
        halves = [corpus.part_us(sample, a, b) for a, b in ((0, 1), (1, row.units))]
        assert sum(halves) == pytest.approx(whole)


def test_an_oracle_knows_what_others_guess() -> None:
    corpus = Corpus(SMALL)
    told, guessed = (
        [
            abs(math.log(sum(corpus.row(i, oracle=oracle).segment_us) / corpus.true_us[i]))
            for i in range(500)
            if corpus.tokens[i] > 50
        ]
        for oracle in (True, False)
    )
    assert max(told) < 0.01
    assert 0.15 < float(np.mean(guessed)) < 0.35


@pytest.mark.parametrize("demand", [0.6, 1.2])
def test_accelerators_are_as_fast_as_the_demand_says(demand: float) -> None:
    case = msgspec.structs.replace(SMALL, demand=demand)
    corpus = Corpus(case)
    taken = slice(case.last_step * case.per_step)
    cpu_us = corpus.true_us[taken].sum() + OPEN_US * case.last_step * case.per_step
    window_us = corpus.window_us * corpus.tokens[taken].sum() / case.ranks
    assert cpu_us / (case.cores * window_us) == pytest.approx(demand)


def test_skewed_sources_and_bursts_cost_more() -> None:
    plain, skewed, bursts = (
        Corpus(msgspec.structs.replace(SMALL, noise=0.0, **change)).true_us
        for change in ({}, {"skew": True}, {"bursts": True})
    )
    assert set(np.rint(skewed[::4] / plain[::4]).tolist()) == {3.0}
    assert set(np.rint(skewed[1::4] / plain[1::4]).tolist()) == {1.0}
    step = SMALL.per_step
    assert np.rint(bursts[: 8 * step : step] / plain[: 8 * step : step]).tolist() == [3, 3, 1, 1, 1, 1, 1, 1]


def test_time_goes_forward_and_equal_times_keep_their_order() -> None:
    clock, seen = Clock(), list[tuple[str, float]]()
    clock.after(2.0, lambda what: seen.append((what, clock.now)), "later")
    for name in ("first", "second"):
        clock.after(1.0, lambda what: seen.append((what, clock.now)), name)
    began = clock.now
    clock.run()
    assert seen == [("first", began + 1), ("second", began + 1), ("later", began + 2)]


def test_cases_have_names_of_their_own() -> None:
    cases = full(BASE)
    assert len({label(case) for case in cases}) == len(cases)
    assert label(BASE) == "c16_l3_d0.8_s1_m1"
    assert label(msgspec.structs.replace(BASE, lengths="omni", skew=True)) == "c16_l3_d0.8_omni_m1_skew"
    assert all(WARM_UP_STEPS % REGROUP == case.steps % REGROUP == 0 for case in cases)


def test_options_are_crossed_and_their_absence_is_a_selection() -> None:
    chosen = planned(BASE, {"cores": (8, 16), "demand": (0.8, 1.0)}, ())
    assert [(c.cores, c.demand) for c in chosen.cases] == [(8, 0.8), (8, 1.0), (16, 0.8), (16, 1.0)]
    assert chosen.systems == tuple(system.name for system in LADDER)
    assert planned(BASE, {}, ()).cases == tuple(short(BASE))
    assert any(concerned(case) for case in short(BASE))


def test_figures_have_what_targets_ask_for() -> None:
    results, shown = run(
        Plan(cases=(SMALL,), systems=(RANK_LOCAL.name, FULL.name), searched=(SMALL,)), Console(quiet=True)
    )
    assert {t.figure for t in TARGETS} <= set(results.figures)
    assert all(math.isfinite(value) for value in results.figures.values())
    assert results.figures[f"{label(SMALL)}_rank-local_to_rank_local"] == 1
    assert len(shown.renderables) == 4


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--cores", "8,x"], "no list of numbers"),
        (["--cores", "0"], "less than 1"),
        (["--micro", "3"], "do not make 3"),
        (["--full", "--cores", "8"], "leave out --cores"),
        (["--nodes", "2000"], "at most 1024"),
        (["--steps", "9"], "multiple of 8"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: list[str], problem: str) -> None:
    ran = CliRunner().invoke(main, ["simulate", *options])
    assert ran.exit_code == 2
    assert problem in " ".join(ran.output.split())


def test_a_system_is_what_its_name_says() -> None:
    assert System(name="x").policy.by_deadline
    assert not SYSTEMS["no-split"].policy.split
    assert not RANK_LOCAL.pooled
