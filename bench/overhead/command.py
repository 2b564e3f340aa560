"""`python -m bench overhead`: images at a pace, video, and images in long windows; a daemon for each."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import Progress

from bench.clips import default_cache
from bench.machine import circumstances
from bench.overhead.cpu import read_cpu
from bench.overhead.images import prepare_images
from bench.overhead.report import IMAGES, PLANS, TARGETS, VIDEO, Loop, Measured, figures, pace_notes, table
from bench.overhead.requests import Begin, ClipRecipe, ImageRecipe, Take, Taken
from bench.results import (
    Results,
    conclude,
    console_for,
    failures_shown,
    load_notes,
    progress_on,
    result_options,
)
from bench.side import Side
from bench.workloads import MEDIUM, prepare
from libhelix.client import embedded_address
from libhelix.ctl.daemons import ask
from libhelix.recipes import Image

SIZE_PX = 96
SHOWN_TURNS = 3


class OverheadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured. window_*: of the workload with long plans, whose windows have
    8 x window_batch x window_micro_batches x window_ranks samples."""

    seconds: float
    warm_up_s: float
    pace: float
    images: int = 8192
    batch: int = 64
    ring: int = 4
    video: str = MEDIUM.name
    window_batch: int = 8
    window_micro_batches: int = 32
    window_ranks: int = 2


@click.command(epilog="Example:  python -m bench overhead --seconds 5 --check --json overhead.json")
@click.option(
    "--seconds", default=12.0, show_default=True, type=click.FloatRange(0.1), help="Of each workload."
)
@click.option(
    "--pace",
    default=2000.0,
    show_default=True,
    type=click.FloatRange(1.0),
    help="Images a second that the trainer takes, as far as they come.",
)
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    help="Clips and images. [default: $HELIX_CACHE, ~/.cache/helix]",
)
@result_options
def overhead(seconds: float, pace: float, cache: Path | None, json_to: Path | None, check: bool) -> None:
    """Measure the CPU time of helixd and libhelix against decoding, and helixd's longest turns.

    Images of about 100 x 100, batches of 64; video of 640 x 360; and images in windows of 4,096 samples.
    """
    console = console_for(json_to)
    settings = OverheadSettings(seconds=seconds, warm_up_s=min(2.0, seconds), pace=pace)
    with failures_shown("overhead", console):
        results = run(settings, cache or default_cache(), console)
        conclude(results, table(results), console, json_to=json_to, check=check)


def run(settings: OverheadSettings, cache: Path, console: Console) -> Results:
    """Measure everything."""
    found = circumstances()
    measured: list[Measured] = []
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="helix-bench-") as scratch, progress_on(console) as progress:
        workloads = _workloads(settings, cache, Path(scratch), progress)
        task = progress.add_task("measuring", total=len(workloads))
        for name, (begin, period_s) in workloads.items():
            with Side("bench.overhead.trainer", {"HELIX_LOG": "info"}) as side:
                measured.append(_measure(side, name, begin, period_s, settings))
                notes += _long_turns(name, side.log())
            progress.advance(task)
    named = figures(measured)
    return Results(
        command="overhead",
        figures=named,
        targets=TARGETS,
        circumstances=found,
        settings=msgspec.to_builtins(settings),
        notes=(*load_notes(found), *pace_notes(named, settings.pace), *notes),
    )


def _workloads(
    settings: OverheadSettings, cache: Path, scratch: Path, progress: Progress
) -> dict[str, tuple[Begin, float]]:
    """By name: the loader, and seconds from batch to batch."""
    images = str(prepare_images(settings.images, cache, scratch, progress))
    clips = str(prepare(MEDIUM, cache, scratch, progress))
    small = ImageRecipe(Image(size=(SIZE_PX, SIZE_PX)))
    paced = Begin(index=images, job=_new_job(), decode=small, batch=settings.batch, ring=settings.ring)
    video = Begin(index=clips, job=_new_job(), decode=ClipRecipe(MEDIUM.recipe), batch=MEDIUM.batch)
    plans = Begin(
        index=images,
        job=_new_job(),
        decode=small,
        batch=settings.window_batch,
        regroup=8,
        dp_size=settings.window_ranks,
        micro_batches=settings.window_micro_batches,
    )
    return {
        IMAGES: (paced, settings.batch / settings.pace),
        VIDEO: (video, 0.0),
        PLANS: (plans, settings.window_batch / settings.pace),
    }


def _measure(side: Side, name: str, begin: Begin, period_s: float, settings: OverheadSettings) -> Measured:
    side.ask(begin, Taken)
    side.ask(Take(seconds=settings.warm_up_s, period_s=period_s), Taken)
    side.meter.read_s()
    before = read_cpu(side.meter.pids)
    taken = side.ask(Take(seconds=settings.seconds, period_s=period_s), Taken)
    cpu = read_cpu(side.meter.pids).since(before)
    status = ask(embedded_address(begin.job))
    return Measured(name=name, taken=taken, cpu=cpu, loop=msgspec.convert(status["loop"], Loop))


def _long_turns(name: str, log: str) -> list[str]:
    """What helixd has logged of its longest turns, the longest first."""
    lines = [line.partition("info: ")[2] for line in log.splitlines() if "info: a turn took" in line]
    longest = sorted(lines, key=lambda line: -float(line.split()[3]))[:SHOWN_TURNS]
    return [f"{name}: {line}" for line in longest]


def _new_job() -> str:
    return f"bench-{os.getpid()}-{secrets.token_hex(4)}"
