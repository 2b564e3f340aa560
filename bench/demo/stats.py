"""From the records of the ranks to figures. Pure: no clock, no files."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from bench.demo.records import StepRecord
from bench.stats import percentile

MISS_FLOOR_S = 0.001
MISS_SHARE = 0.01
EDGE_STEPS = 5
"""Steps over which the first and the last loss are averaged."""


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A training run in numbers. All but losses, masked and first batch leave out the first step.

    overrun: how much longer a rank computed than its window. trainer_cores: cores that the ranks' own
    processes kept busy.
    """

    steps: int
    ranks: int
    samples: int
    samples_per_s: float
    tokens_per_s: float
    median_step_s: float
    input_wait_p50_s: float
    input_wait_p95_s: float
    input_wait_max_s: float
    misses: int
    asks: int
    miss_over_s: float
    time_to_first_batch_s: float
    overrun_mean_s: float
    trainer_cores: float
    masked: int
    accelerator_bound_samples_per_s: float
    loss_first: float
    loss_last: float


def miss_over_s(median_step_s: float) -> float:
    """A wait longer than this is a miss."""
    return max(MISS_FLOOR_S, MISS_SHARE * median_step_s)


def by_step(records: Sequence[StepRecord]) -> list[list[StepRecord]]:
    """The records of each step, over the ranks, in order of the steps."""
    steps: dict[int, list[StepRecord]] = {}
    for record in records:
        steps.setdefault(record.step, []).append(record)
    return [sorted(steps[k], key=lambda r: r.rank) for k in sorted(steps)]


def losses(records: Sequence[StepRecord]) -> list[float]:
    """The mean loss over the ranks, step by step."""
    return [math.fsum(r.loss for r in step) / len(step) for step in by_step(records)]


def loss_edges(per_step: Sequence[float]) -> tuple[float, float]:
    """The mean of the first and of the last steps: EDGE_STEPS each, fewer where they would overlap."""
    edge = max(1, min(EDGE_STEPS, len(per_step) // 2))
    return math.fsum(per_step[:edge]) / edge, math.fsum(per_step[-edge:]) / edge


def accelerator_bound(steps: Sequence[Sequence[StepRecord]]) -> float:
    """Samples/s if no rank ever waited for input: each step takes the longest window of its ranks."""
    samples = sum(len(r.ids) for step in steps for r in step)
    return samples / math.fsum(max(r.window_s for r in step) for step in steps)


def figures(records: Sequence[StepRecord]) -> RunFigures:
    """The figures of a run. Raises ValueError where there are fewer than two steps to look at."""
    steps = by_step(records)
    if len(steps) < 2:
        raise ValueError(f"{len(steps)} steps; figures need at least 2, because the first is left out")
    steady = steps[1:]
    flat = [r for step in steady for r in step]
    took_s = max(r.done_at_s for r in steps[-1]) - max(r.done_at_s for r in steps[0])
    samples = sum(len(r.ids) for r in flat)
    median_s = percentile([r.done_at_s - r.asked_at_s for r in flat], 0.5)
    waits = [r.wait_s for r in flat]
    first, last = loss_edges(losses(records))
    return RunFigures(
        steps=len(steps),
        ranks=len(steps[0]),
        samples=samples,
        samples_per_s=samples / took_s,
        tokens_per_s=sum(r.tokens for r in flat) / took_s,
        median_step_s=median_s,
        input_wait_p50_s=percentile(waits, 0.5),
        input_wait_p95_s=percentile(waits, 0.95),
        input_wait_max_s=max(waits),
        misses=sum(w > miss_over_s(median_s) for w in waits),
        asks=len(waits),
        miss_over_s=miss_over_s(median_s),
        time_to_first_batch_s=max(r.wait_s for r in steps[0]),
        overrun_mean_s=math.fsum(max(0.0, r.compute_s - r.window_s) for r in flat) / len(flat),
        trainer_cores=math.fsum(r.cpu_s for r in flat) / took_s,
        masked=sum(r.masked for r in records),
        accelerator_bound_samples_per_s=accelerator_bound(steady),
        loss_first=first,
        loss_last=last,
    )
