"""Figures, targets and tables of `bench simulate`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.table import Table

from bench.results import Target
from bench.simulate.case import ASIDE, FULL, LADDER, LINKED, RANK_LOCAL, Case
from bench.simulate.outcome import Outcome
from bench.simulate.slices import label

GOAL = 0.95
MOST_MISSES = 0.01
GOAL_DEMAND = 0.9
GOAL_LOOKAHEAD = 3
TARGETS = (
    Target("datahelix_worst_of_bound", ">=", GOAL),
    Target("datahelix_worst_misses", "<=", MOST_MISSES),
)


_COLUMNS = 5
Cell = Callable[[Outcome, Outcome | None], str]


class Ran(NamedTuple):
    """A case under a system, and what came of it."""

    case: Case
    system: str
    outcome: Outcome


class Needed(NamedTuple):
    """The least look-ahead, in batches of each rank, that reaches the goal; None: none that was tried."""

    case: Case
    system: str
    batches: int | None


def figures(ran: Sequence[Ran], needed: Sequence[Needed]) -> dict[str, float]:
    """By case and system; and what targets are about, the worst case with the demand and the look-ahead that
    they name."""
    found: dict[str, float] = {}
    for one in ran:
        name, o = f"{label(one.case)}_{one.system}", one.outcome
        first = _of(ran, one.case, RANK_LOCAL.name)
        if first is not None:
            found[f"{name}_to_rank_local"] = o.rate / first.rate
        found[f"{name}_of_bound"] = o.of_bound
        found[f"{name}_of_ideal"] = o.of_ideal
        if one.case.nodes > 1:
            found[f"{name}_of_shared"] = o.of_shared
        if o.leader_bytes:
            steps = one.case.last_step
            found[f"{name}_leader_bytes_per_step"] = o.leader_bytes / steps
            found[f"{name}_node_bytes_per_step"] = o.node_bytes / steps
        found[f"{name}_misses"] = o.misses
        found[f"{name}_misses_fixed"] = o.misses_fixed
        found[f"{name}_wait_p95_ms"] = o.wait_p95_ms
        found[f"{name}_step_ms"] = o.step_ms
        found[f"{name}_samples_per_s"] = o.rate
        found[f"{name}_busy"] = o.busy
        found[f"{name}_copies"] = o.copies
    for need in needed:
        if need.batches is not None:
            found[f"{label(need.case)}_{need.system}_batches_needed"] = need.batches
    if goal := [one.outcome for one in ran if one.system == FULL.name and concerned(one.case)]:
        found["datahelix_worst_of_bound"] = min(o.of_bound for o in goal)
        found["datahelix_worst_misses"] = max(o.misses_fixed for o in goal)
    return found


def concerned(case: Case) -> bool:
    """Whether targets are about a case."""
    return case.demand <= GOAL_DEMAND and case.lookahead == GOAL_LOOKAHEAD


def shortfalls(ran: Sequence[Ran]) -> tuple[str, ...]:
    """The cases in which a target is missed."""
    return tuple(
        f"{label(one.case)}: {one.outcome.of_bound:.3f} of the bound, {one.outcome.misses_fixed:.1%} misses"
        for one in ran
        if one.system == FULL.name
        and concerned(one.case)
        and (one.outcome.of_bound < GOAL or one.outcome.misses_fixed > MOST_MISSES)
    )


def _of(ran: Sequence[Ran], case: Case, system: str) -> Outcome | None:
    return next((one.outcome for one in ran if one.case == case and one.system == system), None)


def tables(ran: Sequence[Ran], needed: Sequence[Needed]) -> list[Table]:
    """A column for each case, a row for each system."""
    cases = list(dict.fromkeys(one.case for one in ran))
    found = []
    for title, cell in (
        ("throughput to rank-local, and share of what level ranks would allow", _throughput),
        ("share of what the system's own plan allows", _of_bound),
        ("misses %, p95 wait ms", _waits),
    ):
        found += [_table(title, ran, cases[a : a + _COLUMNS], cell) for a in range(0, len(cases), _COLUMNS)]
    if several := [case for case in cases if case.nodes > 1]:
        found.append(_table("share of what nodes that help each other allow", ran, several, _of_shared))
    if needed:
        found.append(_needed_table(needed))
    return found


def _throughput(o: Outcome, first: Outcome | None) -> str:
    ratio = "" if first is None else f"{o.rate / first.rate:.2f} "
    return f"{ratio}({o.of_ideal:.2f})"


def _of_bound(o: Outcome, _: Outcome | None) -> str:
    return f"{o.of_bound:.3f}"


def _of_shared(o: Outcome, _: Outcome | None) -> str:
    return f"{o.of_shared:.3f}"


def _waits(o: Outcome, _: Outcome | None) -> str:
    return f"{o.misses_fixed * 100:.1f} {o.wait_p95_ms:.0f}"


def _table(title: str, ran: Sequence[Ran], cases: Sequence[Case], cell: Cell) -> Table:
    shown = Table(title=title, title_justify="left", min_width=76)
    shown.add_column("", style="bold", no_wrap=True)
    for case in cases:
        shown.add_column(label(case).replace("_", " "), justify="right")
    for system in (*LADDER, *ASIDE, *LINKED):
        outcomes = [_of(ran, case, system.name) for case in cases]
        if any(outcomes):
            firsts = [_of(ran, case, RANK_LOCAL.name) for case in cases]
            shown.add_row(
                system.name, *("" if o is None else cell(o, first) for o, first in zip(outcomes, firsts))
            )
    return shown


def _needed_table(needed: Sequence[Needed]) -> Table:
    shown = Table(
        title=f"look-ahead for {GOAL} of the bound, in batches of a rank", title_justify="left", min_width=60
    )
    shown.add_column("", style="bold", no_wrap=True)
    shown.add_column("system")
    shown.add_column("batches", justify="right")
    for need in needed:
        shown.add_row(label(need.case), need.system, "none" if need.batches is None else str(need.batches))
    return shown
