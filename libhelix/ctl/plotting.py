"""Histograms as a PNG. Pictures are drawn by matplotlib, which is the extra `plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

import numpy as np

from libhelix.errors import UsageError

BLUE, GRAY = "#4477aa", "#666666"
_BINS = 40
_LOGARITHMIC = 50
"""Largest over smallest, from which on a histogram is over powers."""
_BARS = 8


class Panel(NamedTuple):
    """Numbers, or how often names come, under a title. Numbers are divided by `unit`."""

    title: str
    numbers: Any = None
    unit: float = 1.0
    counts: Mapping[str, int] | None = None


def new_figure(width: float, height: float, dpi: int = 100) -> Any:
    """A figure of so many inches. Raises UsageError where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as e:
        raise UsageError(
            f"pictures are drawn by matplotlib ({e}); install it: pip install 'datahelix[plot]'"
        ) from e
    return Figure(figsize=(width, height), dpi=dpi)


def histograms(title: str, panels: Sequence[Panel], file: IO[bytes]) -> None:
    """Write up to four panels, two in a row."""
    rows, columns = -(-len(panels) // 2), min(2, len(panels))
    figure = new_figure(5 * columns, 0.5 + 2.6 * rows)
    figure.set_layout_engine("constrained")
    figure.suptitle(title, fontsize=10, parse_math=False)
    for at, panel in enumerate(panels):
        axis = figure.add_subplot(rows, columns, at + 1)
        axis.set_title(panel.title, loc="left", fontsize=9)
        axis.tick_params(labelsize=8)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
        if panel.counts is not None:
            _bars(axis, panel.counts)
        else:
            _histogram(axis, np.sort(np.asarray(panel.numbers, np.float64)) / panel.unit)
    figure.savefig(file, format="png")


def _histogram(axis: Any, values: Any) -> None:
    low, high = values[0], values[-1]
    if low > 0 and high / low >= _LOGARITHMIC:
        axis.set_xscale("log")
        edges = np.geomspace(low, high, _BINS + 1)
    else:
        room = 0.0 if high > low else abs(low) / 10 or 1.0
        edges = np.linspace(low - room, high + room, _BINS + 1)
    axis.hist(values, bins=edges, color=BLUE)
    axis.yaxis.get_major_locator().set_params(integer=True)
    marks: dict[float, str] = {}
    for name, q in (("p50", 0.5), ("p95", 0.95)):
        at = float(values[round(q * (len(values) - 1))])
        marks[at] = f"{marks[at]}, {name}" if at in marks else name
    for at, name in marks.items():
        axis.axvline(at, color=GRAY, linewidth=0.8, linestyle="--")
        where = {"xycoords": ("data", "axes fraction"), "va": "top", "ha": "right", "rotation": 90}
        axis.annotate(f"{name} {at:,.4g}", (at, 1), fontsize=7, color=GRAY, **where)


def _bars(axis: Any, counts: Mapping[str, int]) -> None:
    names = list(counts)[:_BARS]
    axis.barh(names, [counts[name] for name in names], color=BLUE)
    axis.invert_yaxis()
