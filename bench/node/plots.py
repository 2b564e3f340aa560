"""Pictures of the results, with matplotlib (the extra `plot`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.node.records import Record
from bench.node.summary import OURS, Results

_STEPS_SHOWN = 3


def draw(results: Results, records: Sequence[Record], folder: Path) -> list[str]:
    """The names of the pictures that were drawn; none without matplotlib or without runs."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return []
    runs = [r for r in records if r.run is not None and r.number >= 0 and r.point.table == "main"]
    drawn = []
    pictures = {
        "throughput.png": _throughput(plt, results),
        "waits.png": _waits(plt, results, runs),
        "demand.png": _demand(plt, results),
        "timeline.png": _timeline(plt, runs),
    }
    for name, figure in pictures.items():
        if figure is not None:
            figure.savefig(folder / name, dpi=110, bbox_inches="tight")
            plt.close(figure)
            drawn.append(name)
    return drawn


def _throughput(plt: Any, results: Results) -> Any:
    """Bars: share of the bound, by workload and system, at the least look-ahead."""
    cells = [c for c in results.cells if c.point.table == "main"]
    if not cells:
        return None
    least = min(c.point.lookahead for c in cells)
    cells = [c for c in cells if c.point.lookahead == least]
    workloads = list(dict.fromkeys(c.point.workload for c in cells))
    systems = list(dict.fromkeys(c.system for c in cells))
    figure, axes = plt.subplots(figsize=(10, 4))
    width = 0.8 / len(systems)
    for i, system in enumerate(systems):
        found = {c.point.workload: c.figures["of_bound"].median for c in cells if c.system == system}
        places = [j + i * width for j, w in enumerate(workloads) if w in found]
        axes.bar(places, [found[w] for w in workloads if w in found], width, label=system)
    axes.set_xticks([j + 0.4 for j in range(len(workloads))], workloads, rotation=30, ha="right")
    axes.set_ylabel("share of the bound")
    axes.set_title(f"Throughput, {least} batches of look-ahead ({results.head.tier})")
    axes.legend(fontsize=7)
    return figure


def _waits(plt: Any, results: Results, runs: Sequence[Record]) -> Any:
    """How the waits of all workloads are distributed."""
    if not runs:
        return None
    figure, axes = plt.subplots(figsize=(7, 4))
    for system in dict.fromkeys(r.system for r in runs):
        waits = sorted(wait for r in runs if r.system == system for wait in _relative(r))
        axes.plot(waits, [(i + 1) / len(waits) for i in range(len(waits))], label=system)
    axes.set_xscale("symlog", linthresh=0.01)
    axes.set_xlabel("input wait / mean window")
    axes.set_ylabel("share of rank-steps")
    axes.set_title(f"Input wait, all workloads and look-aheads ({results.head.tier})")
    axes.legend(fontsize=7)
    return figure


def _relative(record: Record) -> list[float]:
    assert record.run is not None and record.case is not None, "a run"  # noqa: PT018
    skip = record.case.warm_up * record.case.micro_batches
    steps = [s for rank in record.run.ranks for s in rank.steps[skip:]]
    mean = sum(s.window_s for s in steps) / len(steps)
    return [s.wait_s / mean for s in steps]


def _demand(plt: Any, results: Results) -> Any:
    """Misses against the demand for CPU time, of the table rho."""
    cells = [c for c in results.cells if c.point.table == "rho"]
    if not cells:
        return None
    figure, axes = plt.subplots(figsize=(7, 4))
    for system in dict.fromkeys(c.system for c in cells):
        values = sorted({c.point.value for c in cells if c.system == system})
        means = []
        for value in values:
            some = [c.figures["misses"].median for c in cells if (c.system, c.point.value) == (system, value)]
            means.append(sum(some) / len(some))
        axes.plot(values, means, marker="o", label=system)
    axes.set_xlabel("demand: decode work / (cores x balanced windows)")
    axes.set_ylabel("misses")
    axes.set_title(f"Misses, mean of the workloads ({results.head.tier})")
    axes.legend(fontsize=7)
    return figure


def _timeline(plt: Any, runs: Sequence[Record]) -> Any:
    """Some steps of all ranks, of DataHelix and of another."""
    others = [r for r in runs if r.system != OURS]
    ours = [r for r in runs if r.system == OURS]
    shown = [*ours[-1:], *others[-1:]]
    if not shown:
        return None
    figure, rows = plt.subplots(len(shown), 1, figsize=(9, 2.2 * len(shown)), squeeze=False)
    for axes, record in zip(rows[:, 0], shown):
        assert record.run is not None and record.case is not None, "a run"  # noqa: PT018
        skip = record.case.warm_up * record.case.micro_batches
        chosen = [rank.steps[skip : skip + _STEPS_SHOWN] for rank in record.run.ranks]
        began = min(steps[0].asked_at_s for steps in chosen)
        for rank, steps in enumerate(chosen):
            asked = [(s.asked_at_s - began, s.wait_s) for s in steps]
            axes.broken_barh(asked, (rank, 0.8), color="tab:red")
            busy = [(s.asked_at_s - began + s.wait_s, s.window_s) for s in steps]
            axes.broken_barh(busy, (rank, 0.8), color="tab:green")
        axes.set_title(f"{record.system}, {record.point.workload}: waits red, computing green", fontsize=8)
        axes.set_ylabel("rank")
    rows[-1, 0].set_xlabel("seconds, dilated")
    return figure
