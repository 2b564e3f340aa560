"""Parts -> figures and the table. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.table import Table

from bench.clips import ENCODERS
from bench.costs.measure import PartCost
from bench.results import Target
from bench.stats import median
from helixd.core.decode_cost import mape, rank_correlation

MOST_ERROR = 0.25
LEAST_CORRELATION = 0.9
_TITLE = (
    "CPU time of parts: median, and relative to what recipes declare; mean error of what they declare\n"
    "and of what was learned; rank correlation of the latter"
)
TARGETS = tuple(
    target
    for codec in ENCODERS
    for target in (
        Target(f"{codec}_mape", "<=", MOST_ERROR),
        Target(f"{codec}_rank_correlation", ">=", LEAST_CORRELATION),
    )
)


def figures(measured: Mapping[str, Sequence[PartCost]], learning: int) -> dict[str, float]:
    """Of each codec, how well the parts after its first `learning` tasks were predicted."""
    found: dict[str, float] = {}
    for codec, parts in measured.items():
        later = [p for p in parts if p.task >= learning]
        pairs = [(p.expected_us, float(p.cpu_us)) for p in later]
        correlation = rank_correlation(pairs)
        found[f"{codec}_parts"] = float(len(later))
        found[f"{codec}_part_cpu_ms"] = median([p.cpu_us / 1000 for p in later])
        found[f"{codec}_of_declared"] = median([p.cpu_us / p.declared_us for p in later])
        found[f"{codec}_mape"] = mape(pairs) if pairs else math.nan
        found[f"{codec}_declared_mape"] = (
            mape([(float(p.declared_us), float(p.cpu_us)) for p in later]) if later else math.nan
        )
        found[f"{codec}_rank_correlation"] = math.nan if correlation is None else correlation
    return found


def table(found: Mapping[str, float], codecs: Sequence[str]) -> Table:
    """What people read."""
    shown = Table(title=_TITLE, title_justify="left")
    shown.add_column("", style="bold", no_wrap=True)
    for column in ("parts", "ms", "scale", "declared", "learned", "rank"):
        shown.add_column(column, justify="right", no_wrap=True)
    for codec in codecs:
        shown.add_row(
            codec,
            f"{found[f'{codec}_parts']:.0f}",
            f"{found[f'{codec}_part_cpu_ms']:.1f}",
            f"{found[f'{codec}_of_declared']:.2f}",
            f"{found[f'{codec}_declared_mape']:.0%}",
            f"{found[f'{codec}_mape']:.0%}",
            f"{found[f'{codec}_rank_correlation']:.3f}",
        )
    return shown
