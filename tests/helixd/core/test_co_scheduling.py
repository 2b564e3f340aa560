"""What is decoded first, in which pieces, and on how many cores."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from helixd.core import actions as a
from helixd.core import stream
from helixd.core.batch import DescribeTask
from helixd.core.job import GRANTS_AT_ONCE
from helixd.core.policy import Policy
from libhelix.wire import messages as m
from libhelix.wire.settings import FixedBatch, Position
from tests.helixd.core import world as w
from tests.helixd.core.node import Node
from tests.helixd.core.world import FakeTrainer, FakeWorker, planned, settings, start_at


def _fills(node: Node) -> list[m.Fill]:
    """The fill tasks that workers have before them, in the order in which they got them."""
    waiting = (message for worker in node.workers.values() for message in worker.inbox)
    return [message for message in waiting if isinstance(message, m.Fill)]


def _quiet(node: Node) -> bool:
    job = node.machine.jobs[1, "j"]
    return not job.tasks and not node.plans and not any(s.describes for s in job.streams.values())


@pytest.mark.parametrize("micro", [1, 2], ids=["steps", "micro-batches"])
def test_what_is_due_first_is_decoded_first_though_another_rank_queued_before(micro: int) -> None:
    node = Node(cores=1, lockstep=False)
    chosen = settings("stack", ring=6, micro_batches=micro)
    early, late = (node.attach(rank, chosen) for rank in range(2))
    node.by_hand |= {early, late}
    held = {t: [node.take(t) for _ in range(2)] for t in (early, late)}
    node.run(lambda: _quiet(node) and not early.outbox and not late.outbox)

    def let_go(trainer: FakeTrainer) -> None:
        node.let_go(trainer, held[trainer].pop(0))
        node.hear(trainer)

    let_go(late)  # it has four batches before the one that there is room for now
    assert {f.arena for f in _fills(node)} == {late.arena}
    assert len(_fills(node)) == 1  # and another waits: the worker is given one task of 36 ms at a time
    for _ in range(2):
        held[early].append(node_take_now(node, early))
    for _ in range(3):
        let_go(early)  # it has two before those that there is room for
    done: list[m.Fill] = []
    (worker,) = [x for x in node.workers.values() if not x.dead]
    while fills := _fills(node):
        done.append(fills[0])
        while worker.outbox or worker.inbox[0] is not fills[0]:
            node.worker_step(worker)
        node.worker_step(worker)
        node.worker_step(worker)
    arenas = [f.arena for f in done]
    assert early.arena is not None
    begun = arenas.index(early.arena)
    assert begun == 1
    assert arenas[begun : begun + 2] == [early.arena] * 2  # its two samples, before what the other still has
    assert late.arena in arenas[begun + 2 :]


def node_take_now(node: Node, trainer: FakeTrainer) -> m.Ready:
    """`next()` of a trainer whose batch is there, without anything else happening."""
    while trainer.inbox:
        trainer.attachment.received(trainer.inbox.popleft()[0])  # type: ignore[arg-type]
    ready = trainer.attachment.take(trainer.at)
    assert ready is not None
    trainer.progress.took(ready.following, trainer.attachment.window)
    trainer.outbox.append(m.Took(trainer.attachment.loader, m.Taking(ready.at, 0)))
    trainer.attachment.held[ready.generation] = (ready.offset, ready.nbytes)
    node.hear(trainer)
    return ready


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(w, "UNIT_US", 100)


@pytest.mark.usefixtures("tiny")
def test_tiny_samples_are_given_to_a_worker_together() -> None:
    node = Node(cores=1)
    seen: list[int] = []

    class Counting(Node):
        def _fill(self, worker: FakeWorker, task: Any) -> None:
            seen.append(len(task.pieces))
            super()._fill(worker, task)

    node = Counting(cores=1)
    t = node.attach(0, settings("stack", dp_size=1, batching=FixedBatch(8)))
    node.run(lambda: t.at >= Position(1, 0, 0))
    assert set(seen) == {8}


@pytest.mark.usefixtures("tiny")
def test_a_sample_that_kills_is_found_among_those_given_together() -> None:
    died: list[tuple[int, bool]] = []

    class Counting(Node):
        def _fill(self, worker: FakeWorker, task: Any) -> None:
            super()._fill(worker, task)
            if worker.dead:
                died.append((len(task.pieces), task.suspect))

    node = Counting(cores=1)
    chosen = settings("stack", dp_size=1, batching=FixedBatch(8))
    sick = planned(chosen)[Position(0, 2, 0)][0][3]
    node.deadly.add(sick)
    t = node.attach(0, chosen)
    node.run(lambda: t.at >= Position(0, 4, 0))  # the world checks that it alone is masked
    assert died == [(8, False), (1, True), (1, True)]  # once with the others, then twice alone


@pytest.mark.usefixtures("tiny")
def test_bad_samples_among_those_given_together_are_masked_alone() -> None:
    node = Node(cores=2)
    chosen = settings("stack", dp_size=1, batching=FixedBatch(8))
    node.bad.update(planned(chosen)[Position(0, 1, 0)][0][1:3])
    t = node.attach(0, chosen)
    node.run(lambda: t.at >= Position(1, 0, 0))
    assert not [text for text in node.logs if "ended by" in text]


class Whole(Node):
    """Samples cannot be cut; `threads` says whether their recipe can use several cores."""

    threads = True

    def _describe(self, worker: FakeWorker, task: m.Describe) -> None:
        super()._describe(worker, task)
        for i, message in enumerate(worker.outbox):
            if isinstance(message, m.Described):
                rows = tuple(
                    msgspec.structs.replace(row, cuts=(), segment_us=(400_000,), threads=self.threads)
                    for row in message.rows
                )
                worker.outbox[i] = msgspec.structs.replace(message, rows=rows)


def _cores_of_first_fill(node: Node, samples: int) -> list[tuple[int, ...]]:
    node.attach(0, settings("stack", dp_size=1, batching=FixedBatch(samples), ring=1))
    node.run(lambda: bool(_fills(node)))
    return [fill.cores for fill in _fills(node)]


def test_an_idle_core_helps_with_a_long_sample_that_cannot_be_cut() -> None:
    assert _cores_of_first_fill(Whole(cores=2), samples=1) in ([(0, 1)], [(1, 0)])


def test_a_core_that_only_describes_helps_too() -> None:
    described = 0
    for seed in range(20):
        node = Whole(cores=2, seed=seed)
        node.attach(0, settings("stack", dp_size=1, batching=FixedBatch(1), ring=1))
        node.run(lambda node=node: bool(_fills(node)))  # type: ignore[misc]
        (job,) = node.machine.jobs.values()
        (fill,) = _fills(node)
        described += any(isinstance(task, DescribeTask) for task in job.tasks.values())
        assert len(fill.cores) == 2, seed
    assert described > 0


def test_no_core_helps_where_others_have_work_or_the_recipe_has_no_threads() -> None:
    assert _cores_of_first_fill(Whole(cores=2), samples=2) in ([(0, 1)], [(1, 0)], [(), ()])
    alone = Whole(cores=2)
    alone.threads = False
    assert _cores_of_first_fill(alone, samples=1) == [()]


def test_cores_that_helped_work_again_afterwards() -> None:
    node = Whole(cores=3)
    ranks = [node.attach(r, settings("stack", batching=FixedBatch(1))) for r in range(2)]
    node.run(lambda: all(t.at >= Position(1, 0, 0) for t in ranks))
    node.run(lambda: _quiet(node) or all(t.at >= Position(2, 0, 0) for t in ranks))
    (job,) = node.machine.jobs.values()
    lent = [x.lent for x in job.pool.workers.values() if x.lent is not None]
    assert all(number in job.tasks for number in lent)
    for worker in [x for x in node.workers.values() if not x.dead]:
        node.kill_worker(worker)  # also under tasks that others help with
    node.run(lambda: all(t.at >= Position(4, 0, 0) for t in ranks))


def test_who_waits_for_long_is_told_for_which_sample() -> None:
    node = Node(cores=1)
    chosen = settings("stack", dp_size=1)
    slow = planned(chosen)[Position(0, 2, 0)][0][1]
    node.slow.add(slow)
    t = node.attach(0, chosen)
    node.run(lambda: t.at >= Position(0, 2, 0) and t.asked and not t.outbox)
    for _ in range(300):
        node.step()
    node.wait(31.0)
    late = [said for said in node.said(t.conn, m.Warn) if "late" in said.text]
    assert [said.sample for said in late] == [slow]
    assert "step 2 of epoch 0 is 30 s late: the worker on core 0" in late[0].text
    node.wait(20.0)
    assert len([said for said in node.said(t.conn, m.Warn) if "late" in said.text]) == 1
    node.slow.clear()
    node.run(lambda: t.at >= Position(0, 4, 0))


def test_who_waits_for_rows_is_told_so() -> None:
    node = Node(cores=1)
    t = node.attach(0, settings("stack", dp_size=1))
    node.run(lambda: t.asked and not t.outbox and node.host is not None)
    node.stuck.update(node.workers)
    for _ in range(50):
        node.step()
    node.wait(31.0)
    (late,) = node.said(t.conn, m.Warn)
    assert "samples are being described" in late.text


@pytest.mark.parametrize(
    ("wait_us", "window_us", "warnings"), [(0, 50_000, 0), (50_000, 50_000, 1), (50_000, 0, 0)]
)
def test_a_ring_that_limits_is_told_once_with_the_number_to_set(
    wait_us: int, window_us: int, warnings: int
) -> None:
    node = Node(cores=2)
    t = node.attach(0, settings("stack", dp_size=1, ring=1))
    node.by_hand.add(t)
    for _ in range(40):
        held = node.take(t, wait_us, window_us)
        node.hear(t)
        node.run(lambda: _quiet(node))
        node.let_go(t, held)  # only now is there room for the next, and both cores have been idle
        node.hear(t)
    told = [w.text for w in node.said(t.conn, m.Warn)]
    assert len(told) == warnings
    assert all("set ring=3" in text for text in told)


def test_a_large_empty_ring_is_filled_with_batches_a_few_at_a_time_and_all_of_it() -> None:
    node = Node(cores=1)
    chosen = settings("stack", dp_size=1, batching=FixedBatch(1), ring=50, micro_batches=30)
    t = node.attach(0, chosen)
    node.by_hand.add(t)
    (job,) = node.machine.jobs.values()
    (consumer,) = job.streams["train"].consumers.values()
    granted = [0]
    for _ in range(4000):
        node.step()
        granted.append(len(consumer.batches) + consumer.delivered)
        if node.machine.deadline() is not None and node.machine.deadline() == -math.inf:
            node.tell(a.Tick())
            granted.append(len(consumer.batches) + consumer.delivered)
    assert max(after - before for before, after in pairwise(granted)) == GRANTS_AT_ONCE
    assert granted[-1] >= 50


def test_a_long_window_is_described_a_part_at_a_time_and_all_of_it_also_after_a_seek(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "DRAWN_AT_ONCE", 3)
    node = Node()
    ranks = [node.attach(r, settings("stack", batching=FixedBatch(2, regroup=4))) for r in range(2)]
    node.run(lambda: all(t.at >= Position(1, 3, 0) for t in ranks))
    for t in ranks:
        t.attachment.seek += 1
        t.progress.go_to(start_at(5, 0))
        t.asked = False
        t.outbox.extend(t.attachment.forget_ready())
        t.outbox.append(m.Seek(t.attachment.loader, t.progress.start.packed(), t.attachment.seek))
    node.run(lambda: all(t.at >= Position(6, 3, 0) for t in ranks))
    assert not node.raised


@pytest.mark.parametrize("seed", range(12))
def test_whole_batches_go_on_though_another_worker_has_nothing_to_do(seed: int) -> None:
    node = Node(cores=2, seed=seed)
    node.machine.policy = Policy(by_deadline=False, split=False, by_piece=False)
    ranks = [node.attach(r, settings("stack", batching=FixedBatch(4), ring=1)) for r in range(2)]
    node.run(lambda: all(t.at >= Position(2, 0, 0) for t in ranks), limit=4000)
    assert not node.raised


@pytest.mark.usefixtures("tiny")
def test_tiny_samples_are_shared_out_where_workers_are_idle() -> None:
    seen: list[int] = []

    class Counting(Node):
        def _fill(self, worker: FakeWorker, task: Any) -> None:
            seen.append(len(task.pieces))
            super()._fill(worker, task)

    node = Counting(cores=2)
    t = node.attach(0, settings("stack", dp_size=1, batching=FixedBatch(8), ring=1))
    node.run(lambda: t.at >= Position(1, 0, 0))
    assert 4 in seen  # 8 where the other one is describing


def test_who_waits_comes_before_who_is_past_its_time_and_does_not_ask() -> None:
    node = Node()
    node.attach(0, settings("stack", dp_size=1))
    (job,) = node.machine.jobs.values()
    stream = SimpleNamespace(readiness=SimpleNamespace(about_s=0.01))

    def batch(due: float, *, waits: bool, queued_us: int = 1000) -> Any:
        consumer = SimpleNamespace(stream=stream, last_turn=0)
        due_too = {"due": due, "begin_by": due, "awaited": waits}
        return SimpleNamespace(**due_too, consumer=consumer, began=None, longest_queued_us=queued_us)

    silent, waiting = batch(5.0, waits=False, queued_us=9000), batch(99.0, waits=True)
    assert job.dispatch._due_first([silent, waiting], 100.0) is waiting
    later = batch(101.0, waits=False)
    assert job.dispatch._due_first([later, silent], 100.0) is silent
    assert job.dispatch._due_first([batch(100.5, waits=False), later], 100.0).due == 100.5


def test_a_question_that_crosses_its_batch_is_no_waiting() -> None:
    node = Node(cores=1)
    t = node.attach(0, settings("stack", dp_size=1))
    node.by_hand.add(t)
    node.let_go(t, node.take(t))
    node.hear(t)
    node.run(lambda: _quiet(node))
    node.ask(t)  # its batch is in its inbox
    node.hear(t)
    node.wait(40.0)
    assert not node.said(t.conn, m.Warn)


def test_a_loader_that_cannot_keep_up_does_not_starve_another_of_its_job() -> None:
    node = Node(cores=1)
    busy = node.attach(0, settings("stack", dp_size=1), name="busy")
    calm = node.attach(0, settings("stack", dp_size=1), name="calm")
    node.by_hand.add(calm)
    minute_us = 60_000_000  # it computes for so long: the other is due before it, always
    held = [node.take(calm, window_us=minute_us)]
    for _ in range(6):
        held.append(node.take(calm, window_us=minute_us))
        node.let_go(calm, held.pop(0))
        node.hear(calm)
        reached = len(busy.taken)
        node.run(lambda reached=reached: len(busy.taken) >= reached + 4)  # type: ignore[misc]
        while calm.inbox:
            calm.attachment.received(calm.inbox.popleft()[0])  # type: ignore[arg-type]
        assert any(isinstance(x, m.Ready) for x in calm.attachment._ready), "its next batch is not there"


def test_a_loader_that_comes_later_has_no_claim_on_what_others_got_before() -> None:
    node = Node(cores=1)
    first, second = (node.attach(0, settings("stack", dp_size=1), name=name) for name in ("a", "b"))
    node.run(lambda: min(len(first.taken), len(second.taken)) >= 30)
    late = node.attach(0, settings("stack", dp_size=1), name="c")
    node.run(lambda: len(late.taken) >= 2)
    before = len(first.taken), len(late.taken)
    node.run(lambda: len(late.taken) >= before[1] + 10)
    assert len(first.taken) >= before[0] + 5, "it gets its share, too"
