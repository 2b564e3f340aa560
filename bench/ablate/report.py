"""Runs -> figures, targets and the table. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec
from rich.table import Table

from bench.ablate.requests import Step
from bench.ablate.systems import FULL, LOCAL, POOLED, REGROUP, SAMPLES, SYSTEMS
from bench.demo.stats import miss_over_s
from bench.results import Results, Target
from bench.stats import median, percentile

NOISE = 0.05
"""By so much one of two equal systems may come out slower."""

TARGETS = (
    Target("samples_to_pooled", ">=", 1 - NOISE),
    Target("full_to_samples", ">=", 1 - NOISE),
)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a system: its steps, each with the ranks' own."""

    system: str
    steps: tuple[tuple[Step, ...], ...]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What limits all systems: cores, and CPU seconds that a sample takes to decode."""

    cores: int
    cpu_s_per_sample: float


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A run without its warm-up. of_bound: of max(CPU work / cores, accelerator work / ranks). of_own_bound:
    with the accelerator work of the heaviest rank of each step instead, which sharing out decides."""

    samples_per_s: float
    of_bound: float
    of_own_bound: float
    misses: float
    wait_p50_ms: float
    wait_p95_ms: float


def run_figures(run: Run, bounds: Bounds, warm_up: int) -> RunFigures:
    """The figures of a run. Raises ValueError where no step is left after `warm_up`."""
    steps = run.steps[warm_up:]
    if not steps or warm_up < 1:
        raise ValueError(f"{len(run.steps)} steps, of which {warm_up} warm up: there is nothing to measure")
    flat = [s for step in steps for s in step]
    began_s = _done_s(run.steps[warm_up - 1])
    took_s = _done_s(steps[-1]) - began_s
    samples = sum(len(s.ids) for s in flat)
    cpu_s = samples * bounds.cpu_s_per_sample / bounds.cores
    shared_s = math.fsum(s.window_s for s in flat) / len(steps[0])
    heaviest_s = math.fsum(max(s.window_s for s in step) for step in steps)
    waits = [s.wait_s for s in flat]
    ends = [_done_s(step) for step in run.steps[warm_up - 1 :]]
    late_s = miss_over_s(median([b - a for a, b in pairwise(ends)]))
    return RunFigures(
        samples_per_s=samples / took_s,
        of_bound=max(cpu_s, shared_s) / took_s,
        of_own_bound=max(cpu_s, heaviest_s) / took_s,
        misses=sum(w > late_s for w in waits) / len(waits),
        wait_p50_ms=percentile(waits, 0.5) * 1e3,
        wait_p95_ms=percentile(waits, 0.95) * 1e3,
    )


def _done_s(step: Sequence[Step]) -> float:
    return max(s.done_at_s for s in step)


def figures(runs: Sequence[Run], bounds: Bounds, warm_up: int) -> dict[str, float]:
    """Medians over the repetitions; quotients of two systems are medians of those of each repetition."""
    found: dict[str, float] = {}
    rates: dict[str, list[float]] = {}
    for system in SYSTEMS:
        measured = [run_figures(r, bounds, warm_up) for r in runs if r.system == system.name]
        rates[system.name] = [m.samples_per_s for m in measured]
        for name in RunFigures.__struct_fields__:
            found[f"{system.name}_{name}"] = median([getattr(m, name) for m in measured])
    for above, below in ((SAMPLES, POOLED), (FULL, SAMPLES), (FULL, POOLED), (FULL, LOCAL)):
        quotients = [a / b for a, b in zip(rates[above.name], rates[below.name])]
        found[f"{above.name}_to_{below.name}"] = median(quotients)
    return found


def same_samples(runs: Sequence[Run]) -> bool:
    """Whether all runs had the same samples in every whole window of steps."""
    whole = range(0, len(runs[0].steps) - REGROUP + 1, REGROUP)
    seen = [[_visits(run.steps[a : a + REGROUP]) for a in whole] for run in runs]
    return all(windows == seen[0] for windows in seen)


def _visits(steps: Sequence[Sequence[Step]]) -> list[tuple[int, int]]:
    return sorted((s.epoch, i) for step in steps for s in step for i in s.ids)


def per_token_s(
    *, cpu_s_per_sample: float, tokens_per_sample: float, cores: int, ranks: int, demand: float
) -> float:
    """Accelerator seconds of a token with which decoding takes `demand` of the cores, if ranks are level."""
    samples_per_s = demand * cores / cpu_s_per_sample
    return ranks / (samples_per_s * tokens_per_sample)


def table(results: Results) -> Table:
    """What people read."""
    f = results.figures
    shown = Table(title="Medians of the repetitions", title_justify="left")
    shown.add_column("", style="bold", no_wrap=True)
    for column in ("samples/s", "of bound", "own", "misses", "p95 wait"):
        shown.add_column(column, justify="right", no_wrap=True)
    for system in SYSTEMS:
        name = system.name
        shown.add_row(
            system.title,
            f"{f[f'{name}_samples_per_s']:.1f}",
            f"{f[f'{name}_of_bound']:.2f}",
            f"{f[f'{name}_of_own_bound']:.2f}",
            f"{f[f'{name}_misses']:.0%}",
            f"{f[f'{name}_wait_p95_ms']:.0f} ms",
        )
    return shown
