"""What the workloads took -> figures, targets and the table. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from rich.table import Table

from bench.overhead.cpu import CpuByKind
from bench.overhead.requests import Taken
from bench.results import Results, Target

IMAGES, VIDEO, PLANS = "images", "video", "plans"
LOOP_MS = 5.0
"""For longer than this the loop should not be away from its sockets."""

TARGETS = (
    Target(f"{IMAGES}_overhead", "<=", 0.03),
    Target(f"{VIDEO}_overhead", "<=", 0.01),
    Target("loop_longest_cpu_ms", "<=", LOOP_MS),
)
TITLES = {IMAGES: "images", VIDEO: "video", PLANS: "images, long plans"}


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """The loop's own account, as in `helixctl status --json`; over the daemon's whole life."""

    turns: int
    longest_ms: float
    longest_cpu_ms: float
    cpu_s: float
    bounds_ms: tuple[float, ...]
    by_wall: tuple[int, ...]
    by_cpu: tuple[int, ...]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One workload."""

    name: str
    taken: Taken
    cpu: CpuByKind
    loop: Loop


def figures(measured: Sequence[Measured]) -> dict[str, float]:
    """Overhead as a share of what decoding takes, its parts per sample, and the longest turns."""
    found: dict[str, float] = {}
    for one in measured:
        found |= {f"{one.name}_{name}": value for name, value in _figures(one).items()}
    for name in ("longest_ms", "longest_cpu_ms"):
        found[f"loop_{name}"] = max(found[f"{one.name}_loop_{name}"] for one in measured)
    return found


def _figures(one: Measured) -> dict[str, float]:
    taken, cpu = one.taken, one.cpu
    ours_s = cpu.daemon_s + cpu.host_s + taken.next_cpu_s + taken.release_cpu_s
    per_sample_us = 1e6 / taken.samples
    return {
        "overhead": ours_s / taken.decode_cpu_s,
        "samples_per_s": taken.samples / taken.wall_s,
        "decode_us": taken.decode_cpu_s * per_sample_us,
        "overhead_us": ours_s * per_sample_us,
        "daemon_us": cpu.daemon_s * per_sample_us,
        "loop_us": cpu.loop_s * per_sample_us,
        "host_us": cpu.host_s * per_sample_us,
        "next_us": taken.next_cpu_s * per_sample_us,
        "release_us": taken.release_cpu_s * per_sample_us,
        "workers_us": cpu.workers_s * per_sample_us,
        "loop_longest_ms": one.loop.longest_ms,
        "loop_longest_cpu_ms": one.loop.longest_cpu_ms,
        "loop_turns": float(one.loop.turns),
        "loop_turns_late": float(late(one.loop.bounds_ms, one.loop.by_wall)),
        "loop_turns_late_cpu": float(late(one.loop.bounds_ms, one.loop.by_cpu)),
    }


def late(bounds_ms: Sequence[float], counts: Sequence[int]) -> int:
    """How many turns took longer than LOOP_MS."""
    return sum(n for bound, n in zip(bounds_ms, counts[1:]) if bound >= LOOP_MS)


def pace_notes(figures: Mapping[str, float], pace: float) -> tuple[str, ...]:
    """A note where the images came slower than they were to be taken."""
    reached = figures[f"{IMAGES}_samples_per_s"]
    if reached >= 0.97 * pace:
        return ()
    return (f"images came at {reached:.0f} samples/s, not {pace:.0f}: that is what the cores had left",)


def table(results: Results) -> Table:
    """What people read."""
    f = results.figures
    shown = Table(title="CPU time of a sample, in microseconds", title_justify="left")
    shown.add_column("", style="bold", no_wrap=True)
    names = [name for name in TITLES if f"{name}_overhead" in f]
    for name in names:
        shown.add_column(TITLES[name], justify="right", no_wrap=True)

    def add(title: str, figure: str, form: str, *, end: bool = False) -> None:
        shown.add_row(title, *(format(f[f"{n}_{figure}"], form) for n in names), end_section=end)

    add("samples/s", "samples_per_s", ",.0f", end=True)
    add("decoding", "decode_us", ",.1f")
    add("workers in all", "workers_us", ",.1f", end=True)
    add("helixd", "daemon_us", ",.1f")
    add("  its loop", "loop_us", ",.1f")
    add("worker host", "host_us", ",.1f")
    add("next()", "next_us", ",.1f")
    add("releases", "release_us", ",.1f")
    add("together, to decoding", "overhead", ".2%", end=True)
    add("longest turn of the loop, ms", "loop_longest_ms", ".1f")
    add("  in CPU time", "loop_longest_cpu_ms", ".1f")
    add(f"turns over {LOOP_MS:g} ms", "loop_turns_late", ",.0f")
    add("  in CPU time", "loop_turns_late_cpu", ",.0f")
    add("turns", "loop_turns", ",.0f")
    return shown
