"""What limits a loader, from what its last batches went through."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from helixd.core.history import BatchRecord, TaskRecord

HARMLESS_SHARE = 0.02
"""Of the time; where trainers wait less for input, it is the accelerators that limit."""
_BUSY = 0.8
"""Share of the cores' time from which on more work would not have been done earlier."""
_STALLED = 0.3
_DESCRIBING = 0.5
_LONG = 0.6
_EXCEPTIONAL = 3.0
"""So many times the longest task of the usual batch is no usual task."""
_SLOWEST = 5

CURES = {
    "accelerator": "input keeps up; nothing to do",
    "decode": "give it more cores, or ask for fewer or smaller frames",
    "storage": "workers wait for bytes: move the data nearer, or cache it",
    "ring": "cores are idle while the ring is full: set a larger ring=",
    "sample": "single samples take longer than their batch has: encode them with more key frames, or leave "
    "them out",
    "streams": "cores are idle while streams of an iterable dataset are gone through: set a larger "
    "num_workers=",
    "describe": "rows come too late: make describe cheaper, or raise regroup=",
}


@dataclass(frozen=True)
class Verdict:
    """What limits the loader in a range of steps. Times are in seconds.

    cause          one of `CURES`
    shares         by cause, the share of all waiting for input that it explains
    misses         batches that were not ready when they were asked for
    wait_share     of the time, in which the step waited for the input of its slowest rank
    cores_busy     share of the owned cores' time that tasks took
    stall_share    of the time of fill tasks, in which they waited for storage
    ran_share      of the time of fill tasks, in which they ran; in the rest, others had their cores
    ask_error_s    median of |predicted - actual| time of asking
    slowest        (sample, seconds of its task), the slowest first
    """

    cause: str
    shares: dict[str, float] = field(default_factory=dict)
    first: tuple[int, int] = (0, 0)
    last: tuple[int, int] = (0, 0)
    batches: int = 0
    misses: int = 0
    step_s: float | None = None
    window_s: float | None = None
    wait_share: float = 0.0
    wait_p95_s: float = 0.0
    cores_busy: float = 0.0
    decode_s_per_step: float = 0.0
    stall_share: float = 0.0
    ran_share: float = 0.0
    ask_error_s: float | None = None
    slowest: tuple[tuple[int, float], ...] = ()


def judge(
    batches: Iterable[BatchRecord],
    tasks: Sequence[TaskRecord],
    cores: int,
    miss_s: float,
    others: Sequence[TaskRecord] = (),
    *,
    chained: bool = False,
) -> Verdict | None:
    """The verdict on these batches, of all ranks of the node; None where no two steps were taken.

    `tasks` are the loader's, `others` those of other loaders on the same cores. `chained`: each batch follows
    from one before, and only one worker can make it. Steps in which a rank began are left out: nothing could
    be decoded ahead of them.
    """
    steps = _steps(batches)
    if len(steps) < 2:
        return None
    taken = [b for step in steps.values() for b in step]
    *ended, latest = sorted(steps)  # how long the latest is going to take, nobody knows yet
    begin, end = _asked(steps[ended[0]]), _asked(steps[latest])
    waited = sum(_waited_s(steps[at]) for at in ended)
    work = _Work([*tasks, *others], cores)
    within = [t for t in tasks if t.ended > begin and t.began < end]
    fill_s = sum(t.ended - t.began for t in within if t.at is not None)
    describe_s = sum(t.ended - t.began for t in within if t.at is None)
    stall_share = sum(t.stall_us for t in within) * 1e-6 / fill_s if fill_s > 0 else 0.0
    describing = describe_s > _DESCRIBING * (fill_s + describe_s)
    late = [b for b in taken if b.asked is not None and b.wait_s > miss_s and b.ready > b.asked]
    usual_s = sorted(b.longest[0] for b in taken)[len(taken) // 2]
    shares: dict[str, float] = {}
    for batch in late:
        cause = _cause(batch, work, usual_s)
        if cause in ("decode", "sample") and stall_share > _STALLED:
            cause = "storage"
        elif chained and cause != "decode":
            cause = "streams"
        elif cause == "decode" and describing:
            cause = "describe"
        shares[cause] = shares.get(cause, 0.0) + batch.wait_s
    total = sum(shares.values())
    share = waited / (end - begin) if end > begin else 0.0
    harmless = not total or share < HARMLESS_SHARE
    windows = sorted(b.window_s for b in taken if b.window_s is not None)
    errors = sorted(abs(b.due - b.asked) for b in taken if b.asked is not None)
    waits = sorted(b.wait_s for b in taken)
    return Verdict(
        cause="accelerator" if harmless else max(shares, key=shares.__getitem__),
        shares={cause: seconds / total for cause, seconds in sorted(shares.items())} if total else {},
        first=ended[0],
        last=latest,
        batches=len(taken),
        misses=len(late),
        step_s=(end - begin) / len(ended),
        window_s=windows[len(windows) // 2] if windows else None,
        wait_share=share,
        wait_p95_s=waits[len(waits) * 95 // 100],
        cores_busy=work.busy(begin, end),
        decode_s_per_step=sum(b.decode_us for b in taken) * 1e-6 / len(steps),
        stall_share=stall_share,
        ran_share=sum(t.cpu_us for t in within) * 1e-6 / fill_s if fill_s > 0 else 0.0,
        ask_error_s=errors[len(errors) // 2] if errors else None,
        slowest=_slowest(within),
    )


def _steps(batches: Iterable[BatchRecord]) -> dict[tuple[int, int], list[BatchRecord]]:
    """What was taken, by (epoch, step), without the steps in which a rank began."""
    steps: dict[tuple[int, int], list[BatchRecord]] = {}
    for batch in batches:
        if batch.asked is not None:
            steps.setdefault((batch.at.epoch, batch.at.step), []).append(batch)
    return {at: step for at, step in steps.items() if not any(b.opening for b in step)}


def _waited_s(step: Iterable[BatchRecord]) -> float:
    """How long the rank that waited longest did, for all micro-batches of a step."""
    waits: dict[int, float] = {}
    for batch in step:
        waits[batch.rank] = waits.get(batch.rank, 0.0) + batch.wait_s
    return max(waits.values())


def _asked(step: Iterable[BatchRecord]) -> float:
    """When the first rank asked for a batch of a step."""
    return min(b.asked for b in step if b.asked is not None)


class _Work:
    """What tasks took of the cores between any two times: each question costs two searches, not a pass."""

    def __init__(self, tasks: Iterable[TaskRecord], cores: int) -> None:
        ran = [(t.began, t.ended) for t in tasks]
        self._cores = max(1, cores)
        self._began, self._ended = sorted(b for b, _ in ran), sorted(e for _, e in ran)
        self._began_sums = list(accumulate(self._began, initial=0.0))
        self._ended_sums = list(accumulate(self._ended, initial=0.0))

    def _until(self, at: float) -> float:
        begun, over = bisect_left(self._began, at), bisect_left(self._ended, at)
        return begun * at - self._began_sums[begun] - (over * at - self._ended_sums[over])

    def busy(self, begin: float, end: float) -> float:
        """The share of the cores' time between two times that tasks took."""
        if end <= begin:
            return 1.0
        return (self._until(end) - self._until(begin)) / ((end - begin) * self._cores)


def _cause(batch: BatchRecord, work: _Work, usual_s: float) -> str:
    """Why a batch came late; `usual_s` is what the longest task of a batch usually takes."""
    assert batch.asked is not None
    since, late_s, making_s = batch.no_room_since, batch.ready - batch.asked, batch.ready - batch.began
    if since is None and batch.granted > batch.asked:
        return "describe"
    alone = work.busy(batch.began, batch.ready) < _BUSY and batch.longest[0] > _LONG * making_s
    if alone and batch.longest[0] > _EXCEPTIONAL * usual_s:
        return "sample"
    if since is None:  # there was room all the time: it could begin as soon as its rows were there
        return "describe" if work.busy(batch.granted, batch.ready) < _BUSY else "decode"
    # With room it would have begun earlier, if only cores had been idle then.
    if batch.granted - since > late_s / 2 and work.busy(since, batch.granted) < _BUSY:
        return "ring"
    return "sample" if alone else "decode"


def _slowest(tasks: Iterable[TaskRecord]) -> tuple[tuple[int, float], ...]:
    longest: dict[int, float] = {}
    for task in tasks:
        if task.at is not None and len(task.samples) == 1:
            longest[task.samples[0]] = max(longest.get(task.samples[0], 0.0), task.ended - task.began)
    return tuple(sorted(longest.items(), key=lambda pair: -pair[1])[:_SLOWEST])
