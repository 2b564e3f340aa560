"""Figures, targets and tables of `bench plan`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from rich.table import Table

from bench.plan.distributions import HEAVY
from bench.plan.measure import Planned
from bench.plan.packing import Packing
from bench.results import Target

RANKS = (8, 64, 1024, 8192)
INSIDE = 1.10
REGROUPED = 1.03
LEAST_FILL = 0.97
MOST_MS = {64: 5.0, 8192: 150.0}
"""Of CPU time for a step, by ranks."""

TARGETS = (
    *(Target(f"heavy_{n}_inside_max_over_mean", "<=", INSIDE) for n in RANKS),
    *(Target(f"heavy_{n}_inside_over_bound", "<=", INSIDE) for n in RANKS),
    *(Target(f"heavy_{n}_regrouped_max_over_mean", "<=", REGROUPED) for n in RANKS),
    *(Target(f"heavy_{n}_regrouped_over_bound", "<=", REGROUPED) for n in RANKS),
    *(Target(f"wan_{n}_buckets_fill", ">=", LEAST_FILL) for n in RANKS),
    *(Target(f"slowest_{n}_ms_per_step", "<=", most) for n, most in MOST_MS.items()),
)

BEFORE, WITHIN, REGROUP, TOKENS = "before", "inside", "regrouped", "tokens"
BUCKETS, SAME_KIND = "buckets", "buckets_by_step"


class Case(NamedTuple):
    """A distribution, planned for so many ranks in one way."""

    distribution: str
    ranks: int
    way: str
    planned: Planned


class Compared(NamedTuple):
    """A window of so many steps: samples packed in two ways, and a token budget."""

    distribution: str
    steps: int
    longest: Packing
    differenced: Packing
    tokens: Planned


def figures(cases: Sequence[Case], compared: Sequence[Compared]) -> dict[str, float]:
    """By name, and what targets are about: the worst of the heavy distributions, the slowest of all."""
    found: dict[str, float] = {}
    for case in cases:
        prefix, p = f"{case.distribution}_{case.ranks}_{case.way}", case.planned
        found[f"{prefix}_max_over_mean"] = p.imbalance
        found[f"{prefix}_worst_step"] = p.worst
        found[f"{prefix}_bound"] = p.bound
        found[f"{prefix}_padding"] = p.padding
        if case.way == BEFORE:
            continue
        found[f"{prefix}_fill"] = p.fill
        found[f"{prefix}_deferred"] = p.deferred
        found[f"{prefix}_skipped"] = p.skipped
        found[f"{prefix}_fillers"] = p.fillers
        found[f"{prefix}_rows_ms_per_step"] = p.rows_ms
        found[f"{prefix}_plan_ms_per_step"] = p.plan_ms
        found[f"{prefix}_ms_per_step"] = p.ms
        found[f"{prefix}_us_per_sample"] = p.ms / p.samples * 1e3
    for ranks in dict.fromkeys(case.ranks for case in cases):
        found |= _summary([case for case in cases if case.ranks == ranks], ranks)
    for one in compared:
        prefix = f"{one.distribution}_window_{one.steps}"
        found[f"{prefix}_lpt_max_over_mean"] = one.longest.imbalance
        found[f"{prefix}_lpt_ms_per_step"] = one.longest.ms_per_step
        found[f"{prefix}_differencing_max_over_mean"] = one.differenced.imbalance
        found[f"{prefix}_differencing_ms_per_step"] = one.differenced.ms_per_step
        found[f"{prefix}_tokens_max_over_mean"] = one.tokens.imbalance
        found[f"{prefix}_tokens_fill"] = one.tokens.fill
        found[f"{prefix}_tokens_deferred"] = one.tokens.deferred
    return found


def _summary(cases: Sequence[Case], ranks: int) -> dict[str, float]:
    found = {}
    for way in (BEFORE, WITHIN, REGROUP):
        heavy = [c.planned for c in cases if c.way == way and c.distribution in HEAVY]
        if heavy:
            found[f"heavy_{ranks}_{way}_max_over_mean"] = max(p.imbalance for p in heavy)
            found[f"heavy_{ranks}_{way}_over_bound"] = max(p.imbalance / p.bound for p in heavy)
    if timed := [c.planned for c in cases if c.way != BEFORE]:
        found[f"slowest_{ranks}_ms_per_step"] = max(p.ms for p in timed)
        found[f"median_{ranks}_us_per_sample"] = float(np.median([p.ms / p.samples * 1e3 for p in timed]))
    return found


def balance_table(cases: Sequence[Case], samples: int, regroup: int) -> Table:
    """Fixed batches: how level the ranks of a step are."""
    shown = _table(
        f"FixedBatch({samples}): max/mean of ranks in a step, and what its largest sample allows",
        ("ranks", "before", "inside", "least", f"W = {regroup}", "least", "padding"),
        caption="* heavy tail   padding: to a rank's longest sample, before and regrouped",
    )
    for label, ranks, last, ways in _rows(cases):
        before, inside, regrouped = (ways[way] for way in (BEFORE, WITHIN, REGROUP))
        shown.add_row(
            label,
            ranks,
            f"{before.imbalance:.2f}",
            *(f"{value:.3f}" for p in (inside, regrouped) for value in (p.imbalance, p.bound)),
            f"{before.padding:.0%} {regrouped.padding:.0%}",
            end_section=last,
        )
    return shown


def time_table(cases: Sequence[Case], samples: int, regroup: int) -> Table:
    """Token budgets, and CPU time."""
    shown = _table(
        f"TokenBudget of {samples} means, W = {regroup}; CPU ms of a step, also of FixedBatch",
        ("ranks", "max/mean", "fill", "left", "skipped", "ms", "fixed"),
        caption="left: share of samples left to the next window   ms: rows taken and planned",
    )
    for label, ranks, last, ways in _rows(cases):
        regrouped, tokens = (ways[way] for way in (REGROUP, TOKENS))
        shown.add_row(
            label,
            ranks,
            f"{tokens.imbalance:.3f}",
            f"{tokens.fill:.3f}",
            f"{tokens.deferred:.1%}",
            f"{tokens.skipped:.2%}",
            *(f"{p.ms:.3g}" for p in (tokens, regrouped)),
            end_section=last,
        )
    return shown


def _table(title: str, columns: Sequence[str], caption: str | None = None) -> Table:
    shown = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    shown.add_column("", style="bold", no_wrap=True)
    for column in columns:
        shown.add_column(column, justify="right", no_wrap=True)
    return shown


def _rows(cases: Sequence[Case]) -> Iterator[tuple[str, str, bool, dict[str, Planned]]]:
    """Label, ranks, whether it is the last of a distribution, and what was planned in each way."""
    found: dict[tuple[str, int], dict[str, Planned]] = {}
    for case in cases:
        if case.way not in (BUCKETS, SAME_KIND):
            found.setdefault((case.distribution, case.ranks), {})[case.way] = case.planned
    keys = list(found)
    for k, (name, ranks) in enumerate(keys):
        first, last = k == 0 or keys[k - 1][0] != name, k + 1 == len(keys) or keys[k + 1][0] != name
        label = name + (" *" if name in HEAVY else "") if first else ""
        yield label, f"{ranks:,}", last, found[name, ranks]


def bucket_table(cases: Sequence[Case]) -> Table:
    """Video in buckets."""
    shown = _table("wan: Buckets, same_kind=", ("ranks", "fill", "max/mean", "left", "fillers", "ms/step"))
    for case in cases:
        if case.way not in (BUCKETS, SAME_KIND):
            continue
        p = case.planned
        shown.add_row(
            "batch" if case.way == BUCKETS else "step",
            f"{case.ranks:,}",
            f"{p.fill:.3f}",
            f"{p.imbalance:.3f}",
            f"{p.deferred:.1%}",
            f"{p.fillers:.2%}",
            f"{p.ms:.2f}",
        )
    return shown


def window_table(compared: Sequence[Compared], ranks: int) -> Table:
    """Means over the heavy distributions."""
    shown = _table(
        f"Windows of W steps, {ranks} ranks: max/mean and CPU ms/step, means of heavy tails",
        ("longest first", "ms", "differencing", "ms", "tokens", "fill", "left"),
    )
    for steps in dict.fromkeys(c.steps for c in compared):
        mine = [c for c in compared if c.steps == steps]
        shown.add_row(
            f"W = {steps}",
            f"{np.mean([c.longest.imbalance for c in mine]):.4f}",
            f"{np.mean([c.longest.ms_per_step for c in mine]):.2f}",
            f"{np.mean([c.differenced.imbalance for c in mine]):.4f}",
            f"{np.mean([c.differenced.ms_per_step for c in mine]):.2f}",
            f"{np.mean([c.tokens.imbalance for c in mine]):.4f}",
            f"{np.mean([c.tokens.fill for c in mine]):.3f}",
            f"{np.mean([c.tokens.deferred for c in mine]):.1%}",
        )
    return shown
