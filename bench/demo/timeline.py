"""A picture of the runs: what every rank and every core did, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.demo.records import StepRecord
from bench.demo.run import Run

SHOWN_S = 15.0
"""Seconds of each run, from the end of its first step on."""

_WAIT, _WINDOW, _DECODE = "#c0392b", "#2e86c1", "#7f8c8d"
Span = tuple[float, float]
"""Start and length in seconds."""


def clipped(spans: Sequence[Span], begin_s: float, end_s: float) -> list[Span]:
    """What of the spans lies in [begin, end), from `begin` on."""
    found = []
    for start_s, length_s in spans:
        low, high = max(start_s, begin_s), min(start_s + length_s, end_s)
        if high > low:
            found.append((low - begin_s, high - low))
    return found


def waits(records: Sequence[StepRecord]) -> list[Span]:
    """When a rank waited for input."""
    return [(r.asked_at_s, r.wait_s) for r in records]


def windows(records: Sequence[StepRecord]) -> list[Span]:
    """When its accelerator computed."""
    return [(r.asked_at_s + r.wait_s, max(r.window_s, r.compute_s)) for r in records]


def rows_of(run: Run) -> dict[str, list[tuple[str, list[Span]]]]:
    """The rows of a run, each with its colours and spans, clipped to what is shown."""
    begin_s = max(r.done_at_s for r in run.records if r.step == 0)
    end_s = begin_s + SHOWN_S
    rows: dict[str, list[tuple[str, list[Span]]]] = {}
    for rank in sorted({r.rank for r in run.records}):
        mine = [r for r in run.records if r.rank == rank]
        rows[f"rank {rank}"] = [
            (_WINDOW, clipped(windows(mine), begin_s, end_s)),
            (_WAIT, clipped(waits(mine), begin_s, end_s)),
        ]
    for core in sorted({t.core for t in run.tasks}):
        spans = [(t.began_s, t.ended_s - t.began_s) for t in run.tasks if t.core == core]
        rows[f"core {core}"] = [(_DECODE, clipped(spans, begin_s, end_s))]
    return rows


def draw(runs: Mapping[str, Run], path: Path) -> str | None:
    """Write the picture of these runs as PNG. Returns why not, where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        return "no timeline.png: matplotlib is missing (pip install 'datahelix[bench]')"
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    figure, axes = pyplot.subplots(
        len(runs), 1, figsize=(14, 0.8 + 3.2 * len(runs)), sharex=True, squeeze=False, layout="constrained"
    )
    for axis, (title, run) in zip(axes[:, 0], runs.items(), strict=True):
        _panel(axis, title, rows_of(run))
    axes[-1, 0].set_xlabel("seconds since the end of the first step")
    names = {
        "accelerator computes": _WINDOW,
        "rank waits for input": _WAIT,
        "core decodes a sample": _DECODE,
        "rank waits for others, core is idle": "white",
    }
    figure.legend(
        handles=[Patch(facecolor=c, edgecolor="#bbbbbb", label=name) for name, c in names.items()],
        loc="outside upper right",
        ncols=len(names),
        frameon=False,
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return None


def _panel(axis: Any, title: str, rows: Mapping[str, list[tuple[str, list[Span]]]]) -> None:
    for place, layers in enumerate(rows.values()):
        for color, spans in layers:
            axis.broken_barh(spans, (place - 0.4, 0.8), facecolors=color, edgecolor="white", linewidth=0.3)
    axis.set_yticks(range(len(rows)), list(rows))
    axis.invert_yaxis()
    axis.set_xlim(0, SHOWN_S)
    axis.set_title(title, loc="left")
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
