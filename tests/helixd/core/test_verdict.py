"""What limited a loader is read from histories, made by hand here, of each way in which input can be late."""

from __future__ import annotations

from typing import Any

import pytest

from helixd.core.account import chosen
from helixd.core.history import BatchRecord, TaskRecord
from helixd.core.verdict import CURES, Verdict, judge
from libhelix.wire.settings import Position

MISS_S = 0.001


def _batch(step: int, asked: float | None, wait_s: float = 0.0, **more: Any) -> BatchRecord:
    """A batch of a step; if not said otherwise, it began and was granted 50 ms before it was ready, and was
    ready when the wait was over."""
    ready = more.pop("ready", None)
    if ready is None:
        ready = (asked or 0.0) + wait_s if wait_s else (asked or 0.0) - 0.01
    made: dict[str, Any] = {
        "rank": 0,
        "no_room_since": None,
        "granted": ready - 0.05,
        "began": ready - 0.05,
        "due": asked or 0.0,
        "decode_us": 50_000,
        "stall_us": 0,
        "longest": (0.02, 7),
        "nbytes": 1000,
        "wait_s": wait_s,
        "window_s": 0.1 if asked is not None else None,
    }
    at = Position(more.pop("epoch", 0), step, more.pop("micro", 0))
    return BatchRecord(at=at, ready=ready, asked=asked, **{**made, **more})


def _task(core: int, began: float, ended: float, *, stall: float = 0.0, **more: Any) -> TaskRecord:
    """A fill task, `stall` of whose time it waited for storage; `at=None`: a describe task."""
    us = int((ended - began) * 1e6)
    made: dict[str, Any] = {"due": 0.0, "rank": 0, "at": Position(0, 0, 0), "samples": (7,)}
    return TaskRecord(core, began, ended, int(us * (1 - stall)), int(us * stall), **{**made, **more})


def _busy(until: float, share: float = 1.0, cores: int = 2, **more: Any) -> list[TaskRecord]:
    """Tasks of 20 ms on every core, one each 20 ms / share."""
    every = 0.02 / share
    return [
        _task(c, k * every, k * every + 0.02, **more) for k in range(int(until / every)) for c in range(cores)
    ]


def _judge(batches: list[BatchRecord], tasks: list[TaskRecord], **more: Any) -> Verdict:
    found = judge(batches, tasks, 2, MISS_S, **more)
    assert found is not None
    return found


def _late(count: int = 10, **more: Any) -> list[BatchRecord]:
    """Steps of 0.2 s: every batch was granted long before, is 0.1 s late, and worked on for 0.1 s."""
    return [_batch(k, 1.0 + k * 0.2, 0.1, granted=0.8 + k * 0.2, **more) for k in range(count)]


def test_input_that_is_there_when_asked_for_leaves_the_accelerator_to_limit() -> None:
    found = _judge([_batch(k, 1 + k * 0.1) for k in range(11)], _busy(3.0, share=0.5))
    assert (found.cause, found.misses, found.shares, found.wait_share) == ("accelerator", 0, {}, 0.0)
    assert found.step_s == pytest.approx(0.1)
    assert found.window_s == pytest.approx(0.1)
    assert found.cores_busy == pytest.approx(0.5, abs=0.02)
    assert found.decode_s_per_step == pytest.approx(0.05)


def test_waits_below_two_percent_of_the_time_do_not_limit() -> None:
    batches = [_batch(k, 1 + k * 0.1) for k in range(100)]
    batches[50].wait_s, batches[50].ready = 0.1, batches[50].asked + 0.1  # type: ignore[operator]
    found = _judge(batches, _busy(12.0))
    assert (found.cause, found.misses) == ("accelerator", 1)
    assert found.shares == {"decode": pytest.approx(1.0)}
    assert found.wait_share == pytest.approx(0.1 / 9.9)


def test_busy_cores_are_decoding_that_limits() -> None:
    found = _judge(_late(), _busy(4.0))
    assert (found.cause, found.misses) == ("decode", 10)
    assert found.step_s == pytest.approx(0.2)
    assert found.wait_share == pytest.approx(0.5)
    assert found.wait_p95_s == pytest.approx(0.1)


def test_tasks_that_wait_for_bytes_are_storage_that_limits() -> None:
    found = _judge(_late(), _busy(4.0, stall=0.6))
    assert found.cause == "storage"
    assert found.stall_share == pytest.approx(0.6)
    assert found.ran_share == pytest.approx(0.4)
    assert _judge(_late(), _busy(4.0, stall=0.2)).cause == "decode"


def test_long_tasks_that_wait_for_bytes_are_storage_too() -> None:
    batches = _late(longest=(0.1, 7), no_room_since=0.7)
    for batch in batches:
        batch.began = batch.ready - 0.11
        batch.no_room_since = batch.granted - 0.01
    tasks = [_task(0, b.began, b.ready, stall=0.9) for b in batches]
    assert _judge(batches, tasks).cause == "storage"
    assert _judge(batches, [_task(0, b.began, b.ready) for b in batches]).cause == "sample"


def test_streams_that_one_worker_makes_limit_where_cores_are_idle() -> None:
    late = _late(longest=(0.1, 7))
    for batch in late:
        batch.began = batch.ready - 0.11
    tasks = [_task(0, b.began, b.ready) for b in late]
    assert _judge(late, tasks).cause == "describe"
    assert _judge(late, tasks, chained=True).cause == "streams"
    assert _judge(_late(), _busy(4.0), chained=True).cause == "decode"
    assert _judge(_late(), _busy(4.0, stall=0.6), chained=True).cause == "storage"


def test_time_of_describing_does_not_hide_that_storage_limits() -> None:
    described = [_task(1, k * 0.05, k * 0.05 + 0.04, at=None, rank=None) for k in range(80)]
    found = _judge(_late(), [t for t in _busy(4.0, stall=0.4) if t.core == 0] + described)
    assert found.cause == "storage"
    assert found.stall_share == pytest.approx(0.4)


def test_idle_cores_while_a_batch_waits_for_room_are_a_ring_that_limits() -> None:
    batches = [_batch(k, 1.0 + k * 0.2, 0.05, no_room_since=0.9 + k * 0.2) for k in range(10)]
    for batch in batches:  # made in 50 ms; it waited for room for 100 ms before
        batch.began = batch.granted = batch.ready - 0.05
    idle = [_task(c, b.began, b.ready) for b in batches for c in range(2)]
    assert _judge(batches, idle).cause == "ring"
    assert _judge(batches, _busy(4.0)).cause == "decode", "with busy cores more room would not have helped"


def test_room_that_came_late_is_not_to_blame_for_what_took_much_longer_to_make() -> None:
    batches = _late(no_room_since=0.0)
    for batch in batches:
        batch.granted = batch.ready - 0.12
        batch.no_room_since = batch.granted - 0.01
        batch.began = batch.granted
    tasks = [_task(c, b.began, b.ready) for b in batches for c in range(2)]
    assert _judge(batches, tasks).cause == "decode"


def test_one_long_sample_beside_idle_cores_limits_alone() -> None:
    batches = [_batch(k, 1.0 + k * 0.1) for k in range(20)]
    tasks = [_task(0, b.began, b.began + 0.02) for b in batches]
    for k in (5, 12):
        long = batches[k]
        long.wait_s, long.longest = 0.3, (0.4, 99)
        long.ready = long.asked + 0.3  # type: ignore[operator]
        long.granted = long.began = long.ready - 0.41
        tasks.append(_task(1, long.began, long.began + 0.4, samples=(99,)))
    found = _judge(batches, tasks)
    assert found.cause == "sample"
    assert found.shares == {"sample": pytest.approx(1.0)}
    assert found.slowest[0][0] == 99
    assert found.slowest[0][1] == pytest.approx(0.4)
    for k in (5, 12):  # that it began when there was room does not change what it takes
        batches[k].no_room_since = batches[k].granted - 0.3
    assert _judge(batches, tasks).cause == "sample"


def test_samples_that_are_all_as_long_need_more_of_them_at_once() -> None:
    """One sample a batch: each is the longest of its batch, and none is to blame."""
    batches = [_batch(k, 1 + k * 0.2, 0.1, longest=(0.15, k), no_room_since=0.8 + k * 0.2) for k in range(10)]
    for batch in batches:
        batch.granted = batch.began = batch.ready - 0.15
    assert _judge(batches, [_task(0, b.began, b.ready) for b in batches]).cause == "ring"


def test_batches_whose_rows_came_after_they_were_asked_for_waited_for_describe() -> None:
    batches = _late()
    for batch in batches:
        batch.granted = batch.began = batch.ready - 0.02
    assert _judge(batches, []).cause == "describe"


def test_batches_that_never_waited_for_room_beside_idle_cores_waited_for_their_rows() -> None:
    batches = _late()
    idle = [_task(c, b.began, b.ready) for b in batches for c in range(2)]
    assert _judge(batches, idle).cause == "describe"
    for batch in batches:
        batch.granted = batch.began  # less than it takes before it is asked for
        batch.asked, batch.wait_s = batch.ready - 0.02, 0.02
    one_core = [_task(0, b.began, b.ready) for b in batches]
    assert _judge(batches, one_core).cause == "describe"
    assert _judge(batches, idle).cause == "decode"


def test_cores_that_describe_most_of_the_time_are_not_short_of_cores_for_decoding() -> None:
    describing = [t for t in _busy(4.0, at=None, rank=None) if t.core == 0]
    filling = [t for t in _busy(4.0, share=0.8) if t.core == 1]
    assert _judge(_late(), describing + filling).cause == "describe"
    describing = [t for t in _busy(4.0, share=0.8, at=None, rank=None) if t.core == 0]
    filling = [t for t in _busy(4.0) if t.core == 1]
    assert _judge(_late(), describing + filling).cause == "decode"


def test_tasks_of_other_loaders_keep_cores_busy_too() -> None:
    batches = [_batch(k, 1.0 + k * 0.2, 0.05, no_room_since=0.9 + k * 0.2) for k in range(10)]
    tasks = [_task(0, b.began, b.ready, samples=(1, 2)) for b in batches]
    assert _judge(batches, tasks).cause == "ring"
    found = _judge(batches, tasks, others=_busy(4.0, share=0.9))
    assert found.cause == "decode"
    assert found.slowest == (), "theirs are not its samples"


def test_a_wait_for_what_was_ready_is_no_miss_of_input() -> None:
    batches = [_batch(k, 1.0 + k * 0.2, 0.05, ready=0.9 + k * 0.2) for k in range(10)]
    found = _judge(batches, _busy(4.0))
    assert (found.cause, found.misses) == ("accelerator", 0)
    assert found.wait_share == pytest.approx(0.25)


def test_a_step_waits_for_its_slowest_rank_over_all_its_micro_batches() -> None:
    batches = [
        _batch(k, 1 + k * 1.0 + micro * 0.5, wait_s, rank=rank, micro=micro)
        for k in range(5)
        for micro in range(2)
        for rank, wait_s in ((0, 0.15), (1, 0.2 if micro else 0.0))
    ]
    assert _judge(batches, _busy(8.0)).wait_share == pytest.approx(0.3)
    batches[-1].wait_s = 9.0  # of the last step only its beginning counts: it is not over
    assert _judge(batches, _busy(8.0)).wait_share == pytest.approx(0.3)


def test_the_first_step_of_a_rank_is_left_out_and_two_more_are_needed() -> None:
    first = _batch(0, 0.0, 9.0, opening=True)
    second, third = _batch(1, 9.1), _batch(2, 9.2)
    assert judge([], [], 2, MISS_S) is None
    assert judge([first, second], [], 2, MISS_S) is None
    assert judge([second, _batch(2, None)], [], 2, MISS_S) is None
    found = _judge([first, second, third], [])
    assert (found.cause, found.first, found.last, found.batches) == ("accelerator", (0, 1), (0, 2), 2)
    assert _judge([second, _batch(2, 9.2, rank=1), third], []).batches == 3
    assert judge([second, _batch(2, 9.2, rank=1, opening=True), third], [], 2, MISS_S) is None


def test_how_far_predicted_asks_were_off_is_a_median() -> None:
    batches = [_batch(k, 1 + k * 0.1, due=1 + k * 0.1 + off) for k, off in enumerate((0.01, -0.02, 0.5))]
    assert _judge(batches, []).ask_error_s == pytest.approx(0.02)


def test_every_cause_has_a_cure() -> None:
    assert set(CURES) == {"accelerator", "decode", "storage", "ring", "sample", "streams", "describe"}


# ---- which batches -------------------------------------------------------------------------------------


def _steps(batches: list[BatchRecord], *args: Any) -> list[tuple[int, int]]:
    return [(b.at.epoch, b.at.step) for b in chosen(batches, *args)]


def test_steps_are_those_of_the_newest_epoch_that_was_taken() -> None:
    batches = [_batch(k % 4, 1.0 + k, epoch=k // 4) for k in range(8)] + [_batch(0, None, epoch=2)]
    assert len(_steps(batches, None, None, None)) == 8
    assert _steps(batches, None, 1, 2) == [(1, 2), (1, 1)]
    assert _steps(batches, None, 2, None) == [(1, 3), (1, 2)]
    assert _steps(batches, None, None, 0) == [(1, 0)]
    assert _steps(batches, None, 7, 9) == []


def test_what_came_before_ranks_went_back_is_not_mixed_with_what_came_after() -> None:
    batches = [_batch(k, 1.0 + k) for k in range(5)] + [_batch(k, 11.0 + k) for k in (3, 4, 5)]
    assert _steps(batches, None, None, None) == [(0, 5), (0, 4), (0, 3)]


def test_batches_whose_tasks_are_forgotten_are_not_judged() -> None:
    batches = [_batch(k, 1.0 + k) for k in range(5)]
    assert _steps(batches, batches[2].granted, None, None) == [(0, 4), (0, 3), (0, 2)]
