"""What users see when something dies, does not fit, or never comes; and that it is never a hang."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from helixd.core import actions as a
from helixd.core.job import STARVED_LIMIT_S
from helixd.core.pool import CHAIN_LIMIT_S, TASK_LIMIT_S
from libhelix.errors import (
    MediaError,
    OutOfSharedMemory,
    Oversize,
    RecipeError,
    RecipeNotImportable,
    RingFull,
    TooManyBadSamples,
    WorkerHostLost,
)
from libhelix.wire import messages as m
from libhelix.wire.settings import BadBudget, FixedBatch, Position, TokenBudget
from tests.helixd.core import world
from tests.helixd.core.node import Node
from tests.helixd.core.world import FakeTrainer, FakeWorker, planned, settings

END = Position(0, 6, 0)


def _ranks(node: Node, layout: str = "stack", count: int = 2, **changes: Any) -> list[FakeTrainer]:
    chosen = settings(layout, dp_size=count, **changes)
    return [node.attach(rank, chosen) for rank in range(count)]


def _everyone_has_taken(node: Node, until: Position = END, keep: int = 0) -> None:
    node.run(lambda: all(t.at >= until for t in node.trainers), keep)


# ---- the worker host ---------------------------------------------------------------------------------------


def test_a_host_that_never_comes_fails_the_loader_after_the_limit() -> None:
    node = Node()
    _ranks(node)
    node.wait(29.0)
    assert not any(t.inbox and isinstance(t.inbox[-1][0], m.Failed) for t in node.trainers)
    node.wait(2.0)
    for trainer in node.trainers:
        (failed,) = node.said(trainer.conn, m.Failed)
        assert (failed.code, failed.at) == ("worker-host", None)
        assert failed.text == "no worker host came within 30 s"


def test_a_host_that_cannot_be_started_fails_every_rank_with_the_reason() -> None:
    node = Node()
    first, _ = _ranks(node)
    node.tell(a.Received(first.conn, m.HostFailed("the worker host cannot be started: no python")))
    for error in node.run_to_the_end().values():
        assert isinstance(error, WorkerHostLost)
        assert "no python" in str(error)


def test_a_host_that_dies_is_started_again_by_a_trainer_and_nothing_is_lost() -> None:
    node = Node()
    ranks = _ranks(node)
    for n in range(3):
        _everyone_has_taken(node, Position(0, 2 * n + 1, 0))
        node.kill_host()
        assert sum(len(node.said(rank.conn, m.StartHost)) for rank in ranks) == n + 2
    _everyone_has_taken(node)


def test_a_host_that_dies_again_and_again_without_decoding_is_given_up() -> None:
    node = Node()
    _ranks(node)
    for _ in range(4):
        node.start_host()
        node.kill_host()
    for error in node.run_to_the_end().values():
        assert isinstance(error, WorkerHostLost)
        assert "the worker host died 4 times without decoding" in str(error)


def test_another_trainer_starts_the_host_when_the_one_that_was_asked_dies() -> None:
    node = Node()
    first, second = _ranks(node)
    node.kill_trainer(first)
    assert len(node.said(second.conn, m.StartHost)) == 1
    _everyone_has_taken(node)


# ---- workers -----------------------------------------------------------------------------------------------


def test_another_trainer_is_asked_when_the_first_is_deep_in_its_own_work() -> None:
    node = Node()
    trainers = _ranks(node, count=3)
    node.wait(2.9)
    assert [len(node.said(t.conn, m.StartHost)) for t in trainers] == [1, 0, 0]
    node.wait(6.2)
    assert [len(node.said(t.conn, m.StartHost)) for t in trainers] == [2, 1, 1]
    _everyone_has_taken(node)


def test_workers_that_die_before_their_first_task_are_given_up_after_three_more() -> None:
    node = Node(cores=1)
    (trainer,) = _ranks(node, count=1)
    node.by_hand.add(trainer)
    node.take(trainer)
    node.run(
        lambda: not node.machine.jobs[1, "j"].tasks and not node.plans
    )  # the ring is full: there is nothing to do
    for _ in range(5):
        (worker,) = [x for x in node.workers.values() if not x.dead]
        assert not node.said(trainer.conn, m.Failed)
        node.kill_worker(worker)
        node.run(lambda: not node.host_out)
    (failed,) = node.said(trainer.conn, m.Failed)
    assert failed.code == "worker-host"
    assert "workers on core 0 end by signal 9 as soon as they start" in failed.text
    assert all(x.dead for x in node.workers.values())


def test_workers_that_die_while_they_load_a_recipe_fail_the_loader_with_its_name() -> None:
    node = Node()
    node.setup = lambda _worker, _setup: None
    _ranks(node)
    for error in node.run_to_the_end().values():
        assert isinstance(error, RecipeError)
        assert "workers end by signal 9 while they load recipe world:stack" in str(error)
        assert "import it in a fresh Python to see why" in str(error)
    assert sum(x.dead for x in node.workers.values()) <= 4


def test_one_death_while_loading_is_forgiven() -> None:
    node = Node()
    deaths = [None]
    node.setup = lambda _, setup: deaths.pop() if deaths else m.SetupDone(setup.stream)
    _ranks(node)
    _everyone_has_taken(node)


def test_a_recipe_that_cannot_be_loaded_fails_every_rank_with_the_cause() -> None:
    node = Node()
    text = "recipe mine:R cannot be imported in a worker: ModuleNotFoundError: No module named 'mine'"
    node.setup = lambda _, setup: m.SetupFailed(setup.stream, "recipe-not-importable", text)
    _ranks(node)
    errors = node.run_to_the_end()
    assert len(errors) == 2
    for error in errors.values():
        assert type(error) is RecipeNotImportable
        assert str(error) == text


def test_a_recipe_that_breaks_its_contract_fails_the_loader_and_no_other() -> None:
    class Broken(Node):
        def worker_step(self, worker: FakeWorker) -> None:
            task = worker.inbox[0] if worker.inbox and not worker.outbox else None
            if isinstance(task, m.Fill) and worker.layouts[task.stream] == "pad":
                worker.inbox.popleft()
                worker.outbox.append(m.TaskFailed(task.task, True, "recipe", "R: field 'x' is wrong"))
            else:
                super().worker_step(worker)

    node = Broken(lockstep=False)
    fine = node.attach(0, settings("stack", dp_size=1))
    broken = node.attach(0, settings("pad", dp_size=1), name="eval", conn=fine.conn)
    node.run(lambda: broken in node.raised and fine.at >= END)
    assert isinstance(node.raised[broken], RecipeError)
    assert fine not in node.raised


def test_a_stuck_worker_is_killed_at_its_deadline_and_another_does_its_task() -> None:
    node = Node()
    _ranks(node)
    _everyone_has_taken(node, Position(0, 1, 0))
    node.run(lambda: any(x.inbox and isinstance(x.inbox[0], m.Fill) for x in node.workers.values()))
    stuck = next(x for x in node.workers.values() if x.inbox and isinstance(x.inbox[0], m.Fill))
    node.stuck.add(stuck.number)
    node.wait(TASK_LIMIT_S - 1)
    assert node.killed == []
    for x in [x for x in node.workers.values() if x is not stuck and not x.dead]:
        while x.inbox or x.outbox:
            node.worker_step(x)
    node.wait(2)
    assert node.killed == [stuck.number]
    assert any("stuck for 60 s: killed" in text for text in node.logs)
    node.run(lambda: stuck.dead)
    _everyone_has_taken(node)
    assert not node.noted  # one death is not the sample's fault


@pytest.mark.parametrize("gone", [False, True])
def test_a_chain_may_take_long_but_not_for_a_loader_that_is_gone(gone: bool) -> None:
    node = Node(cores=1)
    options: Any = {"batching": FixedBatch(1), "shuffle": False, "chains": 1, "dp_size": 1}
    chain = node.attach(0, settings("stack", **options))
    node.run(lambda: any(x.inbox and isinstance(x.inbox[0], m.Fill) for x in node.workers.values()))
    other = node.attach(0, settings("pad", dp_size=1), name="eval", conn=chain.conn)
    (worker,) = node.workers.values()
    node.stuck.add(worker.number)
    node.wait(TASK_LIMIT_S - 1)
    if gone:
        node.trainers.remove(chain)
        node.tell(a.Received(chain.conn, m.Detach(chain.attachment.loader)))
    node.wait((TASK_LIMIT_S if gone else CHAIN_LIMIT_S) - TASK_LIMIT_S)
    assert node.killed == []
    node.wait(2)
    assert node.killed == [worker.number]
    node.run(lambda: other.at >= Position(0, 1, 0))


def test_a_sample_that_kills_two_workers_is_masked_and_named() -> None:
    node = Node()
    ranks = _ranks(node)
    (sick, *_), _ = planned(ranks[0].settings)[Position(0, 2, 0)]
    node.deadly.add(sick)
    _everyone_has_taken(node)
    told = [bad for bad in node.noted if bad.stage == "fill"]  # the next epoch may be described already
    assert sorted(bad.note for bad in told) == [False, True]
    for bad in told:
        assert bad.text.startswith("2 workers died while they decoded it, the last ")
        assert bad.text.endswith("by signal 9")
        assert (bad.sample, bad.at) == (sick, Position(0, 2, 0))
    assert node.machine.jobs[1, "j"].streams["train"].bad[0] == 1


# ---- bad samples -------------------------------------------------------------------------------------------


def test_a_bad_sample_is_masked_and_every_rank_is_told_and_one_notes_it() -> None:
    node = Node()
    ranks = _ranks(node)
    (bad, _), _ = planned(ranks[0].settings)[Position(0, 3, 0)]
    node.bad.add(bad)
    _everyone_has_taken(node)
    assert [f"sample {bad} is broken" in told.text for told in node.noted] == [True, True]
    assert sorted(told.note for told in node.noted) == [False, True]


@pytest.mark.parametrize("layout", ["stack", "pad", "pack"])
def test_bad_samples_are_replaced_by_those_that_fit_and_masked_where_none_does(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = world.row_of

    def of_two_costs(layout: str, sample: int, *, long: bool = False) -> m.Row:
        return msgspec.structs.replace(real(layout, sample, long=long), costs={"tokens": sample % 2})

    monkeypatch.setattr(world, "row_of", of_two_costs)
    for seed in range(10):
        node = Node(cores=3, seed=seed)
        many = BadBudget(count=100)
        ranks = _ranks(
            node, layout, on_bad="replace", bad_budget=many, batching=FixedBatch(8), index_samples=160
        )
        plan = planned(ranks[0].settings)
        for step, sick in enumerate((1, 2, 8, 5)):  # the world checks which stand in
            node.bad.update(plan[Position(0, step + 1, 0)][step % 2][:sick])
        _everyone_has_taken(node, Position(0, 6, 0), keep=1)
        noted = {told.sample for told in node.noted if told.note}
        assert noted == node.bad
        assert node.machine.jobs[1, "j"].streams["train"].bad[0] == len(node.bad)


def test_so_many_bad_samples_are_allowed_as_the_budget_says() -> None:
    node = Node()
    ranks = _ranks(node, bad_budget=BadBudget(count=3, rate=0.0), index_samples=400)
    plan = planned(ranks[0].settings)
    node.bad.update(plan[Position(0, step, 0)][0][0] for step in (2, 4, 6, 8))
    for error in node.run_to_the_end().values():
        assert isinstance(error, TooManyBadSamples)
        assert "4 samples failed in epoch 0, 3 are allowed" in str(error)


@pytest.mark.parametrize("good_between", [False, True])
def test_bad_samples_in_a_row_end_the_loader_and_others_do_not(good_between: bool) -> None:
    node = Node(cores=1)
    budget = BadBudget(count=100, in_a_row=6)
    ranks = _ranks(node, bad_budget=budget, index_samples=400)
    plan = planned(ranks[0].settings)
    for step in range(2, 10):
        some = [sample for rank in plan[Position(0, step, 0)] for sample in rank]
        node.bad.update(some[:3] if good_between else some)
    if good_between:
        _everyone_has_taken(node, Position(0, 12, 0))
        return
    for error in node.run_to_the_end().values():
        assert isinstance(error, TooManyBadSamples)
        assert "more than 6 samples failed one after the other in epoch 0" in str(error)


def test_too_many_bad_samples_end_the_loader_and_say_how_many_are_allowed() -> None:
    node = Node()
    ranks = _ranks(node, index_samples=400)
    plan = planned(ranks[0].settings)
    for step in range(2, 14):
        node.bad.add(plan[Position(0, step, 0)][0][0])
    for error in node.run_to_the_end().values():
        assert isinstance(error, TooManyBadSamples)
        assert "11 samples failed in epoch 0, 10 are allowed; the last: sample" in str(error)
    assert ranks[0].at == ranks[1].at


def test_a_data_set_without_a_good_sample_ends_at_once() -> None:
    node = Node()
    node.bad.update(range(40))
    _ranks(node)
    for error in node.run_to_the_end().values():
        assert isinstance(error, TooManyBadSamples)
        assert "and none succeeded" in str(error)


def test_bad_samples_are_counted_anew_in_every_epoch() -> None:
    node = Node()
    node.bad.update(range(3, 12))  # nine of forty, and every epoch of ten steps has all of them
    _ranks(node)
    _everyone_has_taken(node, Position(3, 0, 0))
    assert not node.raised


def test_on_bad_raise_raises_at_one_position_on_every_rank_and_nobody_gets_further() -> None:
    for seed in range(20):
        node = Node(seed=seed)
        ranks = _ranks(node, count=3, on_bad="raise", ring=4, index_samples=120)
        bad = planned(ranks[0].settings)[Position(0, 5, 0)][1][0]
        node.bad.add(bad)
        for error in node.run_to_the_end().values():
            assert isinstance(error, MediaError)
            assert f"sample {bad} is broken" in str(error)
        (position,) = {t.at for t in ranks}
        assert position >= Position(0, 5, 0)


def test_on_bad_raise_waits_for_the_rank_that_is_behind() -> None:
    node = Node(cores=3)  # two may be at the parts of the bad sample, which do not end
    one, other = _ranks(node, on_bad="raise")
    bad = planned(one.settings)[Position(0, 4, 0)][1][0]
    node.bad.add(bad)
    node.by_hand |= {one, other}
    node.slow.add(bad)
    held: list[tuple[FakeTrainer, m.Ready]] = []
    for trainer in (one, other) * 4 + (one,):  # one has batch 4, the other has batch 3: its own is bad
        for owner, ready in [entry for entry in held if entry[0] is trainer]:
            node.let_go(owner, ready)
            held.remove((owner, ready))
        held.append((trainer, node.take(trainer)))
        node.hear(trainer)
    node.slow.clear()
    while not node.said(one.conn, m.Failed):
        node.step()
    for trainer in (one, other):
        with pytest.raises(MediaError, match=f"sample {bad} is broken"):
            _take_all(node, trainer)
    assert one.at == other.at >= Position(0, 5, 0)


def _take_all(node: Node, trainer: FakeTrainer) -> None:
    while True:
        node.let_go(trainer, node.take(trainer))


# ---- memory ------------------------------------------------------------------------------------------------


def _one_large_sample(monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    def shapes(_layout: str, sample: int) -> tuple[tuple[int, ...], ...]:
        return ((1000 if sample == large else 3,),)

    monkeypatch.setattr(world, "shapes_of", shapes)


@pytest.mark.parametrize("step", [0, 3, 9])
def test_a_batch_that_does_not_fit_names_where_it_is_and_the_cure(
    monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    node = Node()
    chosen = settings("ragged", batching=FixedBatch(2, max_bytes=1000))
    _one_large_sample(monkeypatch, planned(chosen)[Position(0, step, 0)][1][0])
    ranks = [node.attach(rank, chosen) for rank in range(2)]
    for error in node.run_to_the_end().values():
        assert isinstance(error, Oversize)
        assert str(error) == (
            f"the batch of rank 1 at step {step} of epoch 0 has 4272 bytes, the ring is made for 1024; "
            "set max_bytes=8544 in the batching"
        )
    assert ranks[0].at == ranks[1].at


def test_skipped_samples_are_told_to_every_rank_once_in_an_epoch_however_late_it_comes() -> None:
    node = Node()
    chosen = settings("ragged", batching=TokenBudget(11, oversize="skip", regroup=2))
    node.attach(0, chosen)
    for _ in range(300):
        node.step()
    node.attach(1, chosen)
    _everyone_has_taken(node, Position(2, 0, 0))
    for trainer in node.trainers:
        told = [warn for warn in node.said(trainer.conn, m.Warn) if "leaves out samples" in warn.text]
        assert sorted(warn.epoch for warn in told)[:3] == [0, 1, 2]
        assert len(told) == len({warn.epoch for warn in told})
        assert all(warn.sample is not None and warn.sample % 13 == 12 for warn in told)


def test_a_sample_that_no_micro_batch_can_hold_travels_with_the_error() -> None:
    node = Node()
    chosen = settings("ragged", batching=TokenBudget(11))
    ranks = [node.attach(rank, chosen) for rank in range(2)]
    node.run(lambda: all(node.said(trainer.conn, m.Failed) for trainer in ranks))
    for trainer in ranks:
        (failed,) = node.said(trainer.conn, m.Failed)
        assert (failed.code, failed.at) == ("oversize", Position(0, 0, 0))
        assert f"sample {failed.sample}, has 12" in failed.text


def test_the_cure_for_a_batch_that_does_not_fit_works(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    chosen = settings("ragged", batching=FixedBatch(2, max_bytes=8544))
    _one_large_sample(monkeypatch, planned(chosen)[Position(0, 3, 0)][1][0])
    for rank in range(2):
        node.attach(rank, chosen)
    _everyone_has_taken(node)


def test_a_full_dev_shm_leads_to_a_memfd_and_training_goes_on() -> None:
    node = Node()

    def reserve(asked: m.Reserve) -> Any:
        if asked.arena in node.memfds:
            return m.Reserved(asked.arena)
        return m.ReserveFailed(asked.arena, True, "the ring needs 9 MiB of shared memory")

    node.reserve = reserve
    _ranks(node)
    _everyone_has_taken(node)
    assert len(node.memfds) == 2
    assert set(node.arenas) == node.memfds  # what did not fit is given back


def test_memory_that_is_nowhere_is_an_error_on_every_rank_and_takes_no_memory() -> None:
    node = Node()
    text = "the ring needs 9 MiB and the memory limit of this cgroup leaves 1 MiB"
    node.reserve = lambda asked: m.ReserveFailed(asked.arena, asked.arena not in node.memfds, text)
    _ranks(node)
    for error in node.run_to_the_end().values():
        assert isinstance(error, OutOfSharedMemory)
        assert str(error) == text
    for trainer in list(node.trainers):
        node.kill_trainer(trainer)
    assert not node.arenas


def test_arenas_that_wait_are_reserved_by_the_next_host() -> None:
    node = Node()
    node.reserve = lambda _: None  # it dies of it
    ranks = _ranks(node)
    node.run(lambda: None in node.host_out)
    node.host_out.clear()
    node.reserve = lambda asked: m.Reserved(asked.arena)
    node.kill_host()
    _everyone_has_taken(node)
    assert len(ranks) == 2


# ---- replicas ----------------------------------------------------------------------------------------------


def _replicas_that_fill_the_ring(node: Node) -> tuple[FakeTrainer, FakeTrainer, m.Ready]:
    """One holds batches 0 and 1, the other batch 2: each may, and together they leave no room for batch 3."""
    chosen = settings("stack", dp_size=1, replicas=2, ring=3)
    one, other = (node.attach(0, chosen, replica=r) for r in range(2))
    node.by_hand |= {one, other}
    for _ in range(3):
        node.take(one)
    for _ in range(2):
        node.let_go(other, node.take(other))
    last = node.take(other)
    for trainer in (one, other):
        node.ask(trainer)
        node.hear(trainer)
    assert len(one.attachment.held) == 2
    assert len(other.attachment.held) == 1
    return one, other, last


def test_replicas_that_hold_different_batches_read_it_after_the_limit_and_never_hang() -> None:
    node = Node()
    one, other, _ = _replicas_that_fill_the_ring(node)
    node.wait(STARVED_LIMIT_S - 0.1)
    assert not node.said(one.conn, m.Failed)
    node.wait(0.2)
    for trainer in (one, other):
        with pytest.raises(RingFull, match="together fill the ring of 3 batches; set ring=6 or release them"):
            node.take(trainer)


def test_replicas_that_let_go_in_time_go_on() -> None:
    node = Node()
    one, other, last = _replicas_that_fill_the_ring(node)
    node.wait(STARVED_LIMIT_S - 0.1)
    node.let_go(other, last)
    node.hear(other)
    node.wait(60.0)
    assert node.take(one).at == node.take(other).at == Position(0, 3, 0)
