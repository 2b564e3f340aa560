"""What an operator may do to a daemon that serves: limit its users, change its settings, drain it."""

from __future__ import annotations

from typing import Any

from helixd.core import actions as a
from helixd.core.machine import Machine
from helixd.quota import Quota
from libhelix.wire import messages as m
from libhelix.wire.settings import Base, IndexRef, Position, Start
from tests.helixd.core.world import settings


class Node:
    """A standing daemon whose connections are told to it one by one."""

    def __init__(self, **options: Any) -> None:
        self.machine = Machine(version="0", page=64, embedded=False, now=0.0, uid=7, **options)
        self.now = 0.0
        self.conns = 0

    def tell(self, event: a.Event) -> list[a.Action]:
        self.now += 0.01
        actions = self.machine.handle(event, self.now)
        self.machine.check()
        return actions

    def come(self, uid: int, job: str = "j", role: str = "trainer", cores: int = 8) -> int:
        self.conns += 1
        hello = m.Hello(m.PROTOCOL, "0", role, job, self.conns, tuple(range(cores)))  # type: ignore[arg-type]
        self.answers = self.tell(a.Opened(self.conns, uid, hello))
        return self.conns

    def refused(self) -> m.Refused | None:
        return next(
            (x.message for x in self.answers if isinstance(x, a.Send) and isinstance(x.message, m.Refused)),
            None,
        )

    def attach(self, conn: int, **changes: Any) -> list[a.Action]:
        attach = m.Attach(
            loader=1,
            name="train",
            dp_rank=0,
            replica=0,
            settings=settings("stack", dp_size=1, **changes),
            indexes=(IndexRef("/i", "/"),),
            sys_path=(),
            start=Start(Base(0, 0, 0), Position(0, 0, 0)).packed(),
        )
        return self.tell(a.Received(conn, attach))


def test_a_user_has_as_many_jobs_as_allowed_and_another_user_has_his_own() -> None:
    node = Node(quota=Quota(jobs=2))
    for job in ("a", "b"):
        node.come(1, job)
        assert node.refused() is None
    node.come(1, "a")  # another rank of a job that is there
    assert node.refused() is None
    third = node.come(1, "c")
    refusal = node.refused()
    assert refusal is not None
    assert (refusal.code, "2 are allowed" in refusal.text) == ("quota", True)
    node.tell(a.Closed(third, "refused"))
    node.come(2, "c")
    assert node.refused() is None
    node.tell(a.Closed(1, "left"))
    node.tell(a.Closed(3, "left"))
    node.come(1, "c")
    assert node.refused() is None


def test_a_job_decodes_on_no_more_cores_than_allowed_also_when_that_changes() -> None:
    node = Node(quota=Quota(job_cores=3), reserve=0)
    node.come(1)
    pool = node.machine.jobs[1, "j"].pool
    assert len(pool.share.owned) == 3
    node.tell(a.Reconfigured(None, 0, Quota(job_cores=5), {}))
    assert len(pool.share.owned) == 5
    node.tell(a.Reconfigured(frozenset({1, 2}), 0, Quota(), {"cores": "1-2"}))
    assert pool.share.owned == {1, 2}
    assert node.machine.shown == {"cores": "1-2"}


def test_rings_beyond_the_quota_end_their_loader_and_no_other() -> None:
    node = Node(quota=Quota(ring_bytes=1 << 20))
    first, second = node.come(1, "a"), node.come(1, "b")
    for conn in (first, second):
        node.attach(conn)
    job_a, job_b = (node.machine.jobs[1, job] for job in "ab")
    for job, nbytes in ((job_a, 700 << 10), (job_b, 700 << 10)):
        consumer = job.streams["train"].consumers[0]
        consumer.max_bytes = nbytes // 3
        job.rings.make(consumer)
    assert job_a.streams["train"].failure is None
    failure = job_b.streams["train"].failure
    assert failure is not None
    assert failure.code == "quota"
    assert "other rings exceeds the 1 MiB allowed" in failure.text


def test_a_job_has_a_quota_of_its_own() -> None:
    node = Node(quota=Quota(job_ring_bytes=1 << 20))
    jobs = []
    for name in "ab":
        node.attach(node.come(1, name))
        jobs.append(node.machine.jobs[1, name])
        consumer = jobs[-1].streams["train"].consumers[0]
        consumer.max_bytes = (700 << 10) // 3
        jobs[-1].rings.make(consumer)
        assert jobs[-1].streams["train"].failure is None
    refusal = jobs[0].rings.quota(400 << 10)
    assert refusal is not None
    assert "beside the 0 MiB of this job's other rings exceeds the 1 MiB" in refusal
    assert "quota.job_ring_bytes" in refusal
    assert jobs[1].rings.quota(300 << 10) is None


def test_rings_that_other_users_could_resize_are_sealed() -> None:
    node = Node()
    conn = node.come(1)
    node.attach(conn)
    job = node.machine.jobs[1, "j"]
    consumer = job.streams["train"].consumers[0]
    consumer.max_bytes = 64
    job.rings.make(consumer)
    made = [action for action in node.machine.take_actions() if isinstance(action, a.MakeArena)]
    assert [action.memfd for action in made] == [True]


def test_a_drained_daemon_takes_no_new_job_keeps_its_own_and_ends_with_the_last() -> None:
    node = Node()
    rank = node.come(1, "a")
    stranger = node.come(2, role="ctl")
    answers = node.tell(a.Received(stranger, m.Drain()))
    assert any(isinstance(x, a.Close) for x in answers)
    assert not node.machine.draining
    operator = node.come(7, role="ctl")
    node.tell(a.Received(operator, m.Drain()))
    assert node.machine.summary().endswith("draining")
    node.come(1, "a")  # a rank of the job that is there
    assert node.refused() is None
    node.come(1, "b")
    refusal = node.refused()
    assert refusal is not None
    assert "is being drained" in refusal.text
    for conn in (rank, 4):
        last = node.tell(a.Closed(conn, "left"))
    assert any(isinstance(x, a.Stop) for x in last)


def test_draining_may_be_taken_back() -> None:
    node = Node()
    node.come(1, "a")
    operator = node.come(0, role="ctl")
    node.tell(a.Received(operator, m.Drain()))
    node.tell(a.Received(operator, m.Drain(cancel=True)))
    node.come(1, "b")
    assert node.refused() is None
    assert node.machine.summary() == "2 jobs, 2 trainers, 0 workers"
