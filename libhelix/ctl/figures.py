"""Numbers for people: lines of a table, units, and the spread of many values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def line(name: str, *cells: str) -> str:
    """A line of a table: what it is of, and cells of one width."""
    return f"{name:<9}" + "".join(f"{cell:>14}" for cell in cells)


def size(n: float) -> str:
    """Bytes."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if n < 1024:
            break
        n, unit = n / 1024, larger
    return f"{n:,.0f} B" if unit == "B" else f"{n:,.1f} {unit}"


def duration(s: float) -> str:
    """Seconds."""
    if s < 120:
        return f"{s:.2f} s"
    return f"{s / 60:.1f} min" if s < 7200 else f"{s / 3600:,.1f} h"


def milliseconds(us: float) -> str:
    """Microseconds, from a second on in seconds."""
    return f"{us / 1000:.1f} ms" if us < 1e6 else duration(us / 1e6)


def count(n: float) -> str:
    """A number of things, or a mean of such."""
    return f"{n:,.0f}" if n == int(n) or n >= 100 else f"{n:.2f}"


def spread(values: Any) -> dict[str, float]:
    """Quantiles of a sorted array. The nearest rank, not an interpolation: every one is that of some
    sample."""
    at = {"min": 0.0, "p50": 0.5, "p95": 0.95, "max": 1.0}
    return {name: float(values[round(q * (len(values) - 1))]) for name, q in at.items()}


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table whose columns are as wide as they have to be, the first to the left."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
