"""`python -m bench handoff`: cold starts first, alone; then hand-offs beside cores that decode."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from bench.clips import default_cache
from bench.handoff.requests import ColdStart, ColdStartTimes, Decode, Decoding, Handoffs, HandoffTimes
from bench.machine import circumstances
from bench.processes import busy_s
from bench.results import (
    BenchFailed,
    Results,
    Target,
    conclude,
    console_for,
    failures_shown,
    load_notes,
    progress_on,
    result_options,
)
from bench.side import Side
from bench.stats import median, percentile
from bench.workloads import MEDIUM, prepare

TARGETS = (
    Target("handoff_large_p99_ms", "<", 1.0),
    Target("first_batch_median_s", "<=", 1.5),
)
SIZES = {"large": 150_000_000, "small": 1_000_000}
"""Bytes of a batch."""

BUSY = 0.9
"""Share of the cores that has to be busy during the hand-offs."""

_SETTLE_S = 1.0


class HandoffSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured. `pause_s` by size: long enough for the next batch to be ready beside busy cores."""

    handoffs: int
    warm_up: int = 10
    batch: int = 8
    pause_s: dict[str, float]
    starts: int
    ring_bytes: int = 1 << 30
    ring: int = 4
    busy: str = MEDIUM.name


@click.command()
@click.option("--handoffs", default=250, show_default=True, type=click.IntRange(1), help="Of each size.")
@click.option("--starts", default=5, show_default=True, type=click.IntRange(0), help="Cold starts.")
@click.option(
    "--pause",
    "pause_s",
    default=0.12,
    show_default=True,
    type=click.FloatRange(0.001),
    help="Seconds that the trainer sleeps before it asks for a large batch; a third of that for a small one.",
)
@click.option(
    "--cache", type=click.Path(path_type=Path), help="Clips. [default: $HELIX_CACHE, ~/.cache/helix]"
)
@result_options
def handoff(
    handoffs: int, starts: int, pause_s: float, cache: Path | None, json_to: Path | None, check: bool
) -> None:
    """Measure how long a ready batch takes to reach the trainer, and a new loader its first batch.

    Batches of 150 MB and of 1 MB, while a second trainer keeps all cores decoding.
    """
    console = console_for(json_to)
    settings = HandoffSettings(
        handoffs=handoffs, starts=starts, pause_s={"large": pause_s, "small": pause_s / 3}
    )
    with failures_shown("handoff", console):
        results = run(settings, cache or default_cache(), console)
        conclude(results, table(results), console, json_to=json_to, check=check)


def run(settings: HandoffSettings, cache: Path, console: Console) -> Results:
    """Measure everything."""
    found = circumstances()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="helix-bench-") as scratch, progress_on(console) as progress:
        index = str(prepare(MEDIUM, cache, Path(scratch), progress))
        with Side("bench.handoff.trainer") as trainer:
            if settings.starts:
                task = progress.add_task("cold starts", total=settings.starts)
                figures |= start_figures(
                    cold_starts(trainer, index, settings, lambda: progress.advance(task))
                )
            task = progress.add_task("hand-offs", total=len(SIZES) * settings.handoffs)
            figures |= beside_busy_cores(
                trainer, index, settings, lambda: progress.advance(task, settings.handoffs)
            )
    busy = figures["cores_busy"] / found.machine.cores
    doubts = (f"the cores were only {busy:.0%} busy during the hand-offs",) if busy < BUSY else ()
    return Results(
        command="handoff",
        figures=figures,
        targets=TARGETS,
        circumstances=found,
        settings=msgspec.to_builtins(settings),
        notes=(*load_notes(found), *doubts),
    )


def cold_starts(
    trainer: Side, index: str, settings: HandoffSettings, on_done: Callable[[], None]
) -> list[ColdStartTimes]:
    """One after the other; each daemon is gone before the next is started."""
    found = []
    for _ in range(settings.starts):
        request = ColdStart(
            index=index,
            job=_new_job(),
            batch_bytes=SIZES["large"],
            batch=settings.batch,
            ring_bytes=settings.ring_bytes,
            ring=settings.ring,
        )
        found.append(trainer.ask(request, ColdStartTimes))
        time.sleep(_SETTLE_S)
        on_done()
    return found


def beside_busy_cores(
    trainer: Side, index: str, settings: HandoffSettings, on_done: Callable[[], None]
) -> dict[str, float]:
    """Hand-offs of both sizes while another loader of the same job takes all that the cores decode."""
    job = _new_job()
    figures: dict[str, float] = {}
    with Side("bench.handoff.busy") as busy:
        busy.ask(Decode(index=index, job=job, frames=MEDIUM.frames, batch=MEDIUM.batch), Decoding)
        began_s, busy_before_s = time.monotonic(), busy_s()
        for size, nbytes in SIZES.items():
            request = Handoffs(
                index=index,
                job=job,
                batch_bytes=nbytes,
                batch=settings.batch,
                count=settings.handoffs,
                warm_up=settings.warm_up,
                pause_s=settings.pause_s[size],
            )
            times = trainer.ask(request, HandoffTimes)
            if len(times.seconds) < settings.handoffs:
                raise BenchFailed(
                    f"only {len(times.seconds)} of {settings.handoffs} {size} batches were ready when they "
                    f"were asked for, {times.unready} were not; use a longer --pause"
                )
            figures |= handoff_figures(size, times)
            on_done()
        figures["cores_busy"] = (busy_s() - busy_before_s) / (time.monotonic() - began_s)
    figures["handoff_p50_large_to_small"] = figures["handoff_large_p50_ms"] / figures["handoff_small_p50_ms"]
    return figures


def handoff_figures(size: str, times: HandoffTimes) -> dict[str, float]:
    """Percentiles of the hand-offs of one size."""
    ms = [s * 1e3 for s in times.seconds]
    return {
        f"handoff_{size}_p50_ms": percentile(ms, 0.5),
        f"handoff_{size}_p90_ms": percentile(ms, 0.9),
        f"handoff_{size}_p99_ms": percentile(ms, 0.99),
        f"handoff_{size}_max_ms": max(ms),
        f"handoff_{size}_cpu_p50_ms": percentile(times.cpu_seconds, 0.5) * 1e3,
        f"handoff_{size}_cpu_p99_ms": percentile(times.cpu_seconds, 0.99) * 1e3,
        f"handoff_{size}_count": float(len(ms)),
        f"handoff_{size}_unready": float(times.unready),
        f"handoff_{size}_bytes": float(times.batch_bytes),
    }


def start_figures(starts: Sequence[ColdStartTimes]) -> dict[str, float]:
    """The first batch, and the stages of it."""
    totals = [s.total_s for s in starts]
    return {
        "first_batch_median_s": median(totals),
        "first_batch_min_s": min(totals),
        "first_batch_max_s": max(totals),
        "first_batch_construct_s": median([s.construct_s for s in starts]),
        "first_batch_connect_s": median([s.connect_s for s in starts]),
        "first_batch_attach_s": median([s.attach_s for s in starts]),
        "first_batch_fill_s": median([s.fill_s for s in starts]),
    }


def table(results: Results) -> Table:
    """What people read."""
    f = results.figures
    shown = Table(title="DataHelix hand-off", title_justify="left", min_width=60)
    shown.add_column("", style="bold", no_wrap=True)
    for column in ("p50", "p90", "p99", "max"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("", style="dim")
    for size in SIZES:
        values = (f"{f[f'handoff_{size}_{q}_ms']:.3f} ms" for q in ("p50", "p90", "p99", "max"))
        cpu_ms = [f"{f[f'handoff_{size}_cpu_{q}_ms']:.2f}" for q in ("p50", "p99")]
        what = f"CPU time p50 {cpu_ms[0]}, p99 {cpu_ms[1]}"
        shown.add_row(f"{f[f'handoff_{size}_bytes'] / 1e6:.0f} MB", *values, what)
    if "first_batch_median_s" in f:
        stages = ", ".join(
            f"{s} {f[f'first_batch_{s}_s']:.2f}" for s in ("construct", "connect", "attach", "fill")
        )
        shown.add_row(
            "first batch",
            f"{f['first_batch_median_s']:.2f} s",
            "",
            "",
            f"{f['first_batch_max_s']:.2f} s",
            stages,
        )
    return shown


def _new_job() -> str:
    return f"bench-{os.getpid()}-{secrets.token_hex(4)}"
