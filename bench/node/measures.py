"""A run -> its measures; runs -> medians and quotients. Pure.

Times are undilated: what was measured, divided by the dilation. The warm-up does not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from bench.demo.stats import miss_over_s
from bench.node.case import Case, Step
from bench.node.runs import Run
from bench.node.watch import Taken
from bench.stats import median, percentile


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """Of a run.

    samples_per_s, tokens_per_s   of the node
    wait_*_ms         in next(), of every micro-batch and rank
    misses            share of rank-steps that waited longer than max(1 ms, 1 % of the median step), all
                      micro-batches of the step together
    step_misses       share of steps in which some rank did
    fixed_misses      as `misses`, with 1 % of the mean window instead: the same for all systems
    utilisation       windows / (ranks x time)
    imbalance         the longest window of a step / the mean one, on average
    of_bound          of max(decode work / cores, windows / ranks), how much is reached
    of_own_bound      with the longest window of each step instead, as the system dealt samples out
    demand            decode work / (cores x balanced windows): rho as it came out
    cpu_ms_per_sample     real CPU time of all processes; real_cores: how many cores that kept busy
    node_cores        how many it would be at full speed; helixd_cores: of helixd alone, which has one thread
    overhead_ms_per_sample   emulated: the same, as none of it is decoding; real: less the recorded decoding
    shared_mb, private_mb    most memory at once
    first_batch_s     from the start of ranks' loaders to the last rank's first batch; as it was, dilated
    """

    samples_per_s: float
    tokens_per_s: float
    wait_p50_ms: float
    wait_p95_ms: float
    wait_p99_ms: float
    wait_max_ms: float
    misses: float
    step_misses: float
    fixed_misses: float
    utilisation: float
    imbalance: float
    of_bound: float
    of_own_bound: float
    demand: float
    cpu_ms_per_sample: float
    overhead_ms_per_sample: float
    real_cores: float
    node_cores: float
    helixd_cores: float
    shared_mb: float
    private_mb: float
    first_batch_s: float


class Spread(msgspec.Struct, frozen=True):
    """Of some runs."""

    median: float
    least: float
    most: float


NAMES = Measures.__struct_fields__


def measures(case: Case, run: Run) -> Measures:
    """Those of a run. Raises ValueError where no step is left after the warm-up."""
    per, skip = case.micro_batches, case.warm_up * case.micro_batches
    ranks = [trained.steps for trained in run.ranks]
    if not ranks or len(ranks[0]) <= skip or not skip:
        raise ValueError(f"{case.warm_up} steps warm up, and none is left: there is nothing to measure")
    dilation = case.dilation
    began_s = max(steps[skip - 1].done_at_s for steps in ranks)
    ended_s = max(steps[-1].done_at_s for steps in ranks)
    took_s = ended_s - began_s
    columns = [[steps[k] for steps in ranks] for k in range(skip, len(ranks[0]))]
    flat = [step for column in columns for step in column]
    samples = sum(len(s.ids) for s in flat)
    balanced_s = math.fsum(s.window_s for s in flat) / len(ranks)
    decode_s = math.fsum(s.decode_s for s in flat) / case.decoders
    longest_s = _longest_s(columns, per)
    ends = [began_s, *(max(s.done_at_s for s in column) for column in columns[per - 1 :: per])]
    late_s = miss_over_s(median([b - a for a, b in pairwise(ends)]) / dilation)
    fixed_s = miss_over_s(balanced_s / (len(columns) / per) / dilation)
    waits_s = [s.wait_s / dilation for s in flat]
    by_step_s = [
        [math.fsum(column[r].wait_s for column in columns[k : k + per]) / dilation for r in range(len(ranks))]
        for k in range(0, len(columns), per)
    ]
    flat_steps_s = [wait_s for step in by_step_s for wait_s in step]
    cpu_s = cpu_between(run.taken, began_s, ended_s)
    if cpu_s < 0:
        raise ValueError(f"CPU time fell by {-cpu_s:.1f} s: processes were lost sight of")
    helixd_s = cpu_between(run.daemon, began_s, ended_s) if run.daemon else 0.0
    emulated = case.emulated is not None
    return Measures(
        samples_per_s=samples / took_s * dilation,
        tokens_per_s=sum(s.tokens for s in flat) / took_s * dilation,
        wait_p50_ms=percentile(waits_s, 0.5) * 1e3,
        wait_p95_ms=percentile(waits_s, 0.95) * 1e3,
        wait_p99_ms=percentile(waits_s, 0.99) * 1e3,
        wait_max_ms=max(waits_s) * 1e3,
        misses=_share(w > late_s for w in flat_steps_s),
        step_misses=_share(max(step) > late_s for step in by_step_s),
        fixed_misses=_share(w > fixed_s for w in flat_steps_s),
        utilisation=balanced_s / took_s,
        imbalance=longest_s / balanced_s,
        of_bound=max(decode_s, balanced_s) / took_s,
        of_own_bound=max(decode_s, longest_s) / took_s,
        demand=decode_s / balanced_s,
        cpu_ms_per_sample=cpu_s / samples * 1e3,
        overhead_ms_per_sample=(cpu_s - (0.0 if emulated else decode_s * case.decoders)) / samples * 1e3,
        real_cores=cpu_s / took_s,
        node_cores=cpu_s / took_s * dilation,
        helixd_cores=helixd_s / took_s * dilation,
        shared_mb=run.peak.shared / 1e6,
        private_mb=run.peak.private / 1e6,
        first_batch_s=max(trained.first_batch_s for trained in run.ranks),
    )


def _longest_s(columns: Sequence[Sequence[Step]], per: int) -> float:
    """Of every step the windows of the rank that computes longest."""
    total = 0.0
    for k in range(0, len(columns), per):
        micros = columns[k : k + per]
        total += max(sum(column[r].window_s for column in micros) for r in range(len(micros[0])))
    return total


def _share(hits: Iterable[bool]) -> float:
    found = list(hits)
    return sum(found) / len(found)


def cpu_between(taken: Sequence[Taken], began_s: float, ended_s: float) -> float:
    """CPU seconds between two times, linear between readings."""
    return _cpu_at(taken, ended_s) - _cpu_at(taken, began_s)


def _cpu_at(taken: Sequence[Taken], at_s: float) -> float:
    for a, b in pairwise(taken):
        if at_s <= b.at_s and b.at_s > a.at_s:
            share = max(0.0, (at_s - a.at_s) / (b.at_s - a.at_s))
            return a.cpu_s + share * (b.cpu_s - a.cpu_s)
    return taken[-1].cpu_s if taken else math.nan


def spreads(found: Sequence[Measures]) -> dict[str, Spread]:
    """By name, of some runs."""
    columns = {name: [float(getattr(m, name)) for m in found] for name in NAMES}
    return {name: Spread(median(v), min(v), max(v)) for name, v in columns.items()}


def quotient(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float | None:
    """The median of the quotients of repetitions that were measured beside each other, by their number; None
    where there is no such pair."""
    found = [ours[number] / of for number, of in theirs.items() if number in ours and of]
    return median(found) if found else None


def geometric(values: Sequence[float]) -> float:
    """The geometric mean; NaN of none."""
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else math.nan


def reduction(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How much less of something there is, on average over workloads: 1 - mean(ours) / mean(theirs)."""
    return 1 - math.fsum(ours) / math.fsum(theirs) if math.fsum(theirs) else math.nan
