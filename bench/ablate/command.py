"""`python -m bench ablate`: clips, calibration, and all systems in turn, several times."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import Progress

from bench.ablate.recipe import LevelClip
from bench.ablate.report import TARGETS, Bounds, Run, figures, per_token_s, same_samples, table
from bench.ablate.runs import Job, Node
from bench.ablate.systems import REGROUP, SYSTEMS
from bench.ceiling import LoopSettings, measure
from bench.clips import ClipPlan, default_cache, encode_all, plan_clips
from bench.machine import circumstances
from bench.results import (
    BenchFailed,
    Results,
    conclude,
    console_for,
    failures_shown,
    load_notes,
    progress_on,
    result_options,
)
from bench.samples import describe, one_epoch, read_samples, write_index

CLIPS_VERSION = "1"
"""Raise it when the clips change: figures of different versions must not be compared."""

WARM_UP = REGROUP
"""Steps in which workers start and windows are learned; they do not count."""


class AblateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured. An epoch is to have whole windows: clips = 8 x n x ranks x batch."""

    repetitions: int
    steps: int
    demand: float
    cores: tuple[int, ...]
    ranks: int = 4
    batch: int = 4
    seed: int = 0
    clips: int = 256
    clip_size: tuple[int, int] = (180, 320)
    median_s: float = 1.5
    longest_s: float = 30.0
    recipe: LevelClip = LevelClip(level=False)


@click.command(epilog="Example:  python -m bench ablate --repetitions 1 --check --json ablate.json")
@click.option(
    "--repetitions", default=3, show_default=True, type=click.IntRange(1), help="Runs of every system."
)
@click.option(
    "--steps", default=3 * REGROUP, show_default=True, type=click.IntRange(1), help="That count, of a run."
)
@click.option(
    "--demand",
    default=0.8,
    show_default=True,
    type=click.FloatRange(0.05, 4.0),
    help="CPU time for decoding, as a share of the cores, were all accelerators busy all the time.",
)
@click.option(
    "--cache", type=click.Path(path_type=Path), help="Clips. [default: $HELIX_CACHE, ~/.cache/helix]"
)
@result_options
def ablate(
    repetitions: int, steps: int, demand: float, cache: Path | None, json_to: Path | None, check: bool
) -> None:
    """Measure what each lever of co-scheduling is worth on this machine.

    Four ranks, two cores, clips of very different lengths; accelerators are simulated by sleeping. From a
    rank-local DataLoader to all that DataHelix does, a lever more each time.
    """
    console = console_for(json_to)
    own = sorted(os.sched_getaffinity(0))
    settings = AblateSettings(repetitions=repetitions, steps=steps, demand=demand, cores=tuple(own[:2]))
    with failures_shown("ablate", console):
        results = run(settings, cache or default_cache(), console)
        conclude(results, table(results), console, json_to=json_to, check=check)


def run(settings: AblateSettings, cache: Path, console: Console) -> Results:
    """Measure everything."""
    found = circumstances()
    with tempfile.TemporaryDirectory(prefix="helix-bench-") as scratch, progress_on(console) as progress:
        index = _prepare(settings, cache, Path(scratch), progress)
        bounds, seconds = _calibrate(settings, index, progress)
        job = Job(
            index=index,
            recipe=settings.recipe,
            ranks=settings.ranks,
            batch=settings.batch,
            steps=WARM_UP + settings.steps,
            seed=settings.seed,
            per_token_s=seconds,
            cores=settings.cores,
        )
        runs = _all_runs(job, settings.repetitions, Path(scratch), progress)
    if not same_samples(runs):
        raise BenchFailed("the systems delivered different samples; the comparison means nothing")
    named = figures(runs, bounds, WARM_UP)
    named |= {"cpu_ms_per_sample": bounds.cpu_s_per_sample * 1e3, "us_per_token": seconds * 1e6}
    return Results(
        command="ablate",
        figures=named,
        targets=TARGETS,
        circumstances=found,
        settings=msgspec.to_builtins(settings),
        notes=load_notes(found),
    )


def _prepare(settings: AblateSettings, cache: Path, scratch: Path, progress: Progress) -> Path:
    """An index of clips of one size, whose lengths have a heavy tail."""
    height, width = settings.clip_size
    drawn = plan_clips(settings.clips, ("h264",), median_s=settings.median_s, longest_s=settings.longest_s)
    plans = [
        ClipPlan(f"clip{i:03d}.mp4", "h264", width, height, p.frames, p.direction, p.seed)
        for i, p in enumerate(drawn)
    ]
    kind = f"{width}x{height}-{settings.clips}-{settings.median_s:g}-{settings.longest_s:g}"
    folder = cache / "bench" / f"ablate-{CLIPS_VERSION}" / kind
    encode_all(plans, folder, progress)
    return write_index(folder, scratch / "ablate.arrow")


def _calibrate(settings: AblateSettings, index: Path, progress: Progress) -> tuple[Bounds, float]:
    """What decoding takes, and accelerators that ask for `demand` of the cores."""
    samples = read_samples(index)
    visits = one_epoch(samples, settings.seed)
    task = progress.add_task("calibrating", total=len(visits))
    loops = LoopSettings(
        index=index, recipe=settings.recipe, seed=settings.seed, visits=tuple(visits), ring_bytes=1 << 26
    )
    ceiling = measure(
        loops, settings.cores, lambda begun: progress.update(task, completed=min(begun, len(visits)))
    )
    progress.update(task, completed=len(visits))
    tokens = [describe(settings.recipe, samples, v, settings.seed).costs["tokens"] for v in visits]
    bounds = Bounds(cores=len(settings.cores), cpu_s_per_sample=ceiling.cpu_s_per_sample)
    seconds = per_token_s(
        cpu_s_per_sample=bounds.cpu_s_per_sample,
        tokens_per_sample=sum(tokens) / len(tokens),
        cores=bounds.cores,
        ranks=settings.ranks,
        demand=settings.demand,
    )
    return bounds, seconds


def _all_runs(job: Job, repetitions: int, scratch: Path, progress: Progress) -> list[Run]:
    """Every system once in every repetition, back and forth."""
    task = progress.add_task("training", total=repetitions * len(SYSTEMS))
    runs = []
    with Node(job, SYSTEMS, scratch) as node:
        for number in range(repetitions):
            for system in SYSTEMS if number % 2 == 0 else reversed(SYSTEMS):
                runs.append(node.run(system))
                progress.advance(task)
    return runs
