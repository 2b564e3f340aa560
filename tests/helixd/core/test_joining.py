"""Who may come, who fits together, and what remains when they leave."""

from __future__ import annotations

import msgspec
import pytest

from helixd.core import actions as a
from helixd.core.job import GATHER_LIMIT_S
from helixd.core.machine import FIRST_TRAINER_LIMIT_S
from libhelix.errors import Conflict, UsageError
from libhelix.wire import messages as m
from libhelix.wire.settings import FixedBatch, Position, Segment
from tests.helixd.core.node import Node
from tests.helixd.core.world import FakeTrainer, settings, start_at

END = Position(0, 4, 0)


def _everyone_has_taken(node: Node, until: Position = END) -> None:
    node.run(lambda: all(t.at >= until for t in node.trainers))


@pytest.mark.parametrize("role", ["trainer", "host", "ctl"])
@pytest.mark.parametrize("protocol", [m.PROTOCOL - 1, m.PROTOCOL + 1])
def test_another_protocol_version_is_refused_with_both_numbers(role: str, protocol: int) -> None:
    node = Node()
    conn = node.connect(role, protocol=protocol)
    (refused,) = node.told[conn]
    assert refused.code == "protocol"
    assert f"speaks protocol {m.PROTOCOL}, libhelix 0 speaks protocol {protocol}" in refused.text
    assert "install one version of datahelix for both" in refused.text
    assert node.closed == [conn]
    assert not node.machine.jobs


def test_a_trainer_is_welcomed_and_the_first_one_starts_the_host() -> None:
    node = Node()
    first, second = node.connect(), node.connect()
    assert [type(said) for said in node.told[first]] == [m.Welcome, m.StartHost]
    assert [type(said) for said in node.told[second]] == [m.Welcome]


def test_a_second_host_and_one_that_nobody_waits_for_are_refused() -> None:
    node = Node()
    stray = node.connect("host")
    node.attach(0, settings("stack", dp_size=1))
    node.start_host()
    second = node.connect("host")
    other_user = node.connect("host", uid=2)
    for conn in (stray, second, other_user):
        (refused,) = node.told[conn]
        assert refused.code == "worker-host"
        assert conn in node.closed
    _everyone_has_taken(node)


def test_jobs_of_one_name_of_two_users_are_two_jobs() -> None:
    node = Node()
    node.connect(uid=1)
    node.connect(uid=2)
    assert sorted(node.machine.jobs) == [(1, "j"), (2, "j")]


# ---- fitting together --------------------------------------------------------------------------------------


def test_a_rank_that_is_attached_twice_fails_both() -> None:
    node = Node(lockstep=False)
    chosen = settings("stack")
    for rank in (0, 1, 0):
        node.attach(rank, chosen)
    node.run(lambda: len(node.raised) == 3)
    for error in node.raised.values():
        assert isinstance(error, Conflict)
        assert "loader 'train' of job 'j': rank 0 is attached twice, by two processes" in str(error)
        assert "give each its own dp_rank" in str(error)


def test_a_process_that_attaches_one_rank_twice_is_told_to_close_the_first() -> None:
    node = Node()
    chosen = settings("stack", dp_size=1)
    first = node.attach(0, chosen)
    node.attach(0, chosen, conn=first.conn)
    node.run(lambda: len(node.raised) == 2)
    assert all("both times by one process; close() the first loader" in str(e) for e in node.raised.values())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 5}, "seed 1 there, 5 here"),
        ({"ring": 7}, "ring 3 there, 7 here"),
        ({"batching": FixedBatch(1)}, "batching.samples 2 there, 1 here"),
        ({"index_fingerprint": "g"}, "index_fingerprint 'f' there, 'g' here"),
        (
            {"sources": (40,), "schedule": (Segment(0, (1.0,)), Segment(8, (2.0,)))},
            "sources () there, (40,) here; weights from draw 0 on None there, (1.0,) here; "
            "weights from draw 8 on None there, (2.0,) here",
        ),
    ],
)
def test_ranks_with_other_settings_read_on_both_sides_in_what_they_differ(
    changes: dict[str, object], said: str
) -> None:
    node = Node()
    node.attach(0, settings("stack"))
    node.attach(1, settings("stack", **changes))
    for error in node.run_to_the_end().values():
        assert isinstance(error, Conflict)
        assert f"rank 1 has other settings than others: {said}" in str(error)


def _reweighed(node: Node, trainer: FakeTrainer, weights: tuple[float, ...]) -> FakeTrainer:
    """A rank leaves, and comes again with other weights from draw 8 on, at step 2."""
    node.tell(a.Received(trainer.conn, m.Detach(trainer.attachment.loader)))
    schedule = (*trainer.settings.schedule, Segment(8, weights))
    changed = msgspec.structs.replace(trainer.settings, schedule=schedule)
    again = node.attach(trainer.rank, changed, start=start_at(0, 2), conn=trainer.conn)
    node.by_hand.add(again)
    return again


def _two_ranks_after_two_steps() -> tuple[Node, list[FakeTrainer]]:
    node = Node(lockstep=False)
    mixed = settings("stack", sources=(30, 10), schedule=(Segment(0, (1.0, 1.0)),))
    pair = [node.attach(rank, mixed) for rank in range(2)]
    node.by_hand.update(pair)
    for trainer in pair * 2:
        node.let_go(trainer, node.take(trainer))
    return node, pair


def test_a_rank_that_goes_on_with_other_weights_waits_until_all_do() -> None:
    node, pair = _two_ranks_after_two_steps()
    first = _reweighed(node, pair[0], (1.0, 0.0))
    for _ in range(500):
        node.step()
    assert len(node.said(first.conn, m.Attached)) == 1
    second = _reweighed(node, pair[1], (1.0, 0.0))
    for trainer in (first, second) * 3:
        node.let_go(trainer, node.take(trainer))
    (job,) = node.machine.jobs.values()
    assert job.streams["train"].settings == first.settings


def test_a_rank_that_alone_goes_on_with_other_weights_fails_all_and_names_them() -> None:
    node, pair = _two_ranks_after_two_steps()
    first = _reweighed(node, pair[0], (1.0, 0.0))
    node.wait(GATHER_LIMIT_S + 1)
    for trainer in (first, pair[1]):
        (failed,) = node.said(trainer.conn, m.Failed)
        assert failed.code == "conflict"
        assert "settings than others: weights from draw 8 on None there, (1.0, 0.0) here" in failed.text


@pytest.mark.parametrize(("rank", "replica"), [(2, 0), (0, 1)])
def test_a_rank_or_replica_that_does_not_exist_is_refused(rank: int, replica: int) -> None:
    node = Node()
    node.attach(rank, settings("stack"), replica=replica)
    (error,) = node.run_to_the_end().values()
    assert isinstance(error, Conflict)
    assert f"there is no rank {rank}, replica {replica} among 2 ranks of 1 replicas" in str(error)


def test_too_little_data_is_the_callers_error() -> None:
    node = Node()
    node.attach(0, settings("stack", index_samples=3))
    (error,) = node.run_to_the_end().values()
    assert isinstance(error, UsageError)
    assert "the data set has 3 samples and one step takes 4" in str(error)


def test_a_start_beyond_the_epoch_is_refused() -> None:
    node = Node()
    node.attach(0, settings("stack"), start=start_at(0, 10))
    (error,) = node.run_to_the_end().values()
    assert "where no epoch has a step" in str(error)


def test_replicas_that_never_come_fail_the_loader_after_the_limit() -> None:
    node = Node()
    node.attach(0, settings("stack", dp_size=1, replicas=3), replica=2)
    node.start_host()
    node.wait(29.9)
    assert not node.trainers[0].attachment.failure
    node.run(lambda: not node.trainers[0].inbox)
    node.wait(0.2)
    (error,) = node.run_to_the_end().values()
    assert isinstance(error, Conflict)
    assert "rank 0 has replicas [2] of 3; the others did not come within 30 s" in str(error)


def test_a_late_replica_is_waited_for() -> None:
    node = Node()
    chosen = settings("stack", dp_size=1, replicas=2)
    node.attach(0, chosen, replica=1)
    node.start_host()
    node.wait(25.0)
    node.attach(0, chosen, replica=0)
    node.wait(60.0)
    _everyone_has_taken(node)


def test_a_replica_that_comes_back_alone_is_told_to_restart_them_together() -> None:
    node = Node()
    chosen = settings("stack", dp_size=1, replicas=2, ring=8)
    pair = [node.attach(0, chosen, replica=r) for r in range(2)]
    _everyone_has_taken(node)
    node.kill_trainer(pair[0])
    node.attach(0, chosen, replica=0, start=pair[0].progress.start)
    for error in node.run_to_the_end().values():
        assert "left while its other replicas went on; restart them together" in str(error)


def test_ranks_that_come_one_after_another_need_not_wait_for_each_other() -> None:
    node = Node(lockstep=False)
    chosen = settings("stack", dp_size=2)
    node.attach(0, chosen)
    _everyone_has_taken(node)
    node.attach(1, chosen)
    _everyone_has_taken(node)


def test_a_rank_that_comes_late_reads_why_the_loader_failed() -> None:
    node = Node()
    node.setup = lambda _, setup: m.SetupFailed(setup.stream, "recipe-not-importable", "no module named mine")
    node.attach(0, settings("stack"))
    (first,) = node.run_to_the_end().values()
    late = node.attach(1, settings("stack"))
    node.run(lambda: late in node.raised)
    assert type(node.raised[late]) is type(first)
    assert str(node.raised[late]) == str(first) == "no module named mine"


def test_a_rank_that_comes_after_all_others_have_left_reads_why_too() -> None:
    node = Node(lockstep=False)
    node.setup = lambda _, setup: m.SetupFailed(setup.stream, "recipe-not-importable", "no module named mine")
    waiting = node.connect()  # the job goes on: this process has only not attached yet
    first = node.attach(0, settings("stack"))
    node.run_to_the_end()
    node.tell(a.Received(first.conn, m.Detach(first.attachment.loader)))
    node.setup = lambda _, setup: m.SetupDone(setup.stream)  # it would work now, but the others are gone
    late = node.attach(1, settings("stack"), conn=waiting)
    node.run(lambda: late in node.raised)
    assert str(node.raised[late]) == "no module named mine"


def test_a_process_that_knows_why_its_loader_failed_may_try_again() -> None:
    node = Node(lockstep=False)
    node.setup = lambda _, setup: m.SetupFailed(setup.stream, "recipe", "not yet")
    first = node.attach(0, settings("stack", dp_size=1))
    node.run_to_the_end()
    node.setup = lambda _, setup: m.SetupDone(setup.stream)
    again = node.attach(0, settings("stack", dp_size=1), conn=first.conn)
    node.run(lambda: again.at >= END)


# ---- leaving -----------------------------------------------------------------------------------------------


def test_a_loader_that_is_closed_leaves_no_ring_and_no_tasks() -> None:
    node = Node()
    trainer = node.attach(0, settings("stack", dp_size=1))
    _everyone_has_taken(node)
    node.tell(a.Received(trainer.conn, m.Detach(trainer.attachment.loader)))
    node.trainers.clear()
    assert not node.arenas
    (job,) = node.machine.jobs.values()
    assert not job.streams
    node.run(lambda: not job.tasks and not any(x.inbox or x.outbox for x in node.workers.values()))
    assert all(not x.arenas for x in node.workers.values())


def test_the_end_of_the_last_trainer_ends_an_embedded_daemon_and_all_it_has() -> None:
    node = Node(embedded=True)
    pair = [node.attach(rank, settings("pad")) for rank in range(2)]
    _everyone_has_taken(node)
    host = node.host
    for trainer, arenas_left, over in ((pair[0], 1, False), (pair[1], 0, True)):
        node.kill_trainer(trainer)
        assert (len(node.arenas), node.stopped) == (arenas_left, over)
    assert node.closed == [host]
    assert not node.made
    assert not node.machine.jobs


def test_a_standing_daemon_goes_on_after_a_job() -> None:
    node = Node()
    trainer = node.attach(0, settings("pad", dp_size=1))
    _everyone_has_taken(node)
    node.kill_trainer(trainer)
    assert not node.stopped
    assert not node.arenas
    assert not node.machine.jobs
    assert node.machine.deadline() is None
    node.attach(0, settings("pad", dp_size=1))
    _everyone_has_taken(node)


def test_an_embedded_daemon_that_nobody_comes_to_ends() -> None:
    node = Node(embedded=True)
    for seconds, over in ((FIRST_TRAINER_LIMIT_S - 1, False), (2, True)):
        node.wait(seconds)
        assert node.stopped == over


# ---- being asked -------------------------------------------------------------------------------------------


def test_status_says_what_is_going_on() -> None:
    node = Node()
    for rank in range(2):
        node.attach(rank, settings("stack"))
    _everyone_has_taken(node)
    state = node.status()
    assert state["version"] == "0"
    (job,) = state["jobs"]
    assert (job["job"], job["uid"], job["host"]) == ("j", 1, True)
    assert job["trainers"] == sorted(t.conn for t in node.trainers)
    assert [x["core"] for x in job["workers"]] == [0, 1]
    assert sum(x["done"] for x in job["workers"]) >= 8
    (loader,) = job["loaders"]
    assert (loader["loader"], loader["recipe"], loader["dp_size"]) == ("train", "world:stack", 2)
    assert (loader["steps_per_epoch"], loader["bad_samples"], loader["failure"]) == (10, 0, None)
    for rank, consumer in enumerate(loader["consumers"]):
        assert (consumer["rank"], consumer["state"], consumer["replicas"]) == (rank, "serving", 1)
        assert consumer["delivered"] >= 4
        ring = consumer["ring_bytes"]
        assert 0 <= ring["filling"] + ring["leased"] <= ring["total"]
        assert consumer["ignored_releases"] == 0


def test_status_shows_users_only_their_own_jobs_and_root_all() -> None:
    node = Node()
    for uid in (1, 2):
        node.connect(uid=uid)
    for uid, seen in ((1, [1]), (2, [2]), (3, []), (0, [1, 2])):
        conn = node.connect("ctl", uid=uid)
        node.tell(a.Received(conn, m.StatusAsk()))
        (part,) = node.said(conn, m.Status)
        assert [f'"uid":{n}' in part.json for n in (1, 2)] == [n in seen for n in (1, 2)]


def test_a_long_status_comes_in_parts() -> None:
    node = Node()
    for n in range(300):
        node.connect(job=f"job number {n} of a great many")
    assert len(node.status()["jobs"]) == 300


# ---- releases ----------------------------------------------------------------------------------------------


def test_releases_that_are_late_double_or_of_strangers_are_ignored_and_counted() -> None:
    node = Node()
    pair = [node.attach(rank, settings("stack")) for rank in range(2)]
    node.run(lambda: all(t.at >= END for t in pair) and bool(pair[0].keeps), keep=1)
    loader = pair[0].attachment.loader
    held = next(iter(pair[0].keeps))
    for conn, release in [
        (pair[0].conn, m.Release(loader, 1)),  # given back long ago
        (pair[0].conn, m.Release(loader, 1)),
        (pair[0].conn, m.Release(loader, 10**9)),
    ]:
        node.tell(a.Received(conn, release))
    node.tell(a.Received(pair[1].conn, m.Release(loader, held)))  # another process's loader
    assert node.machine.ignored_messages == 1
    consumers = node.status()["jobs"][0]["loaders"][0]["consumers"]
    assert [c["ignored_releases"] for c in consumers] == [3, 0]
    node.run(
        lambda: all(t.at >= Position(0, 8, 0) for t in pair), keep=1
    )  # and what is held is not overwritten


def test_releases_after_a_loader_was_closed_are_harmless() -> None:
    node = Node()
    trainer = node.attach(0, settings("stack", dp_size=1))
    node.run(lambda: trainer.at >= END, keep=2)
    node.tell(a.Received(trainer.conn, m.Detach(trainer.attachment.loader)))
    for generation in trainer.keeps:
        node.tell(a.Received(trainer.conn, m.Release(trainer.attachment.loader, generation)))
    assert not node.arenas


def test_weights_that_one_rank_changes_and_another_goes_on_without_are_a_conflict_of_both() -> None:
    node = Node(lockstep=False)
    old = settings("stack", sources=(20, 20), schedule=(Segment(0, (1.0, 1.0)),))
    new = settings("stack", sources=(20, 20), schedule=(Segment(0, (1.0, 1.0)), Segment(12, (1.0, 3.0))))
    one, other = (node.attach(rank, old) for rank in range(2))
    node.by_hand |= {one, other}
    for t in (one, other) * 3:
        node.let_go(t, node.take(t))
    node.tell(a.Received(one.conn, m.Detach(one.attachment.loader)))
    node.trainers.remove(one)
    changed = node.attach(0, new, conn=one.conn, start=one.progress.start)
    node.by_hand.add(changed)
    for _ in range(300):
        node.step()
    assert not node.said(changed.conn, m.Failed)  # the other may be about to change them, too
    node.let_go(other, node.take(other))
    for _ in range(300):
        node.step()
    for conn in (changed.conn, other.conn):
        (failed,) = node.said(conn, m.Failed)
        assert "rank 0 has called set_weights before step 3 of epoch 0, and rank 1 has taken" in failed.text
