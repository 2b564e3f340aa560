"""What the core tells helixctl why and helixctl trace."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest

from helixd.core import account
from helixd.core import actions as a
from helixd.core.history import BATCHES_KEPT, TASKS_KEPT, BatchRecord, TaskRecord
from helixd.core.machine import STATUS_PART_CHARS
from libhelix.wire import messages as m
from libhelix.wire.settings import Position
from tests.helixd.core import world as w
from tests.helixd.core.node import Node


def _ask(node: Node, about: Literal["status", "why", "trace"], uid: int = 0, **more: Any) -> Any:
    conn = node.connect("ctl", uid=uid)
    node.tell(a.Received(conn, m.StatusAsk(about, **more)))
    parts = node.said(conn, m.Status)
    assert [p.last for p in parts] == [False] * (len(parts) - 1) + [True]
    assert all(len(p.json) <= STATUS_PART_CHARS for p in parts)
    answer = json.loads("".join(p.json for p in parts))
    assert answer["about"] == about
    return answer


@pytest.fixture
def node() -> Node:
    """Two ranks that have taken some batches."""
    node = Node()
    for rank in range(2):
        node.attach(rank, w.settings("stack"))
    node.run(lambda: all(len(t.taken) > 5 for t in node.trainers))
    return node


def _history(node: Node) -> Any:
    (job,) = node.machine.jobs.values()
    (stream,) = job.streams.values()
    return stream.history


def _fill(node: Node, batches: int, tasks_each: int = 2) -> None:
    """Steps of 0.1 s of one rank, of tasks of 30 ms on both cores, and each 20 ms late."""
    history = _history(node)
    history.batches.clear()
    history.tasks.clear()
    for k in range(batches):
        at, asked = Position(0, k, 0), 10 + k * 0.1
        for i in range(tasks_each):
            began = asked - 0.02 + i // 2 * 0.03
            task = (i % 2, began, began + 0.03, 22_500, 7_500, asked, 0, at, (k * 10 + i,))
            history.tasks.append(TaskRecord(*task))
        history.batches.append(
            BatchRecord(
                at=at,
                rank=0,
                no_room_since=None,
                granted=asked - 0.03,
                began=asked - 0.02,
                ready=asked + 0.02,
                due=asked,
                decode_us=60_000,
                stall_us=20_000,
                longest=(0.03, k * 10),
                nbytes=100,
                asked=asked,
                wait_s=0.02,
                window_s=0.08,
            )
        )


@pytest.mark.parametrize("about", ["status", "why", "trace"])
def test_users_are_told_of_their_own_jobs(node: Node, about: Literal["status", "why", "trace"]) -> None:
    assert [job["job"] for job in _ask(node, about, uid=1)["jobs"]] == ["j"]
    assert [job["job"] for job in _ask(node, about, uid=0)["jobs"]] == ["j"]
    assert _ask(node, about, uid=2)["jobs"] == []


def test_a_loader_whose_steps_took_no_time_is_judged_too(node: Node) -> None:
    (loader,) = _ask(node, "why")["jobs"][0]["loaders"]
    assert loader["verdict"]["cause"] == "accelerator"
    assert loader["indexes"] == [{"path": "i", "root": "r"}]


def test_the_verdict_is_on_the_steps_that_were_asked_for(node: Node) -> None:
    _fill(node, 50)
    verdict = _ask(node, "why", first=10, last=20)["jobs"][0]["loaders"][0]["verdict"]
    assert (verdict["first"], verdict["last"], verdict["batches"]) == ([0, 10], [0, 20], 11)
    assert verdict["cause"] == "describe"
    assert verdict["cure"] == "rows come too late: make describe cheaper, or raise regroup="
    assert verdict["cores_busy"] == pytest.approx(0.3)
    assert verdict["stall_share"] == pytest.approx(0.25)
    assert _ask(node, "why", first=50)["jobs"][0]["loaders"][0]["verdict"] is None


@pytest.mark.parametrize("tasks_each", [2, 6])
def test_only_batches_all_of_whose_tasks_are_known_are_judged(node: Node, tasks_each: int) -> None:
    """Else cores would seem idle in steps whose tasks are forgotten."""
    _fill(node, BATCHES_KEPT, tasks_each)
    verdict = _ask(node, "why")["jobs"][0]["loaders"][0]["verdict"]
    assert verdict["last"] == [0, BATCHES_KEPT - 1]
    expected = min(account.JUDGED_BATCHES, account.JUDGED_TASKS // tasks_each)
    assert verdict["batches"] == pytest.approx(expected, abs=1)
    assert verdict["cores_busy"] == pytest.approx(0.15 * tasks_each, rel=0.01)
    if tasks_each == 6:  # what is asked for lies before all that is known
        assert _ask(node, "why", last=100)["jobs"][0]["loaders"][0]["verdict"] is None


def test_a_trace_has_the_newest_records_and_says_how_many_it_leaves_out(node: Node) -> None:
    _fill(node, BATCHES_KEPT)
    (job,) = _ask(node, "trace")["jobs"]
    (loader,) = job["loaders"]
    assert job["cores"] == [0, 1]
    assert loader["left_out"] == {
        "batches": BATCHES_KEPT - account.TRACED_BATCHES,
        "tasks": TASKS_KEPT - account.TRACED_TASKS,
        "errands": 0,
    }
    batch = dict(zip(job["fields"]["batches"], loader["batches"][-1], strict=True))
    assert (batch["at"], batch["rank"], batch["wait_s"]) == ([0, BATCHES_KEPT - 1, 0], 0, 0.02)
    task = dict(zip(job["fields"]["tasks"], loader["tasks"][-1], strict=True))
    assert (task["at"], task["core"], task["cpu_us"]) == ([0, BATCHES_KEPT - 1, 0], 1, 22_500)
    assert len(loader["batches"]) == account.TRACED_BATCHES


def test_several_loaders_share_what_an_answer_may_hold(node: Node) -> None:
    node.attach(0, w.settings("stack", dp_size=1), name="evaluation")
    node.run(lambda: len(node.trainers[-1].taken) > 3)
    (job,) = node.machine.jobs.values()
    for stream in job.streams.values():
        for k in range(TASKS_KEPT):
            stream.history.tasks.append(TaskRecord(0, k, k + 0.5, 1, 0, None, None, None, (k,)))
    loaders = _ask(node, "trace")["jobs"][0]["loaders"]
    assert [len(loader["tasks"]) for loader in loaders] == [account.TRACED_TASKS // 2] * 2
    assert len(_ask(node, "why")["jobs"][0]["loaders"]) == 2
