"""The core under generated histories, always with a drain: everything that started was delivered."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libhelix.wire import messages as m
from libhelix.wire.settings import Batching, Buckets, FixedBatch, Position, TokenBudget
from tests.helixd.core import world as w

seeds = st.integers(0, 2**32 - 1)
layouts = st.sampled_from(sorted(w.SCHEMAS))
batchings = st.sampled_from(
    [
        FixedBatch(2, regroup=3, max_bytes=1024),
        FixedBatch(3, per_step=4, max_bytes=1024),
        TokenBudget(30, max_bytes=1024),
        TokenBudget(25, max_samples=3, max_bytes=1024, regroup=2),
        TokenBudget(40, max_bytes=1024, per_step=1, regroup=1),
        Buckets(30, max_samples=4, max_bytes=1024),
        Buckets(20, max_samples=2, max_bytes=1024, same_kind="step", regroup=4),
    ]
)
ends = st.sampled_from(["drop", "pad"])
many = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _expect_whole(trainer: w.FakeTrainer, start: Position) -> None:
    """It took every position from its start on, each once, in order."""
    order = sorted(w.planned(trainer.settings))
    first = order.index(start)
    assert trainer.taken == order[first : first + len(trainer.taken)]


@many
@given(seeds, layouts, st.integers(0, 9), st.integers(1, 3))
def test_every_batch_comes_once_and_in_order_however_many_are_held(
    seed: int, layout: str, keep: int, micro: int
) -> None:
    world = w.World(random.Random(seed), cores=1 + seed % 3, long=seed % 2 > 0)
    chosen = w.settings(layout, micro_batches=micro)
    ranks = [world.attach(rank, chosen) for rank in range(2)]
    world.drain(Position(1, 2, 0), keep=keep)
    for trainer in ranks:
        _expect_whole(trainer, Position(0, 0, 0))
        if keep == 0:
            assert trainer.copies == 0


@many
@given(seeds, layouts, batchings, ends, st.integers(1, 2))
def test_every_batching_comes_whole_to_every_rank(
    seed: int, layout: str, batching: Batching, end: str, micro: int
) -> None:
    world = w.World(random.Random(seed), long=seed % 2 > 0)
    chosen = w.settings(layout, batching=batching, end=end, micro_batches=micro)
    ranks = [world.attach(rank, chosen) for rank in range(2)]
    world.drain(Position(2, 1, 0), keep=seed % 4)
    for trainer in ranks:
        _expect_whole(trainer, Position(0, 0, 0))


@many
@given(
    seeds, layouts, st.integers(0, 5), st.one_of(st.just(FixedBatch(2)), batchings), ends, st.integers(1, 2)
)
def test_killed_workers_hosts_and_trainers_lose_nothing(
    seed: int, layout: str, keep: int, batching: Batching, end: str, micro: int
) -> None:
    rng = random.Random(seed)
    world = w.World(rng, long=seed % 2 > 0)
    chosen = w.settings(layout, batching=batching, end=end, micro_batches=micro)
    starts = {}
    for rank in range(2):
        trainer = world.attach(rank, chosen)
        starts[trainer.conn] = trainer.at
    for _ in range(rng.randrange(600)):
        world.step(keep)
        fault = rng.random()
        if fault < 0.01:
            # Some that have worked: those that die before their first task are another promise.
            alive = [x for x in world.workers.values() if not x.dead and x.layouts]
            for worker in rng.sample(alive, rng.randint(0, len(alive))):
                world.kill_worker(worker, seen=rng.random() < 0.5)
        elif fault < 0.013 and world.host is not None and all(t.taken for t in world.trainers):
            world.kill_host()
        elif fault < 0.02:
            victim = rng.choice(world.trainers)
            world.kill_trainer(victim)
            back = world.attach(victim.rank, chosen, start=victim.progress.start)
            starts[back.conn] = back.at
    world.drain(Position(1, 1, 0), keep=keep)
    for trainer in world.trainers:
        _expect_whole(trainer, starts[trainer.conn])


@many
@given(seeds, layouts)
def test_bad_and_deadly_samples_are_masked_and_nothing_else(seed: int, layout: str) -> None:
    rng = random.Random(seed)
    world = w.World(rng, long=seed % 2 > 0)
    world.bad = set(rng.sample(range(40), 3))
    world.deadly = {rng.randrange(40)} - world.bad
    chosen = w.settings(layout)
    ranks = [world.attach(rank, chosen) for rank in range(2)]
    world.drain(Position(1, 0, 0))
    for trainer in ranks:
        _expect_whole(trainer, Position(0, 0, 0))


@many
@given(seeds, layouts, st.integers(0, 2))
def test_replicas_of_a_rank_get_the_same_batches_from_one_decoding(seed: int, layout: str, keep: int) -> None:
    world = w.World(random.Random(seed), long=seed % 2 > 0)
    chosen = w.settings(layout, dp_size=1, replicas=2, ring=12)
    pair = [world.attach(0, chosen, replica=r) for r in range(2)]
    world.drain(Position(0, 8, 0), keep=keep)
    for trainer in pair:
        _expect_whole(trainer, Position(0, 0, 0))
    (consumer,) = world.machine.jobs[1, "j"].rings.held.values()
    furthest = max(w.number(chosen, t.at) for t in pair)
    assert consumer.delivered <= furthest + 12  # each position once, not once per replica


@many
@given(seeds, layouts)
def test_seeking_goes_to_the_new_position_and_brings_nothing_old(seed: int, layout: str) -> None:
    rng = random.Random(seed)
    world = w.World(rng, long=seed % 2 > 0)
    chosen = w.settings(layout, dp_size=1)
    trainer = world.attach(0, chosen)
    for _ in range(rng.randrange(400)):
        world.step()
    target = w.start_at(rng.randrange(3), rng.randrange(20), per_step=2)
    trainer.attachment.seek += 1
    trainer.outbox.extend(trainer.attachment.forget_ready())
    trainer.outbox.append(m.Seek(trainer.attachment.loader, target.packed(), trainer.attachment.seek))
    trainer.progress.go_to(target)
    trainer.asked = False
    trainer.taken.clear()
    world.drain(Position(target.at.epoch + 1, 2, 0))
    _expect_whole(trainer, target.at)


@many
@given(seeds)
def test_train_and_eval_loaders_of_one_process_live_side_by_side(seed: int) -> None:
    rng = random.Random(seed)
    world = w.World(rng, long=seed % 2 > 0)
    train, evaluate = w.settings("pack"), w.settings("stack", shuffle=False, index_samples=16)
    for rank in range(2):
        trainer = world.attach(rank, train)
        world.attach(rank, evaluate, name="eval", conn=trainer.conn)
    world.drain(Position(1, 1, 0))
    for trainer in world.trainers:
        _expect_whole(trainer, Position(0, 0, 0))


class _Watched(w.World):
    """Notes which sample was begun by which worker, in which order."""

    def __init__(self, rng: random.Random, cores: int) -> None:
        super().__init__(rng, cores)
        self.begun: dict[tuple[int, int], list[int]] = {}
        """By worker and chain."""
        self.chains = 0

    def _fill(self, worker: w.FakeWorker, task: m.Fill | m.Mask) -> None:
        if isinstance(task, m.Fill):
            for piece in task.pieces:
                key = worker.number, piece.id % self.chains
                order = self.begun.setdefault(key, [])
                if piece.id not in order[-1:]:
                    order.append(piece.id)
        super()._fill(worker, task)


@many
@given(seeds, st.integers(1, 6), st.integers(1, 2), st.integers(0, 1))
def test_a_chain_is_made_by_one_worker_in_its_order_and_ranks_have_chains_of_their_own(
    seed: int, chains: int, micro: int, kills: int
) -> None:
    rng = random.Random(seed)
    world = _Watched(rng, cores=1 + seed % 3)
    world.chains = 2 * chains
    chosen = w.settings(
        "stack", batching=FixedBatch(1), shuffle=False, chains=2 * chains, micro_batches=micro, ring=4
    )
    ranks = [world.attach(rank, chosen) for rank in range(2)]
    for _ in range(kills):
        for _ in range(rng.randrange(200)):
            world.step()
        alive = [worker for worker in world.workers.values() if not worker.dead]
        if alive:
            world.kill_worker(rng.choice(alive))
    world.drain(Position(1, 3, 0))
    for trainer in ranks:
        _expect_whole(trainer, Position(0, 0, 0))
    for ids in w.planned(chosen).values():
        assert all(i % 2 == rank for rank, its in enumerate(ids) for i in its)
    lives: dict[int, set[int]] = {}
    for (worker, chain), order in world.begun.items():
        lives.setdefault(chain, set()).add(worker)
        steps = [b - a for a, b in pairwise(order)]
        # Two of a chain at a time, where a rank has several micro-batches: nearly in order.
        assert sum(step < 0 for step in steps) <= 3, order  # epochs begin anew
    assert all(len(workers) <= 1 + kills for workers in lives.values())
