"""`python -m bench plan`: balance, padding and fill that planning gives, and the CPU time that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec
import numpy as np
from rich.console import Console, Group

from bench.machine import circumstances
from bench.plan import report as r
from bench.plan.distributions import HEAVY, QUANTILES, WAN, Ints, draw, draw_buckets
from bench.plan.measure import bucket_rows, plain, planned, rows_of
from bench.plan.packing import differenced, longest_first
from bench.plan.report import Case, Compared
from bench.results import (
    Results,
    conclude,
    console_for,
    failures_shown,
    load_notes,
    progress_on,
    result_options,
)
from libhelix.wire.settings import Batching, Buckets, FixedBatch, TokenBudget

BUCKETED = "wan"
_SPARE = 1.8
"""Rows are drawn for so much more than what windows are expected to take."""


class PlanSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is planned: `enough` samples in each way, in `windows` windows at least.

    regroup      steps of a window
    compared     windows of these many steps are compared, for `compared_ranks`
    """

    distributions: tuple[str, ...]
    ranks: tuple[int, ...]
    samples: int = 8
    regroup: int = 8
    enough: int = 1 << 17
    most_steps: int = 128
    windows: int = 2
    compared: tuple[int, ...] = (1, 4, 8, 16, 32)
    compared_ranks: int = 64
    compared_steps: int = 64


@click.command()
@click.option(
    "--ranks",
    multiple=True,
    type=click.IntRange(1, 1 << 14),
    help="Only for so many; may be repeated. Targets of others count as missed.  [default: 8 64 1024 8192]",
)
@click.option(
    "--distributions",
    "names",
    multiple=True,
    type=click.Choice([*QUANTILES, BUCKETED]),
    help="Only this one; may be repeated. [default: all]",
)
@result_options
def plan(ranks: tuple[int, ...], names: tuple[str, ...], json_to: Path | None, check: bool) -> None:
    """Plan steps from drawn costs: balance before and after, padding, fill, and CPU time of a step."""
    console = console_for(json_to)
    settings = PlanSettings(distributions=names or (*QUANTILES, BUCKETED), ranks=ranks or r.RANKS)
    with failures_shown("plan", console):
        results, shown = run(settings, console)
        conclude(results, shown, console, json_to=json_to, check=check)


def run(settings: PlanSettings, console: Console) -> tuple[Results, Group]:
    """Plan everything."""
    found = circumstances()
    cases: list[Case] = []
    compared: list[Compared] = []
    heavy = [name for name in settings.distributions if name in HEAVY]
    with progress_on(console) as progress:
        task = progress.add_task("plans", total=len(settings.distributions) * len(settings.ranks))
        for name in settings.distributions:
            for ranks in settings.ranks:
                cases += (
                    bucket_cases(ranks, settings) if name == BUCKETED else cases_of(name, ranks, settings)
                )
                progress.advance(task)
        task = progress.add_task("windows", total=len(heavy) * len(settings.compared))
        for one in windows_compared(heavy, settings):
            compared.append(one)
            progress.advance(task)
    results = Results(
        command="plan",
        figures=r.figures(cases, compared),
        targets=r.TARGETS,
        circumstances=found,
        settings=msgspec.to_builtins(settings),
        notes=load_notes(found),
    )
    tables = [
        r.balance_table(cases, settings.samples, settings.regroup),
        r.time_table(cases, settings.samples, settings.regroup),
        r.bucket_table(cases),
        r.window_table(compared, settings.compared_ranks),
    ]
    return results, Group(*(table for table in tables if table.row_count))


def cases_of(name: str, ranks: int, settings: PlanSettings) -> list[Case]:
    """A distribution of lengths: as the order comes, in fixed batches, and under a token budget."""
    samples, regroup = settings.samples, settings.regroup
    windows = windows_for(ranks, settings)
    steps = windows * regroup
    costs = draw(name, int(steps * ranks * samples * _SPARE) + ranks * samples)
    rows = rows_of(costs.tolist())
    budget = token_budget(costs, samples, regroup)
    ways: list[tuple[str, Batching, int]] = [
        (r.WITHIN, FixedBatch(samples), max(3, min(64, steps // 4))),
        (r.REGROUP, FixedBatch(samples, regroup=regroup), windows),
        (r.TOKENS, budget, windows),
    ]
    return [
        Case(name, ranks, r.BEFORE, plain(costs, ranks, samples, steps)),
        *(Case(name, ranks, way, planned(costs, rows, b, ranks, count)) for way, b, count in ways),
    ]


def bucket_cases(ranks: int, settings: PlanSettings) -> list[Case]:
    """Video in buckets, two samples of the largest in a micro-batch."""
    windows = windows_for(ranks, settings)
    places = draw_buckets(int(windows * settings.regroup * ranks * settings.samples * _SPARE))
    costs, rows = bucket_rows(places)
    compute = 2 * max(bucket.tokens for bucket in WAN)
    ways: list[tuple[str, Batching]] = [
        (r.BUCKETS, Buckets(compute, regroup=settings.regroup)),
        (r.SAME_KIND, Buckets(compute, regroup=settings.regroup, same_kind="step")),
    ]
    return [Case(BUCKETED, ranks, way, planned(costs, rows, b, ranks, windows)) for way, b in ways]


def windows_compared(names: Sequence[str], settings: PlanSettings) -> Iterator[Compared]:
    """The same samples in windows of different lengths."""
    ranks, samples, steps = settings.compared_ranks, settings.samples, settings.compared_steps
    for name in names:
        costs = draw(name, int(steps * ranks * samples * _SPARE) + ranks * samples * max(settings.compared))
        rows = rows_of(costs.tolist())
        for regroup in settings.compared:
            windows = costs[: steps * ranks * samples].reshape(steps // regroup, -1)
            yield Compared(
                name,
                regroup,
                longest_first(windows, ranks, samples),
                differenced(windows, ranks, samples),
                planned(costs, rows, token_budget(costs, samples, regroup), ranks, steps // regroup),
            )


def windows_for(ranks: int, settings: PlanSettings) -> int:
    """How many windows are planned."""
    steps = min(settings.most_steps, settings.enough // (ranks * settings.samples))
    return max(settings.windows, steps // settings.regroup)


def token_budget(costs: Ints, samples: int, regroup: int) -> TokenBudget:
    """One that holds `samples` of the mean; a larger sample is skipped."""
    return TokenBudget(int(samples * np.mean(costs)), regroup=regroup, oversize="skip")
