"""Odd moments and odd peers: what must not end the daemon, and must not be blamed on the wrong one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from helixd.core import actions as a
from libhelix.errors import HelixError
from libhelix.wire import codec
from libhelix.wire import messages as m
from libhelix.wire.settings import FixedBatch, Position, RecipeSpec
from tests.helixd.core.node import Node
from tests.helixd.core.world import FakeTrainer, number, planned, settings, start_at

END = Position(0, 4, 0)


def _take_all(node: Node, trainer: FakeTrainer) -> None:
    while True:
        node.let_go(trainer, node.take(trainer))


def _lose_host(node: Node) -> None:
    host, node.host = node.host, None
    assert host is not None
    node.tell(a.Closed(host, "killed"))


def test_a_slow_describe_is_not_a_full_ring() -> None:
    node = Node(cores=1)
    t = node.attach(0, settings("stack", dp_size=1))
    node.by_hand.add(t)
    node.take(t)  # and keeps it, as every trainer does while it computes
    for _ in range(3000):
        node.step()
    node.hear(t)
    t.attachment.seek += 1
    t.progress.go_to(start_at(5, 0))
    t.outbox += [m.Release(t.attachment.loader, r.generation) for r, _ in t.inbox if isinstance(r, m.Ready)]
    t.inbox.clear()
    t.outbox.append(m.Seek(t.attachment.loader, t.progress.start.packed(), t.attachment.seek))
    node.ask(t)
    node.hear(t)
    (worker,) = [x for x in node.workers.values() if not x.dead]
    while worker.outbox or not isinstance(worker.inbox[0], m.Describe):
        node.worker_step(worker)
    node.wait(6.0)  # describing the first rows of epoch 5 takes six seconds
    assert not node.said(t.conn, m.Failed)


def test_a_host_that_cannot_be_started_fails_loaders_that_attach_afterwards() -> None:
    node = Node()
    conn = node.connect()
    node.tell(a.Received(conn, m.HostFailed("no python")))
    node.attach(0, settings("stack", dp_size=1), conn=conn)
    node.wait(60.0)
    assert node.said(conn, m.Failed) or len(node.said(conn, m.StartHost)) > 1


def test_a_loader_may_try_again_after_a_host_failed() -> None:
    node = Node(lockstep=False)
    first = node.attach(0, settings("stack", dp_size=1))
    node.tell(a.Received(first.conn, m.HostFailed("no python")))
    node.run_to_the_end()
    again = node.attach(0, settings("stack", dp_size=1), conn=first.conn)
    node.wait(60.0)
    assert len(node.said(again.conn, m.StartHost)) > 1


def test_workers_that_died_before_a_loader_came_are_forked_again_or_reported() -> None:
    node = Node(cores=1)
    conn = node.connect()
    node.start_host()
    for _ in range(4):
        node.kill_worker(next(x for x in node.workers.values() if not x.dead))
        while node.host_out:
            node.host_step()
    t = node.attach(0, settings("stack", dp_size=1), conn=conn)
    node.run(lambda: t.at >= END or t in node.raised, limit=3000)


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_corrupt_samples_at_the_very_start_are_masked(samples: int) -> None:
    node = Node()
    chosen = settings("stack", dp_size=1, batching=FixedBatch(samples))
    node.bad.update(planned(chosen)[Position(0, 0, 0)][0])
    t = node.attach(0, chosen)
    node.run(lambda: t.at >= END or t in node.raised)
    assert not node.raised


def test_on_bad_raise_is_at_one_position_also_when_takes_are_still_on_their_way() -> None:
    node = Node()
    chosen = settings("stack", on_bad="raise", ring=8)
    one, other = (node.attach(rank, chosen) for rank in range(2))
    bad = planned(chosen)[Position(0, 7, 0)][1][0]
    node.bad.add(bad)
    node.slow.add(bad)
    node.by_hand |= {one, other}
    late: list[Any] = []

    def take(t: Any) -> None:
        node.take(t)
        late.extend(x for x in t.outbox if isinstance(x, m.Took))
        t.outbox = type(t.outbox)(x for x in t.outbox if not isinstance(x, m.Took))

    while not all(
        any(isinstance(x, m.Ready) and x.at.step == 5 for x in node.told.get(t.conn, []))
        for t in (one, other)
    ):
        node.step()
    for t in (one, other) * 5 + (one,):  # one has taken batch 5, the other batch 4; the core knows of none
        take(t)
    node.slow.clear()
    while not node.said(one.conn, m.Failed):
        node.step()
    for t in (one, other):
        with pytest.raises(HelixError):
            _take_all(node, t)
    assert one.at == other.at


@pytest.mark.parametrize(
    ("schema", "row"),
    [
        (m.FieldSpec("x", "uint8", "pack", 2), {"shapes": ((),)}),
        (m.FieldSpec("x", "complex64", "stack", 1), {"shapes": ((3,),)}),
        (m.FieldSpec("x", "uint8", "stack", 2), {"shapes": ((1 << 61, 1 << 61),)}),
        (m.FieldSpec("x", "uint8", "stack", 1), {"shapes": ((3,),), "cuts": (1,), "segment_us": (9000,) * 6}),
        (m.FieldSpec("x", "uint8", "stack", 1), None),  # no row at all, and the task is said to be over
    ],
    ids=["ndim", "dtype", "bytes", "segments", "missing rows"],
)
def test_rows_that_make_no_sense_end_the_loader_and_not_the_daemon(schema: m.FieldSpec, row: Any) -> None:
    class Lying(Node):
        def _describe(self, worker: Any, task: m.Describe) -> None:
            base = {"costs": {}, "units": 4, "cuts": (1, 2, 3), "segment_us": (9000,) * 4}
            rows = () if row is None else tuple(m.Row(**{"id": i, **base, **row}) for i in task.ids)
            worker.outbox.append(
                codec.from_worker(codec.encode(m.Described(task.task, (schema,), rows, True)))
            )

    node = Lying()
    node.attach(0, settings("stack", dp_size=1))
    node.run(lambda: bool(node.raised), limit=3000)


def test_a_failed_describe_without_samples_is_not_the_daemons_end() -> None:
    class Lying(Node):
        def _describe(self, worker: Any, task: m.Describe) -> None:
            super()._describe(worker, task)
            (done,) = [x for x in worker.outbox if isinstance(x, m.Described) and x.last]
            worker.outbox.remove(done)
            worker.outbox.append(msgspec.structs.replace(done, last=False))
            worker.outbox.append(m.TaskFailed(task.task, False, "media", "x"))

    node = Lying()
    t = node.attach(0, settings("stack", dp_size=1))
    node.run(lambda: bool(node.raised) or t.at >= END)


@pytest.mark.parametrize("n", [1, 2])
def test_settings_that_make_no_sense_are_refused_and_not_the_daemons_end(n: int) -> None:
    node = Node()
    chosen = (
        settings("stack", recipe=RecipeSpec("m", "C", "{"))
        if n == 1
        else settings("stack", index_samples=1 << 61, dp_size=1 << 20, batching=FixedBatch(1 << 20))
    )
    node.attach(0, chosen)
    node.attach(1, chosen)


def test_nan_is_a_pad_value() -> None:
    class Nan(Node):
        def _describe(self, worker: Any, task: m.Describe) -> None:
            spec = m.FieldSpec("x", "float32", "pad", 1, pad_value=float("nan"))
            rows = tuple(m.Row(i, ((2,),), {}, 4, (1, 2, 3), (9000,) * 4) for i in task.ids)
            worker.outbox.append(codec.from_worker(codec.encode(m.Described(task.task, (spec,), rows, True))))

    node = Nan()
    node.attach(0, settings("stack", dp_size=1))
    node.run(lambda: bool(node.raised) or bool(node.arenas))
    assert not node.raised


def test_a_mask_that_fails_ends_the_loader() -> None:
    class NoMask(Node):
        def _fill(self, worker: Any, task: Any) -> None:
            if isinstance(task, m.Mask):
                worker.outbox.append(m.TaskFailed(task.task, False, "media", "cannot mask"))
            else:
                super()._fill(worker, task)

    node = NoMask()
    node.bad.add(planned(settings("stack"))[Position(0, 3, 0)][0][0])
    for rank in range(2):
        node.attach(rank, settings("stack"))
    node.run(lambda: len(node.raised) == 2, limit=5000)


def test_a_stuck_worker_whose_host_is_gone_does_not_make_the_daemon_spin() -> None:
    node = Node(cores=1)
    node.attach(0, settings("stack", dp_size=1))
    node.start_host()
    node.stuck.update(node.workers)  # in D state: neither its end nor its socket's is seen
    _lose_host(node)
    node.start_host()
    node.wait(59.0)
    _lose_host(node)
    node.wait(2.0)


def test_three_deaths_while_loading_over_a_long_job_are_not_the_recipes_fault() -> None:
    node = Node(cores=1)
    t = node.attach(0, settings("stack", dp_size=1))
    for n in range(3):
        reached = Position(0, 2 * n + 1, 0)
        node.run(lambda reached=reached: t.at >= reached)  # type: ignore[misc]  # bound now, on purpose
        for _ in range(2):  # one that works, and the one after it while it loads
            node.run(lambda: any(not x.dead for x in node.workers.values()))
            node.kill_worker(next(x for x in node.workers.values() if not x.dead))
            node.run(lambda: any(x.inbox for x in node.workers.values() if not x.dead) or bool(node.raised))
    node.run(lambda: t.at >= Position(0, 9, 0) or bool(node.raised))
    assert not node.raised


def test_ranks_that_are_not_in_step_all_get_their_turn() -> None:
    node = Node(cores=1, lockstep=False)
    chosen = settings("stack", dp_size=8, batching=FixedBatch(1), index_samples=400)
    ranks = [node.attach(rank, chosen) for rank in range(8)]
    for _ in range(12_000):
        node.step()
    taken = [number(chosen, t.at) for t in ranks]
    assert min(taken) > 0
    assert max(taken) <= 2 * min(taken) + 4


def test_a_host_is_asked_of_a_trainer_that_waits() -> None:
    node = Node()
    busy, waiting = (node.attach(rank, settings("stack")) for rank in range(2))
    node.run(lambda: all(t.at >= Position(0, 2, 0) for t in (busy, waiting)))
    node.by_hand |= {busy, waiting}
    node.tell(a.Received(busy.conn, m.Took(busy.attachment.loader, m.Taking(busy.at, 0))))
    node.tell(a.Received(waiting.conn, m.Ask(waiting.attachment.loader, waiting.at)))
    before = len(node.said(waiting.conn, m.StartHost))
    node.kill_host()
    assert len(node.said(waiting.conn, m.StartHost)) == before + 1


def test_a_process_that_comes_with_its_next_loader_waits_for_ranks_still_at_the_last() -> None:
    node = Node()
    first, second = settings("stack"), settings("pack")
    early, late = (node.attach(rank, first, name="eval") for rank in range(2))
    node.run(lambda: all(t.at >= Position(0, 1, 0) for t in (early, late)))
    node.tell(a.Received(early.conn, m.Detach(early.attachment.loader)))
    node.trainers.remove(early)
    again = node.attach(0, second, name="eval", conn=early.conn)
    assert not node.said(late.conn, m.Failed)
    node.tell(a.Received(late.conn, m.Detach(late.attachment.loader)))
    node.trainers.remove(late)
    other = node.attach(1, second, name="eval", conn=late.conn)
    node.run(lambda: all(t.at >= Position(0, 2, 0) for t in (again, other)))
    assert not node.raised


def test_two_deaths_on_parts_of_one_sample_are_deaths_of_that_sample() -> None:
    node = Node(cores=2)
    chosen = settings("stack", dp_size=1)
    sick = planned(chosen)[Position(0, 2, 0)][0][0]
    node.deadly.add(sick)
    t = node.attach(0, chosen)
    node.run(lambda: t.at >= Position(0, 6, 0))
    deaths = [text for text in node.logs if "ended by signal" in text]
    assert 2 <= len(deaths) <= 3  # the second part may have been running when the first had killed twice


@pytest.mark.parametrize("held_open", [False, True], ids=["late", "held open"])
def test_workers_that_are_seen_to_end_after_the_next_host_has_come_are_replaced(held_open: bool) -> None:
    node = Node(cores=2)
    t = node.attach(0, settings("stack", dp_size=1))
    node.run(lambda: t.at >= Position(0, 2, 0))
    late = [w for w in node.workers.values() if not w.dead]
    for worker in late:  # they die with their host; their sockets' ends are seen later, or never
        worker.dead = True
    _lose_host(node)
    node.start_host()
    if held_open:  # a child that a recipe forked
        node.wait(6.0)
    else:
        for worker in late:
            node.tell(a.WorkerClosed(worker.number))
    node.run(lambda: t.at >= Position(0, 8, 0))
    assert not node.raised


@pytest.mark.parametrize("batching", [FixedBatch(2), FixedBatch(2, regroup=2, max_bytes=1024)])
def test_a_rank_that_stands_still_does_not_hold_the_others(batching: FixedBatch) -> None:
    node = Node(lockstep=False)
    still, moving = (node.attach(r, settings("stack", batching=batching)) for r in range(2))
    node.by_hand.add(still)
    node.run(lambda: moving.at >= Position(4, 2, 0))
    assert node.take(still).at == Position(0, 0, 0)
    node.by_hand = {moving}
    node.run(lambda: still.at >= Position(4, 2, 0))


def test_what_is_due_does_not_wait_for_a_worker_whose_core_others_use() -> None:
    def seconds(slow: bool) -> float:
        node = Node(cores=3)
        trainers = [node.attach(r, settings("stack")) for r in range(2)]
        node.run(lambda: all(t.at >= Position(0, 2, 0) for t in trainers))
        if slow:
            node.starved.add(max(node.workers))
        began = node.now
        node.run(lambda: all(t.at >= Position(6, 0, 0) for t in trainers))
        return node.now - began

    assert seconds(slow=True) < 2.1 * seconds(slow=False)  # 2.5 where it waits
