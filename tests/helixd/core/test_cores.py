"""Which cores a job owns, and that workers come and go with them without losing a batch."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helixd.core import actions as a
from helixd.core.cores import Share, share
from helixd.core.pool import Pool
from libhelix.wire import messages as m
from libhelix.wire.settings import FixedBatch, Position, Start
from tests.helixd.core import world as w
from tests.helixd.core.node import Node

some = st.frozensets(st.integers(0, 15), min_size=1)
maybe = st.one_of(st.none(), some)
many = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _cores(text: str) -> frozenset[int]:
    first, _, last = text.partition("-")
    return frozenset(range(int(first), int(last or first) + 1))


# ---- the share ---------------------------------------------------------------------------------------------


@given(
    st.lists(some, min_size=1, max_size=5),
    maybe,
    maybe,
    st.one_of(st.none(), st.integers(1, 20_000)),
    st.one_of(st.none(), st.integers(0, 9)),
    st.randoms(use_true_random=False),
)
def test_a_share_is_some_core_that_all_allow_within_the_limit_whatever_the_order_of_trainers(
    trainers: list[frozenset[int]],
    host: frozenset[int] | None,
    allowed: frozenset[int] | None,
    limit_millis: int | None,
    reserve: int | None,
    order: random.Random,
) -> None:
    def of(ranks: list[frozenset[int]]) -> Share:
        return share(ranks, host=host, limit_millis=limit_millis, allowed=allowed, reserve=reserve)

    found = of(trainers)
    seen = frozenset().union(*trainers)
    here = (seen & host or host) if host else seen
    assert found.owned
    assert found.owned <= here
    assert not found.owned & found.reserved
    assert found.outside == (allowed is not None and not here & allowed)
    if allowed is not None and not found.outside:
        assert found.owned <= allowed
    if limit_millis is not None:
        assert len(found.owned) <= max(1, -(-limit_millis // 1000))
    assert found.reserved <= here & seen
    if reserve is not None:
        assert len(found.reserved) <= reserve * len(trainers)
    elif not allowed:
        assert len(found.reserved) <= len(here) / 4
    assert of(order.sample(trainers, len(trainers))) == found


@given(st.lists(some, min_size=1, max_size=5), st.integers(0, 3), st.data())
def test_a_falling_limit_takes_cores_away_and_gives_none(
    trainers: list[frozenset[int]], reserve: int, data: st.DataObject
) -> None:
    more = data.draw(st.integers(1, 20_000))
    less = data.draw(st.integers(1, more))
    before = share(trainers, limit_millis=more, reserve=reserve)
    after = share(trainers, limit_millis=less, reserve=reserve)
    assert after.owned <= before.owned | before.reserved
    assert len(after.owned) <= len(before.owned)


@pytest.mark.parametrize(
    ("trainers", "options", "owned", "reserved"),
    [
        (["0-3"], {}, "1-3", [0]),
        (["0-2"], {}, "0-2", []),
        (["0-7"] * 2, {}, "2-7", [0, 1]),
        (["0-7"] * 3, {}, "0-7", []),
        (["0-7"] * 3, {"reserve": 1}, "3-7", [0, 1, 2]),
        (["0-1"], {"reserve": 5}, "1", [0]),
        (["0-7"], {"reserve": 0}, "0-7", []),
        (["0-15"], {"allowed": _cores("2-15")}, "2-15", [0]),  # core 0 is free as it is
        (["0-15"], {"limit_millis": 4000}, "1-3", [0]),
        (["0-15"], {"limit_millis": 3001}, "1-3", [0]),
        (["0-15"], {"limit_millis": 100}, "0", []),
        (["0-7"], {"host": _cores("4-11")}, "5-7", [4]),
        (["0-7"], {"host": _cores("8-9")}, "8-9", []),  # the ranks' own word is outdated
    ],
)
def test_what_is_left_to_trainers(
    trainers: list[str], options: dict[str, object], owned: str, reserved: list[int]
) -> None:
    found = share([_cores(t) for t in trainers], **options)  # type: ignore[arg-type]
    assert (sorted(found.owned), sorted(found.reserved)) == (sorted(_cores(owned)), reserved)


def test_every_rank_has_a_free_core_of_its_own_and_cores_near_it_where_few_are_left() -> None:
    ranks = [_cores("0-7"), _cores("8-15")]
    assert share(ranks).reserved == {0, 8}
    assert share(ranks, limit_millis=6000, reserve=1).owned == {1, 9, 2, 10}


# ---- workers come and go -----------------------------------------------------------------------------------


def _pool(node: Node) -> Pool:
    return node.machine.jobs[1, "j"].pool


def _at_work(node: Node) -> list[int]:
    return sorted(x.core for x in node.workers.values() if not x.dead)


def _until_at_work(node: Node, *cores: int) -> None:
    node.run(lambda: _at_work(node) == list(cores), keep=2)


def test_workers_follow_the_cpuset_of_the_host_down_and_up() -> None:
    node = Node(cores=3)
    trainer = node.attach(0, w.settings("stack", dp_size=1))
    _until_at_work(node, 0, 1, 2)
    node.limit_host((1, 5))
    _until_at_work(node, 1)
    assert _pool(node).count() == 1
    at = trainer.at
    node.run(lambda: trainer.at.step > at.step + 2)
    node.limit_host((0, 1, 2))
    _until_at_work(node, 0, 1, 2)
    assert node.status()["jobs"][0]["cores"] == {"owned": [0, 1, 2], "reserved": [], "limit": None}


def test_no_more_workers_are_forked_than_the_limit_of_the_host_that_comes() -> None:
    node = Node(cores=8)
    node.limit_host(tuple(range(8)), 2500)
    node.attach(0, w.settings("stack", dp_size=1))
    assert _pool(node).count() == 7
    node.start_host()
    assert _at_work(node) == [0, 1, 2]
    node.limit_host(tuple(range(8)), 4000)
    _until_at_work(node, 1, 2, 3)
    assert node.status()["jobs"][0]["cores"] == {"owned": [1, 2, 3], "reserved": [0], "limit": 4.0}


def test_cores_of_a_trainer_go_with_it_and_a_new_one_gets_a_free_core() -> None:
    node = Node(cores=4)
    chosen = w.settings("stack", dp_size=1)
    node.attach(0, chosen)
    node.host_cores = tuple(range(8))
    _until_at_work(node, 1, 2, 3)
    node.cores = (4, 5, 6, 7)
    second = node.attach(0, chosen, name="eval")
    _until_at_work(node, 1, 2, 3, 5, 6, 7)
    node.kill_trainer(second)
    _until_at_work(node, 1, 2, 3)


def test_workers_follow_a_trainer_that_is_moved() -> None:
    node = Node(cores=2)
    node.host_cores = (0, 1, 2)
    trainer = node.attach(0, w.settings("stack", dp_size=1))
    _until_at_work(node, 0, 1)
    trainer.outbox.append(m.Cores((1, 2)))
    _until_at_work(node, 1, 2)


def _retiring(node: Node, core: int) -> w.FakeWorker:
    """The worker of a core that is given up while it has tasks."""
    node.attach(0, w.settings("stack", dp_size=1))
    held = _pool(node)
    node.run(lambda: core in held.cores and (its := held.cores[core].worker) is not None and bool(its.tasks))
    (worker,) = [x for x in node.workers.values() if x.core == core]
    node.stuck.add(worker.number)
    node.limit_host(tuple(c for c in range(2) if c != core))
    node.run(lambda: held.workers[worker.number].retiring)
    return worker


def test_a_retiring_worker_ends_what_it_has_and_gets_nothing_more() -> None:
    node = Node()
    worker = _retiring(node, 1)
    tasks = len(_pool(node).workers[worker.number].tasks)
    for _ in range(500):
        node.step()
    assert len(_pool(node).workers[worker.number].tasks) == tasks
    node.stuck.clear()
    _until_at_work(node, 0)
    node.run(lambda: worker.number not in _pool(node).workers)
    assert not any("ended" in line for line in node.logs)
    node.drain(Position(1, 0, 0))


def test_a_retiring_worker_whose_core_comes_back_stays() -> None:
    node = Node()
    worker = _retiring(node, 1)
    node.limit_host((0, 1))
    node.run(lambda: not _pool(node).workers[worker.number].retiring)
    node.stuck.clear()
    node.drain(Position(1, 0, 0))
    assert not worker.dead


def test_the_tasks_of_a_retiring_worker_that_dies_return_and_its_core_stays_empty() -> None:
    node = Node()
    worker = _retiring(node, 1)
    node.kill_worker(worker)
    node.drain(Position(1, 0, 0))
    assert _at_work(node) == [0]
    assert not node.raised


def test_an_idle_worker_that_is_let_go_is_nobodys_fault() -> None:
    node = Node()
    node.attach(0, w.settings("stack", dp_size=1))
    node.start_host()
    for _ in range(20):  # far more often than workers may die before their first task
        node.tell(a.Received(node.host or 0, m.Cores((0,))))
        node.tell(a.Received(node.host or 0, m.Cores((0, 1))))
        while node.host_out:
            node.host_step()
    assert not any("ended" in line for line in node.logs)
    node.drain(Position(1, 0, 0))


def test_a_trainer_cannot_speak_for_the_host() -> None:
    node = Node()
    trainer = node.attach(0, w.settings("stack", dp_size=1))
    node.start_host()
    node.tell(a.Received(trainer.conn, m.Cores((0, 1), 1)))
    assert _pool(node).share.owned == {0, 1}


@many
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(w.SCHEMAS)), st.sampled_from([None, 0, 1, 2]))
def test_cores_come_and_go_and_every_trainer_gets_all_its_batches(
    seed: int, layout: str, reserve: int | None
) -> None:
    rng = random.Random(seed)
    world = w.World(rng, cores=6)
    world.machine.reserve = reserve
    chosen = w.settings(layout)
    starts = {}

    def attach(rank: int, start: Start) -> None:
        world.cores = _some_cores(rng)
        trainer = world.attach(rank, chosen, start=start)
        starts[trainer.conn] = start.at

    for rank in range(2):
        attach(rank, w.start_at(0, 0))
    for _ in range(rng.randrange(600)):
        world.step()
        event = rng.random()
        if event < 0.03:
            world.limit_host(_some_cores(rng), rng.choice([None, rng.randrange(1, 7000)]))
        elif event < 0.06:
            rng.choice(world.trainers).outbox.append(m.Cores(_some_cores(rng)))
        elif event < 0.07:
            # Of those at work: one that dies before its first task is another promise.
            able = [x for x in world.workers.values() if not x.dead and x.layouts]
            if able:
                world.kill_worker(rng.choice(able))
        elif event < 0.073 and world.host is not None and all(t.taken for t in world.trainers):
            world.kill_host()
        elif event < 0.08:
            victim = rng.choice(world.trainers)
            world.kill_trainer(victim)
            attach(victim.rank, victim.progress.start)
    world.drain(Position(1, 1, 0))
    for trainer in world.trainers:
        order = sorted(w.planned(chosen))
        first = order.index(starts[trainer.conn])
        assert trainer.taken == order[first : first + len(trainer.taken)]
    (job,) = world.machine.jobs.values()
    for _ in range(3000):
        world.step()
        alive = {x.core for x in world.workers.values() if not x.dead}
        if world.host is not None and alive == job.pool.share.owned and not world.host_out:
            return
    raise AssertionError(f"workers on {sorted(alive)}, owned are {sorted(job.pool.share.owned)}")


def _some_cores(rng: random.Random) -> tuple[int, ...]:
    return tuple(sorted(rng.sample(range(6), rng.randrange(1, 7))))


def test_a_ring_is_touched_on_the_cores_of_its_trainer() -> None:
    """Memory lies near to who touches it first."""
    node = Node(cores=4)
    asked: list[tuple[int, ...]] = []

    def reserve(message: m.Reserve) -> m.Reserved:
        asked.append(message.cores)
        return m.Reserved(message.arena)

    node.reserve = reserve
    for rank, cores in enumerate([(0, 1), (2, 3)]):
        node.cores = cores
        node.attach(rank, w.settings("stack"))
    node.run(lambda: len(asked) == 2)
    assert sorted(asked) == [(0, 1), (2, 3)]


def test_when_a_core_comes_chains_stay_with_their_workers_but_for_its_part() -> None:
    node = Node(cores=4)
    node.limit_host((0, 1))
    chains = w.settings(
        "stack", batching=FixedBatch(1), shuffle=False, chains=4, dp_size=1, ring=8, index_samples=400
    )
    trainer = node.attach(0, chains)
    _until_at_work(node, 0, 1)
    node.run(lambda: trainer.at.step > 8)
    pool, number = _pool(node), node.machine.jobs[1, "j"].streams["train"].number
    before = [pool.home(number, chain) for chain in range(4)]
    node.limit_host((0, 1, 2))
    _until_at_work(node, 0, 1, 2)
    after = [pool.home(number, chain) for chain in range(4)]
    assert sum(a is not b for a, b in zip(before, after)) == 1
    at = trainer.at
    node.run(lambda: trainer.at.step > at.step + 8)
