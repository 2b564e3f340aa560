"""Figures of a run. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from bench.simulate.case import WARM_UP_STEPS, Case
from bench.simulate.rank import Taken
from bench.stats import median, percentile

MIN_MISS_S = 0.001
MISS_SHARE = 0.01


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the measured steps took, from the end of the warm-up to the end of the last.

    cpu_s          what they left to decode, over the cores of the node that had most
    shared_cpu_s   the same over all cores, were it shared out as they are fast
    accelerator_s  computing of the heaviest rank of every step; `balanced_s`: were all ranks level
    misses         share of the waits beyond what helixd's moving window of steps counts as a miss
    misses_fixed   beyond 1 ms and 1 % of the median step of all these steps
    copies         share of the batches that a rank had to copy, as its ring did not turn otherwise
    busy           share of the cores' time in which they decoded
    leader_bytes   that the leader's daemon said to others in the whole run, without samples
    node_bytes     the same of the node that said most of the others
    """

    seconds: float
    samples: int
    cpu_s: float
    shared_cpu_s: float
    accelerator_s: float
    balanced_s: float
    misses: float
    misses_fixed: float
    wait_p50_ms: float
    wait_p95_ms: float
    step_ms: float
    copies: float
    busy: float
    events: int
    leader_bytes: int = 0
    node_bytes: int = 0

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.samples / self.seconds

    @property
    def of_bound(self) -> float:
        """Share of what its plan allows: the slower of decoding and the heaviest rank of every step."""
        return max(self.cpu_s, self.accelerator_s) / self.seconds

    @property
    def of_shared(self) -> float:
        """Share of what its plan allows to nodes that help each other."""
        return max(self.shared_cpu_s, self.accelerator_s) / self.seconds

    @property
    def of_ideal(self) -> float:
        """Share of what cores and accelerators allow, were all ranks level."""
        return max(self.cpu_s, self.balanced_s) / self.seconds


def outcome_of(
    case: Case,
    takings: Sequence[Sequence[Taken]],
    ended: Sequence[float],
    done: Sequence[Sequence[tuple[float, float, int, float]]],
    *,
    copies: int,
    events: int,
) -> Outcome:
    """`takings` by rank; `ended`: when each step ended; `done`: (began, ended, sample, work) by node."""
    began, last = ended[WARM_UP_STEPS - 1], ended[case.last_step - 1]
    seconds = last - began
    taken = [[t for t in mine if t.at.step >= WARM_UP_STEPS] for mine in takings]
    heaviest: dict[int, float] = {}
    total_s = 0.0
    for mine in taken:
        loads: defaultdict[int, float] = defaultdict(float)
        for t in mine:
            loads[t.at.step] += t.window_s
        for step, load_s in loads.items():
            heaviest[step] = max(heaviest.get(step, 0.0), load_s)
            total_s += load_s
    steps_s = [b - a for a, b in zip(ended[WARM_UP_STEPS - 1 :], ended[WARM_UP_STEPS:])]
    step_s = median(steps_s)
    miss_s = max(MIN_MISS_S, MISS_SHARE * step_s)
    waits = [t for mine in taken for t in mine]
    waits_s = [t.wait_s for t in waits]
    samples = case.steps * case.per_step
    speeds = [1 / case.slowness(node) for node in range(case.nodes)]
    left = [_left(tasks, began, case.last_step * case.per_step) for tasks in done]
    busy_s = sum(max(0.0, min(e, last) - max(b, began)) for tasks in done for b, e, _, _ in tasks)
    return Outcome(
        seconds=seconds,
        samples=samples,
        cpu_s=max(left) / case.cores,
        shared_cpu_s=sum(s * v for s, v in zip(left, speeds)) / (case.cores * sum(speeds)),
        accelerator_s=sum(heaviest.values()),
        balanced_s=total_s / case.all_ranks,
        misses=sum(t.wait_s > t.miss_s for t in waits) / len(waits),
        misses_fixed=sum(s > miss_s for s in waits_s) / len(waits),
        wait_p50_ms=median(waits_s) * 1e3,
        wait_p95_ms=percentile(waits_s, 0.95) * 1e3,
        step_ms=step_s * 1e3,
        copies=copies / sum(len(mine) for mine in takings),
        busy=busy_s / (seconds * case.cores * case.nodes),
        events=events,
    )


def _left(tasks: Sequence[tuple[float, float, int, float]], began: float, end: int) -> float:
    """CPU seconds of the samples before `end` that were not decoded yet when measuring began."""
    left_s = 0.0
    for task_began, task_ended, sample, work_s in tasks:
        if sample < end and task_ended > began:
            left_s += work_s * min(1.0, (task_ended - began) / (task_ended - task_began))
    return left_s
