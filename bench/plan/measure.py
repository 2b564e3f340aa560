"""Windows planned one after the other over drawn costs, and what came of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.plan.distributions import WAN, Ints
from bench.stats import median
from libhelix.plan.caps import bucket_size
from libhelix.plan.opening import Opening
from libhelix.plan.planner import Planner, Window
from libhelix.plan.window import FILLER
from libhelix.wire.messages import Row
from libhelix.wire.settings import Base, Batching, Buckets, RecipeSpec, Settings, TokenBudget


class Planned(NamedTuple):
    """What windows had.

    imbalance  max/mean of the ranks' costs in a step, the mean of the steps; `worst` of one step
    bound      the same where nothing but the largest sample of a step stood in the way
    padding    share of what ranks get where each pads its samples to its longest
    fill       share of the budget or of the bucket sizes that is used
    deferred   share of a window's samples that it leaves to the next
    skipped    share of them that fit no micro-batch
    fillers    share of the micro-batches without a sample
    rows_ms    CPU time of a step in which rows are taken; plan_ms in which it is planned (medians)
    """

    imbalance: float
    worst: float
    bound: float
    padding: float
    fill: float
    deferred: float
    skipped: float
    fillers: float
    rows_ms: float
    plan_ms: float
    samples: float

    @property
    def ms(self) -> float:
        """CPU time of a step."""
        return self.rows_ms + self.plan_ms


class _Steps:
    """Ranks' costs and counts, step after step."""

    def __init__(self) -> None:
        self.ratios: list[float] = []
        self.bounds: list[float] = []
        self.used = self.padded = 0

    def add(self, loads: Ints, largest: Ints, counts: Ints) -> None:
        mean = float(loads.mean())
        self.ratios.append(float(loads.max()) / mean)
        self.bounds.append(max(1.0, float(largest.max()) / mean))
        self.used += int(loads.sum())
        self.padded += int((largest * counts).sum())


def rows_of(costs: Sequence[int], groups: Sequence[str] | None = None) -> list[Row]:
    """Rows as `describe` gives them. Samples that are alike share one: planning looks at no numbers."""
    known: dict[tuple[int, str], Row] = {}
    found = []
    for at, cost in enumerate(costs):
        key = (cost, groups[at] if groups is not None else "")
        row = known.get(key)
        if row is None:
            row = known[key] = Row(0, (), {"tokens": cost}, 1, (), (0,), key[1])
        found.append(row)
    return found


def plain(costs: Ints, ranks: int, samples: int, steps: int) -> Planned:
    """What ranks get that take consecutive slices of the order."""
    found = _Steps()
    for step in costs[: steps * ranks * samples].reshape(steps, ranks, samples):
        found.add(step.sum(axis=1), step.max(axis=1), np.full(ranks, samples, dtype=np.int64))
    return _planned(found, [0.0], [0.0], samples=float(ranks * samples))


def planned(costs: Ints, rows: Sequence[Row], batching: Batching, ranks: int, windows: int) -> Planned:
    """What ranks get from so many windows. There have to be more rows than these take."""
    planner = Planner(settings(len(rows), batching, ranks))
    padded = np.append(costs, 0)  # of a filler, at FILLER
    found, rows_ms, plan_ms = _Steps(), [], []
    taken = left = skipped = fillers = steps = 0
    filled: list[float] = []
    base = Base(0, 0, 0)
    for _ in range(windows):
        began_s = time.process_time()
        opening = planner.open(base)
        describing_s = _describe(opening, rows)
        described_s = time.process_time()
        window = planner.plan(opening)
        planned_s = time.process_time()
        n = len(window.steps)
        rows_ms.append((described_s - began_s - describing_s) / n * 1e3)
        plan_ms.append((planned_s - described_s) / n * 1e3)
        for step in window.steps:
            loads, largest, counts = _ranks(step[0], padded)
            found.add(loads, largest, counts)
            fillers += int((counts == 0).sum())
            filled.append(_fill(batching, step[0], loads, counts, rows))
        steps += n
        taken += len(opening.taken)
        left += len(window.after.carried)
        skipped += len(window.dropped)
        base = _following(window)
    return _planned(
        found,
        rows_ms,
        plan_ms,
        fill=float(np.mean(filled)),
        deferred=left / taken,
        skipped=skipped / taken,
        fillers=fillers / (steps * ranks),
        samples=(taken - left - skipped) / steps,
    )


def settings(samples: int, batching: Batching, ranks: int) -> Settings:
    """Those of a loader in the order of the index: costs are drawn independently."""
    return Settings(
        recipe=RecipeSpec("any", "any", "{}"),
        index_fingerprint="",
        index_samples=samples,
        batching=batching,
        seed=0,
        shuffle=False,
        dp_size=ranks,
        replicas=1,
        micro_batches=1,
        ring=3,
        on_bad="mask",
    )


def _describe(opening: Opening, rows: Sequence[Row]) -> float:
    """Put rows until the window is complete; the seconds in which they were looked up here."""
    looked_up_s = 0.0
    while not opening.complete:
        wanted = opening.wants_anew()
        began_s = time.process_time()
        found = [rows[d] for d in wanted]
        looked_up_s += time.process_time() - began_s
        for draw, row in zip(wanted, found):
            opening.put(draw, row)
    return looked_up_s


def _following(window: Window) -> Base:
    if window.after.epoch != window.base.epoch:
        raise ValueError("the rows do not last for so many windows")
    return window.after


def _ranks(micro: Sequence[Sequence[int]], padded: Ints) -> tuple[Ints, Ints, Ints]:
    """Cost, largest sample and samples of every rank."""
    draws = np.fromiter((d for rank in micro for d in rank), dtype=np.int64)
    lengths = np.fromiter((len(rank) for rank in micro), dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    costs = padded[draws]
    counts: NDArray[np.int64] = np.add.reduceat((draws != FILLER).astype(np.int64), starts)
    return np.add.reduceat(costs, starts), np.maximum.reduceat(costs, starts), counts


def _fill(
    batching: Batching, micro: Sequence[Sequence[int]], loads: Ints, counts: Ints, rows: Sequence[Row]
) -> float:
    if isinstance(batching, TokenBudget):
        return float(loads.mean()) / batching.tokens
    if isinstance(batching, Buckets):
        sizes = [bucket_size(batching, rows[rank[0]]) if n else n for rank, n in zip(micro, counts.tolist())]
        shares = [n / size if size else 0.0 for n, size in zip(counts.tolist(), sizes)]
        return float(np.mean(shares))
    return 1.0


def _planned(
    found: _Steps,
    rows_ms: Sequence[float],
    plan_ms: Sequence[float],
    *,
    samples: float,
    fill: float = 1.0,
    deferred: float = 0.0,
    skipped: float = 0.0,
    fillers: float = 0.0,
) -> Planned:
    return Planned(
        imbalance=float(np.mean(found.ratios)),
        worst=max(found.ratios),
        bound=float(np.mean(found.bounds)),
        padding=1 - found.used / found.padded,
        fill=fill,
        deferred=deferred,
        skipped=skipped,
        fillers=fillers,
        rows_ms=median(rows_ms),
        plan_ms=median(plan_ms),
        samples=samples,
    )


def bucket_rows(places: Ints) -> tuple[Ints, list[Row]]:
    """Costs and rows of bucketed video."""
    costs = np.asarray([bucket.tokens for bucket in WAN], dtype=np.int64)[places]
    return costs, rows_of(costs.tolist(), [WAN[i].name for i in places.tolist()])
