"""What limited loaders, and what workers and ranks did, for `helixctl why` and `trace`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from helixd.core.decode_cost import mape, rank_correlation
from helixd.core.history import BatchRecord, ErrandRecord, TaskRecord
from helixd.core.verdict import CURES, judge
from libhelix.wire.settings import Position

if TYPE_CHECKING:
    from helixd.core.job import Job
    from helixd.core.stream import Stream

_T = TypeVar("_T")
TRACED_BATCHES, TRACED_TASKS, TRACED_ERRANDS = 2048, 8192, 2048
JUDGED_BATCHES, JUDGED_TASKS = 1024, 4096
"""Of one answer, of all its loaders together: what takes helixd no more than about 5 ms, so that trainers do
not wait for it."""
_COEFFICIENTS = ("batch", "million_tokens", "million_million_squared_tokens", "million_latents")


def why(jobs: Sequence[Job], first: int | None, last: int | None) -> list[dict[str, Any]]:
    """What limits each loader in steps [first, last] of its newest epoch, or in all that is recorded, and
    what was learned about costs."""
    loaders = max(1, sum(len(job.streams) for job in jobs))
    return [
        {
            **_head(job),
            "decode_costs": [asdict(q) for q in job.costs.quality()],
            "loaders": _all_judged(job, first, last, loaders),
        }
        for job in jobs
    ]


def trace(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """The newest batches and tasks of each loader, as arrays whose places `fields` names."""
    loaders = max(1, sum(len(job.streams) for job in jobs))
    fields = {
        "batches": BatchRecord.__struct_fields__,
        "tasks": TaskRecord.__struct_fields__,
        "errands": ErrandRecord.__struct_fields__,
    }
    most = TRACED_BATCHES // loaders, TRACED_TASKS // loaders, TRACED_ERRANDS // loaders
    return [
        {**_head(job), "fields": fields, "loaders": [_recorded(s, *most) for s in job.streams.values()]}
        for job in jobs
    ]


def _head(job: Job) -> dict[str, Any]:
    return {"job": job.name, "uid": job.uid, "cores": sorted(job.pool.cores)}


def _recorded(stream: Stream, most_batches: int, most_tasks: int, most_errands: int) -> dict[str, Any]:
    history = stream.history
    return {
        "loader": stream.name,
        "left_out": {
            "batches": max(0, len(history.batches) - most_batches),
            "tasks": max(0, len(history.tasks) - most_tasks),
            "errands": max(0, len(history.errands) - most_errands),
        },
        "batches": newest(history.batches, most_batches),
        "tasks": newest(history.tasks, most_tasks),
        "errands": newest(history.errands, most_errands),
    }


def newest(records: Sequence[_T], most: int) -> list[_T]:
    """The last `most` of them, oldest first."""
    found = list(islice(reversed(records), most))
    found.reverse()
    return found


# ---- why -----------------------------------------------------------------------------------------------


def _all_judged(job: Job, first: int | None, last: int | None, loaders: int) -> list[dict[str, Any]]:
    # Of others only the newest tasks, and looked up once: with many loaders that is all that fits.
    newest_tasks = {name: newest(s.history.tasks, JUDGED_TASKS // loaders) for name, s in job.streams.items()}
    return [_judged(job, s, first, last, loaders, newest_tasks) for s in job.streams.values()]


def _judged(
    job: Job,
    stream: Stream,
    first: int | None,
    last: int | None,
    loaders: int,
    newest_tasks: dict[str, list[TaskRecord]],
) -> dict[str, Any]:
    tasks = list(stream.history.tasks)
    complete_since = tasks[0].ended if len(tasks) == stream.history.tasks.maxlen else None
    found = chosen(stream.history.batches, complete_since, first, last)
    batches = list(islice(found, JUDGED_BATCHES // loaders))
    cores, most = job.pool.count(), JUDGED_TASKS // loaders
    tasks = _meanwhile(tasks, batches, cores)
    if len(tasks) > most:
        tasks = tasks[-most:]
        batches = [b for b in batches if b.granted >= tasks[0].ended]
    others = [
        t
        for name, recent in newest_tasks.items()
        if name != stream.name
        for t in _meanwhile(recent, batches, cores)
    ]
    miss_s = stream.readiness.miss_s()
    verdict = judge(batches, tasks, cores, miss_s, others, chained=stream.settings.chains > 0)
    return {
        "loader": stream.name,
        "recipe": str(stream.settings.recipe),
        "helps": stream.team is not None and stream.team.helps,
        "fingerprint": stream.settings.index_fingerprint,
        "indexes": [{"path": ref.path, "root": ref.root} for ref in stream.indexes],
        "miss_s": miss_s,
        "verdict": {**asdict(verdict), "cure": CURES[verdict.cause]} if verdict is not None else None,
        "remote": stream.team.remote.view() if stream.team is not None else None,
        "window_model": _window_model(stream),
    }


def _meanwhile(tasks: list[TaskRecord], batches: Sequence[BatchRecord], cores: int) -> list[TaskRecord]:
    """Of tasks in the order of their ends, those that ran while batches, the newest first, were made and
    worked on."""
    if not batches:
        return []
    begin = min(b.granted if b.no_room_since is None else b.no_room_since for b in batches)
    latest = batches[0]
    taken = latest.ready if latest.asked is None else latest.asked + latest.wait_s
    end = taken + (latest.window_s or 0.0)
    a = bisect_left(tasks, begin, key=attrgetter("ended"))
    b = bisect_right(tasks, end, key=attrgetter("ended")) + cores  # a core may be at one still
    return tasks[a:b]


def chosen(
    batches: Sequence[BatchRecord], since: float | None, first: int | None, last: int | None
) -> Iterator[BatchRecord]:
    """What was taken in steps [first, last] of the newest epoch, or at all where neither is said; the newest
    first. Only what was granted after `since`, and not what came before ranks went back to an earlier
    position: its steps come again."""
    seen: set[tuple[int, Position]] = set()
    epoch: int | None = None
    for batch in reversed(batches):
        if batch.asked is None:
            continue
        if (batch.rank, batch.at) in seen or (since is not None and batch.granted < since):
            return
        seen.add((batch.rank, batch.at))
        epoch = batch.at.epoch if epoch is None else epoch
        if first is not None or last is not None:
            if batch.at.epoch != epoch or batch.at.step < (first or 0):
                continue
            if last is not None and batch.at.step > last:
                continue
        yield batch


def _window_model(stream: Stream) -> dict[str, Any]:
    model = stream.readiness.model
    pairs = list(model.errors)
    return {
        "usual_s": stream.readiness.usual_s,
        "seconds_per": dict(zip(_COEFFICIENTS, model.coefficients))
        if model.coefficients is not None
        else None,
        "windows": len(pairs),
        "mape": mape(pairs) if pairs else None,
        "rank_correlation": rank_correlation(pairs),
    }
