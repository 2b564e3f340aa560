"""What is going on, for `helixctl status`: jobs, loaders, consumers, rings, workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from helixd.core.consumer import Consumer
    from helixd.core.job import Job
    from helixd.core.stream import Stream


def view(jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """The state of these jobs."""
    return [_job(j) for j in jobs]


def counted(n: int, noun: str) -> str:
    """ "1 job", "2 jobs"."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _job(job: Job) -> dict[str, Any]:
    return {
        "job": job.name,
        "uid": job.uid,
        "trainers": sorted(t.pid for t in job.pool.trainers.values()),
        "host": job.pool.host is not None,
        "cores": {
            "owned": sorted(job.pool.share.owned),
            "reserved": sorted(job.pool.share.reserved),
            "limit": job.pool.limit_millis / 1000 if job.pool.limit_millis is not None else None,
        },
        "workers": [
            {"core": w.core, "tasks": len(w.tasks), "done": w.done}
            for w in sorted(job.pool.workers.values(), key=lambda w: w.core)
        ],
        "loaders": [_stream(s) for s in job.streams.values()],
    }


def _stream(stream: Stream) -> dict[str, Any]:
    return {
        "loader": stream.name,
        "recipe": str(stream.settings.recipe),
        "dp_size": stream.settings.dp_size,
        "steps_per_epoch": stream.planner.steps_per_epoch,
        "bad_samples": sum(stream.bad.values()),
        "failure": stream.failure.text if stream.failure is not None else None,
        "nodes": stream.team.view() if stream.team is not None else None,
        "staging": stream.staging.view(),
        "consumers": [_consumer(c) for _, c in sorted(stream.consumers.items())],
    }


def _rate(consumer: Consumer) -> float | None:
    """Samples a second that the trainer took lately."""
    times = consumer.taken_at
    if len(times) < 2 or times[-1][0] <= times[0][0]:
        return None
    samples = sum(n for _, n in list(times)[1:])
    return round(samples / (times[-1][0] - times[0][0]), 3)


def _consumer(consumer: Consumer) -> dict[str, Any]:
    granted, leased = consumer.ledger.used() if consumer.ledger is not None else (0, 0)
    taken = max((h.taken for h in consumer.live if h.taken is not None), default=None)
    waits = sorted(w for h in consumer.live for w in h.waits_us)
    return {
        "rank": consumer.rank,
        "state": consumer.state,
        "replicas": len(consumer.live),
        "delivered": consumer.delivered,
        "device": next((h.tier for h in consumer.live if h.tier is not None), None),
        "samples_per_s": _rate(consumer),
        "at": list(msgspec.structs.astuple(taken)) if taken is not None else None,
        "ring_bytes": {
            "total": consumer.ledger.nbytes if consumer.ledger is not None else 0,
            "filling": granted,
            "leased": leased,
        },
        "ignored_releases": consumer.ledger.ignored_releases if consumer.ledger is not None else 0,
        "wait_p50_ms": waits[len(waits) // 2] / 1000 if waits else None,
        "wait_p95_ms": waits[len(waits) * 95 // 100] / 1000 if waits else None,
    }
