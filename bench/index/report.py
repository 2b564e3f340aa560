"""Rounds -> figures and the table. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from bench.index.measure import HEADERS, SCAN, Built, Probed
from bench.results import Target
from bench.stats import median

TARGETS = (
    Target("image_headers_per_core_s", ">=", 2000),
    Target("video_headers_per_core_s", ">=", 150),
    Target("images_indexed_per_core_s", ">=", 2000),
    Target("reindex_s", "<=", 20),
)
"""Rates are of files per second of CPU time; `reindex_s` is wall time, of 100,000 files."""
KINDS = ("image", "video", "wav", "flac", "m4a")
NEW, AGAIN = "new", "again"


def figures(rounds: Sequence[Probed], built: Sequence[Built]) -> dict[str, float]:
    """Medians of rounds; images are not scanned, so that they have one side only."""
    found: dict[str, float] = {}
    for kind in KINDS:
        headers, scan = (_rate(rounds, kind, side) for side in (HEADERS, SCAN))
        if headers is not None:
            found[f"{kind}_headers_per_core_s"] = headers
        if scan is not None:
            found[f"{kind}_scan_per_core_s"] = scan
        if headers is not None and scan is not None:
            found[f"{kind}_headers_to_scan"] = headers / scan
    for one in built:
        if one.name == NEW:
            found["index_s"] = one.wall_s
            found["images_indexed_per_core_s"] = one.files / one.cpu_s
        else:
            found["reindex_s"] = one.wall_s
            found["reindex_cpu_s"] = one.cpu_s
        found["tree_files"] = one.files
    return found


def _rate(rounds: Sequence[Probed], kind: str, side: str) -> float | None:
    rates = [r.files / r.cpu_s for r in rounds if r.kind == kind and r.side == side]
    return median(rates) if rates else None


def table(found: Mapping[str, float]) -> Table:
    """What people read."""
    shown = Table(title="files per second of one core", title_justify="left")
    shown.add_column("", style="bold", no_wrap=True)
    for column in ("headers", "scan", "headers to scan"):
        shown.add_column(column, justify="right", no_wrap=True)
    for kind in KINDS:
        if f"{kind}_headers_per_core_s" not in found:
            continue
        cells = [
            found.get(f"{kind}_headers_per_core_s"),
            found.get(f"{kind}_scan_per_core_s"),
            found.get(f"{kind}_headers_to_scan"),
        ]
        shown.add_row(kind, *("" if cell is None else f"{cell:,.1f}" for cell in cells))
    if "index_s" in found:
        shown.add_section()
        files = f"tree of {found['tree_files']:,.0f} images"
        shown.add_row(
            f"{files}, new", f"{found['images_indexed_per_core_s']:,.0f}", "", f"{found['index_s']:.1f} s"
        )
    if "reindex_s" in found:
        shown.add_row("unchanged, again", "", "", f"{found['reindex_s']:.1f} s")
    return shown
