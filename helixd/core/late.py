"""What a batch waits for that a trainer has been asking for for long."""

from __future__ import annotations

from helixd.core.batch import DescribeTask, FillTask
from helixd.core.consumer import Consumer
from helixd.core.pool import Pool

LATE_S = 30.0
"""A trainer that waits for so long is told why."""


def why_late(consumer: Consumer, pool: Pool, now: float) -> tuple[str, int | None]:
    """(text, the sample that it is about)."""
    if pool.host is None:
        return "the worker host is being started, again and again perhaps: see stderr", None
    if consumer.state != "serving":
        what = (
            "the ring's memory is being taken"
            if consumer.state == "reserving"
            else _rows(consumer, pool, now)
        )
        return what, None
    if not consumer.batches:
        if consumer.no_room:
            return "the ring is full of batches that are held, so that there is no room for it", None
        return _rows(consumer, pool, now), None
    batch = consumer.batches[0]
    at_work = [
        (worker, task)
        for worker in pool.workers.values()
        for task in worker.tasks[:1]
        if isinstance(task, FillTask) and task.batch.final is batch
    ]
    if not at_work:
        team = consumer.stream.team
        if team is not None and (elsewhere := team.remote.holds(batch)):
            return f"other nodes are at {elsewhere} of its samples, and workers here at others", None
        others = sum(bool(worker.tasks) for worker in pool.workers.values())
        return f"its samples wait for workers, of which {others} of {len(pool.workers)} are at others", None
    worker, task = min(at_work, key=lambda pair: pair[0].since)
    sample = batch.rows[task.pieces[0].sample].id
    seconds = now - worker.since
    return f"the worker on core {worker.core} has been decoding a sample for {seconds:.0f} s", sample


def _rows(consumer: Consumer, pool: Pool, now: float) -> str:
    """Why a window is not planned yet."""
    stream = consumer.stream
    if stream.team is not None and (other := stream.team.waits_for(now)) is not None:
        return other
    describing = sum(
        isinstance(task, DescribeTask) and task.stream is stream
        for worker in pool.workers.values()
        for task in worker.tasks
    )
    if describing or stream.describes:
        return f"samples are being described, by {describing} workers; {len(stream.describes)} groups wait"
    return "its window is being planned" if stream.windows.planning else "other replicas or ranks are awaited"
