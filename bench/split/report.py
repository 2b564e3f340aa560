"""Waits -> figures, targets and the table. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.table import Table

from bench.results import Results, Target
from bench.split.requests import Waited
from bench.stats import median

PARTS, WHOLE = "parts", "whole"
ONE, TWO = "one", "two"

TARGETS = (Target(f"{PARTS}_two_to_one", "<=", round(1 / 1.7, 4)), Target("identical", ">=", 1.0))


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One wait: for which clip, with how many workers."""

    clip: str
    workers: str
    waited: Waited


def figures(rounds: Sequence[Round]) -> dict[str, float]:
    """Medians, their quotients, and whether all waits for a clip gave the same pixels."""
    found: dict[str, float] = {}
    for clip in (PARTS, WHOLE):
        for workers in (ONE, TWO):
            waits = [r.waited for r in rounds if (r.clip, r.workers) == (clip, workers)]
            seconds = [w.seconds for w in waits]
            found[f"{clip}_{workers}_s"] = median(seconds)
            found[f"{clip}_{workers}_min_s"] = min(seconds)
            found[f"{clip}_{workers}_busiest_cpu_s"] = median([w.busiest_cpu_s for w in waits])
            found[f"{clip}_{workers}_parts"] = median([float(w.parts) for w in waits])
            found[f"{clip}_{workers}_workers"] = max(float(w.workers) for w in waits)
            found[f"{clip}_{workers}_threads"] = median([float(w.threads) for w in waits])
        found[f"{clip}_two_to_one"] = found[f"{clip}_two_s"] / found[f"{clip}_one_s"]
        found[f"{clip}_two_to_one_min"] = found[f"{clip}_two_min_s"] / found[f"{clip}_one_min_s"]
    # What sharing out alone allows. Threads of the codec are not in it, so there is none for the other clip.
    shared, alone = (found[f"{PARTS}_{workers}_busiest_cpu_s"] for workers in (TWO, ONE))
    found[f"{PARTS}_two_to_one_cpu"] = shared / alone
    found["identical"] = float(all(len(_digests(rounds, clip)) == 1 for clip in (PARTS, WHOLE)))
    return found


def _digests(rounds: Sequence[Round], clip: str) -> set[str]:
    return {r.waited.digest for r in rounds if r.clip == clip}


def table(results: Results) -> Table:
    """What people read."""
    f = results.figures
    shown = Table(title="One clip, one and two workers: medians", title_justify="left", min_width=60)
    shown.add_column("", style="bold", no_wrap=True)
    for column in ("1 worker", "2 workers", "2 to 1", "best", "CPU"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("decoded in")
    for clip, title in ((PARTS, "key frames"), (WHOLE, "one key frame")):
        shown.add_row(
            title,
            f"{f[f'{clip}_one_s']:.3f} s",
            f"{f[f'{clip}_two_s']:.3f} s",
            f"{f[f'{clip}_two_to_one']:.3f}",
            f"{f[f'{clip}_two_to_one_min']:.3f}",
            f"{f[f'{clip}_two_to_one_cpu']:.3f}" if clip == PARTS else "",
            f"{f[f'{clip}_two_parts']:.0f} parts"
            if clip == PARTS
            else f"{f[f'{clip}_two_threads']:.0f} threads",
        )
    shown.caption = "pixels identical" if f["identical"] else "PIXELS DIFFER"
    return shown
