"""`python -m bench simulate`: what every lever of the scheduler is worth, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console, Group
from rich.progress import Progress, TaskID

from bench.machine import circumstances
from bench.plan.distributions import QUANTILES
from bench.results import (
    Results,
    conclude,
    console_for,
    failures_shown,
    progress_on,
    result_options,
)
from bench.simulate import report as r
from bench.simulate.case import ASIDE, FULL, LADDER, LOGNORMAL, RANK_LOCAL, SYSTEMS, Case, System
from bench.simulate.corpus import Corpus
from bench.simulate.outcome import Outcome
from bench.simulate.run import simulate as simulate_case
from bench.simulate.slices import SEARCHED, crossed, full, searches, short
from libhelix.recipe import MAX_CUTS

Known = dict[tuple[Case, str], Outcome]


class ListOf(click.ParamType):  # type: ignore[type-arg]  # not generic at run time in older clicks
    """Numbers between commas."""

    name = "LIST"

    def __init__(self, number: Callable[[str], Any], least: float) -> None:
        self._number, self._least = number, least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A tuple of them."""
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(self._number(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of numbers such as 8,16", param, ctx)
        if min(found) < self._least:
            self.fail(f"{min(found)} is less than {self._least:g}", param, ctx)
        return found


_WHOLE, _REAL = ListOf(int, 1), ListOf(float, 0.01)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is run: every case under every system, and for `searched` the least look-ahead that does."""

    cases: tuple[Case, ...]
    systems: tuple[str, ...]
    searched: tuple[Case, ...] = ()


@click.command(
    epilog="""\b
Examples:
  python -m bench simulate --check                            five cases, about a minute
  python -m bench simulate --cores 16,32 --demand 0.9,1.0     every combination
  python -m bench simulate --nodes 128 --steps 8 --system datahelix
  python -m bench simulate --full --json bench-out/simulate.json""",
)
@click.option("--cores", type=_WHOLE, help="For decoding, of a node.  [default: 16]")
@click.option("--lookahead", type=_WHOLE, help="Batches of every rank's ring.  [default: 3]")
@click.option("--demand", type=_REAL, help="CPU demand, of what cores give.  [default: 0.8]")
@click.option("--sigma", type=_REAL, help="Of the logarithm of lengths.  [default: 1.0]")
@click.option("--micro", type=_WHOLE, help="Micro-batches of a step.  [default: 1]")
@click.option("--nodes", type=_WHOLE, help="Of 8 ranks each, 1 to 1024.  [default: 1]")
@click.option("--ranks", type=click.IntRange(1, 64), default=8, show_default=True, help="Of a node.")
@click.option(
    "--samples", type=click.IntRange(1, 4096), default=8, show_default=True, help="Of a rank in a step."
)
@click.option(
    "--lengths",
    type=click.Choice([LOGNORMAL, *QUANTILES]),
    default=LOGNORMAL,
    help="Where lengths are drawn from; tables are those of bench plan.  [default: lognormal]",
)
@click.option(
    "--decode-ms",
    type=click.FloatRange(1),
    default=100.0,
    show_default=True,
    help="Of a sample of the mean length.",
)
@click.option(
    "--cuts",
    type=click.IntRange(0, MAX_CUTS),
    default=MAX_CUTS,
    show_default=True,
    help="Where a sample can be cut, at most; 0: as images.",
)
@click.option("--noise", type=click.FloatRange(0, 2), default=0.3, show_default=True, help="Of costs, sigma.")
@click.option("--storage-ms", type=click.FloatRange(0), default=0.0, help="Each task waits for storage.")
@click.option("--skew", is_flag=True, help="One source in as many as ranks costs three times as much.")
@click.option("--bursts", is_flag=True, help="In two steps of eight samples cost three times as much.")
@click.option(
    "--slow-node", type=click.FloatRange(1), default=1.0, help="The first node takes so much longer."
)
@click.option(
    "--slow-nodes",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="So many nodes do, spread over all.",
)
@click.option("--steps", type=click.IntRange(8), default=48, show_default=True, help="That are measured.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of lengths and costs.")
@click.option(
    "--system",
    "systems",
    multiple=True,
    type=click.Choice(list(SYSTEMS)),
    help="Only these.  [default: those that add up]",
)
@click.option("--full", "whole", is_flag=True, help="All slices; a quarter of an hour.")
@result_options
def simulate(
    cores: tuple[int, ...] | None,
    lookahead: tuple[int, ...] | None,
    demand: tuple[float, ...] | None,
    sigma: tuple[float, ...] | None,
    micro: tuple[int, ...] | None,
    nodes: tuple[int, ...] | None,
    systems: tuple[str, ...],
    whole: bool,
    json_to: Path | None,
    check: bool,
    **fixed: Any,
) -> None:
    """Run the scheduler of helixd in virtual time, lever by lever: throughput, misses, waits."""
    console = console_for(json_to)
    lists = {
        "cores": cores,
        "lookahead": lookahead,
        "demand": demand,
        "sigma": sigma,
        "micro": micro,
        "nodes": nodes,
    }
    chosen = {name: values for name, values in lists.items() if values is not None}
    _check_options(chosen, fixed, whole)
    plan = planned(Case(**fixed), chosen, systems, whole=whole)
    with failures_shown("simulate", console):
        results, shown = run(plan, console)
        conclude(results, shown, console, json_to=json_to, check=check)


def _check_options(chosen: dict[str, tuple[Any, ...]], fixed: dict[str, Any], whole: bool) -> None:
    if whole and chosen:
        raise click.UsageError(f"--full chooses by itself: leave out --{' and --'.join(chosen)}")
    for micro in chosen.get("micro", (1,)):
        if fixed["samples"] % micro:
            raise click.UsageError(f"--samples {fixed['samples']} do not make {micro} equal micro-batches")
    if max(chosen.get("nodes", (1,))) > 1024:
        raise click.UsageError("--nodes: at most 1024 are simulated")
    if fixed["slow_nodes"] > min(chosen.get("nodes", (1,))):
        raise click.UsageError("--slow-nodes: there are not so many nodes")
    if fixed["steps"] % 8:
        raise click.UsageError("--steps: windows of 8 steps are compared; give a multiple of 8")


def planned(
    base: Case, chosen: dict[str, tuple[Any, ...]], systems: Sequence[str], *, whole: bool = False
) -> Plan:
    """What options ask for: all slices, combinations of what was chosen, or a selection."""
    cases = full(base) if whole else list(crossed(base, chosen)) if chosen else short(base)
    names = tuple(systems) or tuple(system.name for system in LADDER)
    default = not chosen and not systems
    searched = tuple(searches(base)) if default else ()
    return Plan(cases=tuple(cases), systems=names, searched=searched)


def run(plan: Plan, console: Console) -> tuple[Results, Group]:
    """Run everything."""
    found = circumstances()
    known: Known = {}
    jobs = [(case, SYSTEMS[name]) for case in plan.cases for name in plan.systems]
    if plan.searched:
        jobs += [(plan.searched[0], system) for system in ASIDE]
    with progress_on(console) as progress:
        bar = progress.add_task("cases", total=len(jobs))
        _run_all(jobs, known, progress, bar)
        bar = progress.add_task("look-ahead", total=2 * len(plan.searched))
        needed = [
            _needed(case, system, known, progress, bar)
            for case in plan.searched
            for system in (RANK_LOCAL, FULL)
        ]
    ran = [r.Ran(case, system.name, known[case, system.name]) for case, system in jobs]
    results = Results(
        command="simulate",
        figures=r.figures(ran, needed),
        targets=r.TARGETS,
        circumstances=found,
        settings=msgspec.to_builtins(plan),
        notes=tuple(f"a target is missed at {text}" for text in r.shortfalls(ran)),
    )
    return results, Group(*r.tables(ran, needed))


def _run_all(jobs: Sequence[tuple[Case, System]], known: Known, progress: Progress, bar: TaskID) -> None:
    corpus: tuple[Case, Corpus] | None = None
    for case, system in jobs:
        if corpus is None or corpus[0] != case:
            corpus = (case, Corpus(case))
        if (case, system.name) not in known:
            known[case, system.name] = simulate_case(case, system, corpus[1])
        progress.advance(bar)


def _needed(case: Case, system: System, known: Known, progress: Progress, bar: TaskID) -> r.Needed:
    """The least look-ahead that reaches the goal."""
    least = None
    for lookahead in SEARCHED:
        one = msgspec.structs.replace(case, lookahead=lookahead)
        outcome = known.get((one, system.name)) or simulate_case(one, system)
        known[one, system.name] = outcome
        if outcome.of_bound >= r.GOAL:
            least = lookahead
            break
    progress.advance(bar)
    return r.Needed(case, system.name, least)
