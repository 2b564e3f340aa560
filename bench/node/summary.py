"""Records -> results.json. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from bench.node.measures import Measures, Spread, geometric, measures, quotient, reduction, spreads
from bench.node.records import SCHEMA, Head, Point, Record
from bench.results import Target

OURS = "datahelix"
Runs = Mapping[Point, Mapping[str, Mapping[int, Measures]]]
"""By point, system and number of the repetition."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A system at a point: medians of its runs with their spread; `ratio`: DataHelix's samples/s to its."""

    point: Point
    system: str
    variant: str
    runs: int
    decode_processes: int
    dilation: float
    lookahead_bytes: int
    figures: dict[str, Spread]
    ratio: float | None


class Failure(msgspec.Struct, frozen=True):
    """A run that there is not."""

    point: Point
    system: str
    error: str


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """results.json. summary: figures by name, over the workloads that DataHelix and the other both have."""

    schema: int = SCHEMA
    head: Head
    cells: tuple[Cell, ...]
    failures: tuple[Failure, ...]
    summary: dict[str, float]
    targets: tuple[Target, ...]


def summarise(head: Head, records: Sequence[Record]) -> Results:
    """All figures."""
    runs: dict[Point, dict[str, dict[int, Measures]]] = defaultdict(lambda: defaultdict(dict))
    last: dict[tuple[Point, str], Record] = {}
    failures = []
    for record in records:
        if record.error:
            failures.append(Failure(record.point, record.system, record.error))
        elif record.number >= 0 and record.case is not None and record.run is not None:
            runs[record.point][record.system][record.number] = measures(record.case, record.run)
            last[record.point, record.system] = record
    cells = tuple(
        _cell(last[point, system], found, runs[point].get(OURS))
        for point in sorted(runs)
        for system, found in runs[point].items()
    )
    return Results(
        head=head,
        cells=cells,
        failures=tuple(failures),
        summary=_summary(runs) | _reach(runs, last),
        targets=targets(head.tier),
    )


def _cell(record: Record, found: Mapping[int, Measures], ours: Mapping[int, Measures] | None) -> Cell:
    assert record.case is not None and record.run is not None, "it was measured"  # noqa: PT018
    ratio = None
    if ours and record.system != OURS:
        ratio = quotient(_rates(ours), _rates(found))
    return Cell(
        point=record.point,
        system=record.system,
        variant=record.run.variant,
        runs=len(found),
        decode_processes=record.run.decode_processes,
        dilation=record.case.dilation,
        lookahead_bytes=record.case.lookahead_bytes,
        figures=spreads([*found.values()]),
        ratio=ratio,
    )


def _summary(runs: Runs) -> dict[str, float]:
    """At each look-ahead of the main table: `<figure>_<system>_at_<batches>`."""
    found: dict[str, float] = {}
    main = [p for p in runs if p.table == "main"]
    for lookahead in sorted({p.lookahead for p in main}):
        points = [p for p in main if p.lookahead == lookahead]
        for system in dict.fromkeys(s for p in points for s in runs[p]):
            both = [runs[p] for p in points if system in runs[p] and OURS in runs[p]]
            end = f"{system.replace('-', '_')}_at_{lookahead}"
            own = [_spreads(runs[p][system]) for p in points if system in runs[p]]
            found[f"of_bound_{end}"] = geometric([s["of_bound"].median for s in own])
            found[f"misses_{end}"] = _mean([s["misses"].median for s in own])
            found[f"fixed_misses_{end}"] = _mean([s["fixed_misses"].median for s in own])
            found[f"wait_p95_ms_{end}"] = _mean([s["wait_p95_ms"].median for s in own])
            found[f"real_cores_{end}"] = max(s["real_cores"].median for s in own)
            if system == OURS or not both:
                continue
            pairs = [quotient(_rates(b[OURS]), _rates(b[system])) for b in both]
            ratios = [ratio for ratio in pairs if ratio is not None]
            if not ratios:
                continue
            found[f"speedup_over_{end}"] = geometric(ratios)
            found[f"least_speedup_over_{end}"] = min(ratios)
            for name in ("misses", "fixed_misses", "wait_p95_ms"):
                ours = [_spreads(b[OURS])[name].median for b in both]
                theirs = [_spreads(b[system])[name].median for b in both]
                found[f"less_{name}_than_{end}"] = reduction(ours, theirs)
    return found


def _reach(runs: Runs, last: Mapping[tuple[Point, str], Record]) -> dict[str, float]:
    """Look-ahead bytes with which DataHelix reaches 0.95 of the bound, to those of the DataLoader's best;
    nothing where it does not on some workload."""
    shares = []
    main = [p for p in runs if p.table == "main"]
    for workload in dict.fromkeys(p.workload for p in main):
        points = sorted(p for p in main if p.workload == workload)
        ours = [p for p in points if OURS in runs[p]]
        reached = [p for p in ours if _spreads(runs[p][OURS])["of_bound"].median >= 0.95]
        theirs = [p for p in points if "dataloader" in runs[p]]
        if len(points) < 2 or not reached or not theirs:
            return {}
        best = max(theirs, key=lambda p: _spreads(runs[p]["dataloader"])["samples_per_s"].median)
        ours_case, best_case = last[reached[0], OURS].case, last[best, "dataloader"].case
        assert ours_case and best_case, "both were measured"  # noqa: PT018
        shares.append(ours_case.lookahead_bytes / best_case.lookahead_bytes)
    return {"bytes_for_0_95_to_dataloader_best": geometric(shares)} if shares else {}


def _rates(runs: Mapping[int, Measures]) -> dict[int, float]:
    return {number: found.samples_per_s for number, found in runs.items()}


def _spreads(runs: Mapping[int, Measures]) -> dict[str, Spread]:
    return spreads([*runs.values()])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def targets(tier: str) -> tuple[Target, ...]:
    """The promises of a tier."""
    if tier == "real":
        return (
            Target("speedup_over_dataloader_at_3", ">=", 1.5),
            Target("least_speedup_over_dataloader_at_3", ">=", 0.97),
            Target("least_speedup_over_dataloader_windows_at_3", ">=", 0.97),
        )
    return (
        Target("speedup_over_dataloader_at_3", ">=", 2.8),
        Target("speedup_over_ray_at_3", ">=", 2.2),
        Target("less_misses_than_dataloader_at_3", ">=", 0.90),
        Target("less_wait_p95_ms_than_dataloader_at_3", ">=", 0.95),
        Target("of_bound_datahelix_at_3", ">=", 0.95),
        Target("speedup_over_dataloader_at_8", ">=", 1.6),
        Target("least_speedup_over_dataloader_windows_at_3", ">=", 1.0),
        Target("bytes_for_0_95_to_dataloader_best", "<=", 0.25),
    )
