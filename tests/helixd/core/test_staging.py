"""Samples that take longer than the ring looks ahead are begun early, once, and wherever that goes wrong are
decoded in their place."""

from __future__ import annotations

import random
from typing import Any

import pytest

from helixd.core.batch import Batch
from helixd.core.policy import Policy
from helixd.core.pool import Pool
from helixd.core.staging import Staging
from libhelix.wire import messages as m
from libhelix.wire.settings import FixedBatch, Position
from tests.helixd.core import world as w
from tests.helixd.core.node import Node


def _staging(world: w.World) -> Staging:
    (stream,) = (s for job in world.machine.jobs.values() for s in job.streams.values())
    return stream.staging


def _node(*, cores: int = 2, long: bool = True) -> Node:
    node = Node(cores=cores)
    node.long, node.window_us = long, 10_000
    return node


@pytest.mark.parametrize("layout", ["stack", "pad", "pack", "ragged"])
def test_long_samples_are_begun_before_their_batch_has_its_place(layout: str) -> None:
    world = w.World(random.Random(5), cores=3, long=True)
    ranks = [world.attach(rank, w.settings(layout)) for rank in range(2)]
    world.drain(Position(3, 0, 0))
    staging = _staging(world)
    assert world.copied > 5
    assert staging.begun >= world.copied
    stream = staging.stream
    assert 0 < staging.ring_bytes <= len(ranks) * stream.max_bytes
    for trainer in ranks:
        assert trainer.taken == sorted(w.planned(trainer.settings))[: len(trainer.taken)]


def _unstaged(node: Node, **changes: Any) -> None:
    node.attach(0, w.settings("stack", dp_size=1, **changes))
    node.drain(Position(2, 0, 0))
    assert node.copied == 0
    assert not node.made - set(node.workers)
    assert _staging(node).ledger is None


def test_short_samples_are_not() -> None:
    node = _node(long=False)
    node.window_us = 100_000
    _unstaged(node)


def test_nor_are_those_for_a_trainer_that_does_nothing() -> None:
    node = _node()
    node.window_us = 1000
    _unstaged(node)


def test_nor_are_those_of_a_ring_that_was_asked_to_be_small() -> None:
    _unstaged(_node(), ring=2)


def test_nor_those_of_a_chain() -> None:
    _unstaged(_node(), chains=2, shuffle=False, batching=FixedBatch(1))


def test_nor_where_policy_says_so() -> None:
    node = _node()
    node.machine.policy = Policy(stage=False)
    _unstaged(node)


def test_without_memory_for_them_the_loader_goes_on_as_if_there_were_none() -> None:
    node = _node()
    first: list[int] = []

    def reserve(asked: m.Reserve) -> Any:
        first.append(asked.arena)
        if len(first) > 1:
            return m.ReserveFailed(asked.arena, False, "the limit of the cgroup")
        return m.Reserved(asked.arena)

    node.reserve = reserve
    node.attach(0, w.settings("stack", dp_size=1))
    node.drain(Position(3, 0, 0))
    assert len(first) == 2
    assert node.copied == 0
    assert not node.raised
    assert set(node.arenas) == {first[0]}


def test_what_is_bad_is_masked_in_its_place_and_counted_once() -> None:
    node = _node(cores=3)
    node.bad = {1, 7, 20}
    trainer = node.attach(0, w.settings("stack", dp_size=1))
    node.drain(Position(2, 0, 0))
    assert node.copied > 0
    noted = sorted((bad.at.epoch, bad.sample) for bad in node.noted if bad.at.epoch < 2)
    assert noted == [(epoch, sample) for epoch in range(2) for sample in (1, 7, 20)]
    assert trainer.taken[:2] == [Position(0, 0, 0), Position(0, 1, 0)]


def test_a_deadly_sample_kills_few_more_workers_than_in_its_place() -> None:
    dead = []
    for seed in range(24):
        node = Node(cores=3, seed=seed)
        chosen = w.settings("stack", dp_size=1, index_samples=96)
        node.long, node.window_us = True, 10_000
        soon = [i for k in range(8, 16) for i in w.planned(chosen)[Position(0, k, 0)][0]]
        node.deadly = {[i for i in soon if i % 3][seed % 8]}  # of one part
        node.attach(0, chosen)
        node.drain(Position(0, 20, 0))
        assert not node.raised
        dead.append(sum(worker.dead for worker in node.workers.values()))
    # Two in its place; one more, where two died before the batch had its place, and who is killed beside it.
    assert max(dead) <= 4
    assert sum(dead) <= 3 * len(dead)


def test_what_copies_take_says_nothing_about_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    monkeypatch.setattr(Pool, "paced", lambda _, worker, *__: told.append(worker.tasks[0].decodes))
    world = w.World(random.Random(5), cores=3, long=True)
    for rank in range(2):
        world.attach(rank, w.settings("pad"))
    world.drain(Position(2, 0, 0))
    assert world.copied > 5
    assert told
    assert all(told)


def test_a_rank_that_goes_on_elsewhere_leaves_nothing() -> None:
    world = w.World(random.Random(3), cores=2, long=True)
    chosen = w.settings("pad", dp_size=1)
    trainer = world.attach(0, chosen)
    staging = None
    for _ in range(3000):
        world.step()
        staging = _staging(world)
        if staging.samples:
            break
    assert staging is not None
    assert staging.samples
    before = list(staging.samples.values())
    trainer.attachment.seek += 1
    target = w.start_at(5, 3, per_step=2)
    trainer.outbox.extend(trainer.attachment.forget_ready())
    trainer.outbox.append(m.Seek(trainer.attachment.loader, target.packed(), trainer.attachment.seek))
    trainer.progress.go_to(target)
    trainer.asked = False
    trainer.taken.clear()
    while trainer.outbox:
        world.step()
    assert not set(map(id, before)) & set(map(id, staging.samples.values()))
    world.drain(Position(6, 2, 0))
    assert all(sample.at >= target.at for sample in staging.samples.values())


def test_their_ring_goes_with_the_loader() -> None:
    node = _node()
    trainer = node.attach(0, w.settings("stack", dp_size=1))
    node.drain(Position(2, 0, 0))
    assert len(node.arenas) == 2
    node.kill_trainer(trainer)
    node.run(lambda: not node.arenas)


def test_who_waits_long_for_one_is_told_which() -> None:
    node = _node(cores=3)
    trainer = node.attach(0, w.settings("stack", dp_size=1))
    node.drain(Position(1, 0, 0))
    staging = _staging(node)

    def at_hand() -> set[int]:
        """Samples that a worker has before it."""
        fills = [x.inbox[0] for x in node.workers.values() if x.inbox and not x.outbox]
        ids = {p.id for fill in fills if isinstance(fill, m.Fill) for p in fill.pieces}
        return ids & {s.rows[0].id for s in staging.samples.values() if s.running}

    def awaited() -> list[Batch]:
        """Batches that are waited for, and wait for such a sample."""
        lent = [s for s in staging.samples.values() if s.lent is not None and s.rows[0].id in node.slow]
        return [s.final for s in lent if s.final.awaited and s.final.consumer.is_next(s.final)]

    node.run(lambda: bool(at_hand()))
    node.slow = at_hand()
    node.run(lambda: bool(awaited()))
    samples = {row.id for batch in awaited() for row in batch.rows}
    node.wait(40.0)
    (warning,) = node.said(trainer.conn, m.Warn)
    assert "has been decoding a sample for" in warning.text
    assert warning.sample in samples
