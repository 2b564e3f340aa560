"""`python -m bench demo`: data, windows, training, ceiling, report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.progress import Progress
from rich.text import Text

from bench.ceiling import Ceiling, LoopSettings, measure
from bench.clips import default_cache
from bench.demo import data, report, stats
from bench.demo.recipe import LabelledClip
from bench.demo.records import DataLoaderSettings, StepRecord, TrainSettings, Window
from bench.demo.run import Run, run_job
from bench.demo.timeline import draw
from bench.machine import circumstances
from bench.results import (
    BenchFailed,
    check_table,
    conclude,
    console_for,
    failures_shown,
    load_notes,
    progress_on,
    result_options,
    to_json,
    verdicts,
)
from bench.samples import Visit, describe, heaviest_rank_tokens, one_epoch, read_samples, write_index
from libhelix.recipe import Sample

FIXED_SHARE = 0.25
"""Of a step's mean window, the part that does not depend on tokens."""

RING_BATCHES = 3
"""Batches of a rank that the loader keeps by default."""

HELIX, DATA_LOADER = "DataHelix", "DataLoader"

CEILING_VISITS = 1500
"""The ceiling repeats at most so many samples of the run: its own time has to stay bounded."""


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command."""

    ranks: int
    steps: int
    batch: int
    demand: float
    seed: int
    cores: tuple[int, ...]
    cache: Path
    out: Path
    compare: bool


@click.command()
@click.option("--ranks", default=4, show_default=True, type=click.IntRange(1, 64), help="Training processes.")
@click.option("--steps", default=40, show_default=True, type=click.IntRange(2), help="Optimizer steps.")
@click.option(
    "--batch", default=4, show_default=True, type=click.IntRange(1), help="Samples per rank and step."
)
@click.option(
    "--demand",
    default=0.8,
    show_default=True,
    type=click.FloatRange(0.05, 4.0),
    help="CPU time for decoding, as a share of the cores, at the pace of the simulated accelerators.",
)
@click.option("--seed", default=0, show_default=True, help="Order of the samples and the model's start.")
@click.option(
    "--decode-cores", default=0, type=click.IntRange(0), help="Cores for the decode bound. [default: all own]"
)
@click.option(
    "--cache", type=click.Path(path_type=Path), help="Data. [default: $HELIX_CACHE, ~/.cache/helix]"
)
@click.option("--out", default=Path("demo-out"), show_default=True, type=click.Path(path_type=Path))
@click.option("--compare/--no-compare", default=True, show_default=True, help="Train from a DataLoader too.")
@result_options
def demo(
    ranks: int,
    steps: int,
    batch: int,
    demand: float,
    seed: int,
    decode_cores: int,
    cache: Path | None,
    out: Path,
    compare: bool,
    json_to: Path | None,
    check: bool,
) -> None:
    """Train a small model on video clips and show how long it waited for input.

    Then again, on the same samples in the same order, from a DataLoader of each rank, tuned.
    Exit code 1 if a rank fails or the loss does not fall.
    """
    own = sorted(os.sched_getaffinity(0))
    if decode_cores > len(own):
        raise click.BadParameter(f"{len(own)} cores are there", param_hint="--decode-cores")
    options = DemoOptions(
        ranks=ranks,
        steps=steps,
        batch=batch,
        demand=demand,
        seed=seed,
        cores=tuple(own[: decode_cores or None]),
        cache=cache or default_cache(),
        out=out.resolve(),  # ranks and decode workers may run elsewhere
        compare=compare,
    )
    console = console_for(json_to)
    with failures_shown("demo", console):
        results = run_demo(options, console)
        shown: list[RenderableType] = [report.table(results)]
        if not check:
            shown.append(check_table(verdicts(results.figures, results.targets)))
        written = (options.out / name for name in ("timeline.png", "results.json"))
        shown += [Text(f"written: {path}") for path in written if path.exists()]
        conclude(results, Group(*shown), console, json_to=json_to, check=check)
        if not results.figures["loss_last"] < results.figures["loss_first"]:
            raise BenchFailed("the loss did not fall")


def run_demo(options: DemoOptions, console: Console) -> report.DemoResults:
    """The whole demo but for the table. `options.out` gets results.json, steps.jsonl and the ranks' logs."""
    found = circumstances()
    options.out.mkdir(parents=True, exist_ok=True)
    made = data.make(options.cache, console=console)
    for note in made.notes:
        console.print(note, style="yellow", markup=False, highlight=False)
    console.print(
        f"{len(made.clips)} clips, {made.bytes / 1e6:.0f} MB ({made.real_clips} filmed)", highlight=False
    )
    index = write_index(data.clips_folder(options.cache), options.out / "index.arrow")
    samples = read_samples(index)
    recipe = LabelledClip()
    with progress_on(console) as progress:
        first = _ceiling(options, index, recipe, one_epoch(samples, options.seed), 0, "calibrating", progress)
        settings = TrainSettings(
            index=str(index),
            recipe=recipe,
            window=_window(options, samples, recipe, first),
            classes=data.CLASSES,
            steps=options.steps,
            batch=options.batch,
            seed=options.seed,
        )
        runs = {HELIX: run_job(settings, options.ranks, options.out / "datahelix", progress, HELIX)}
        records = runs[HELIX].records
        tuned = _tuned(options)
        if options.compare:
            theirs = msgspec.structs.replace(settings, data_loader=tuned)
            out = options.out / "dataloader"
            runs[DATA_LOADER] = run_job(theirs, options.ranks, out, progress, DATA_LOADER)
        ring_bytes = RING_BATCHES * options.ranks * max(r.nbytes for r in records)
        visits = _visits(records)[:CEILING_VISITS]
        ceiling = _ceiling(options, index, recipe, visits, ring_bytes, "decoding alone", progress)
    no_picture = draw(runs, options.out / "timeline.png")
    figures = _figures(runs, ceiling)
    results = report.DemoResults(
        command="demo",
        figures=figures,
        targets=report.TARGETS + (report.COMPARED_TARGETS if options.compare else ()),
        limit=report.limited_by(figures),
        circumstances=found,
        settings=settings,
        data_loader=tuned if options.compare else None,
        demand=options.demand,
        data_version=made.version,
        data_notes=made.notes,
        notes=(*load_notes(found), *report.doubts(figures), *((no_picture,) if no_picture else ())),
    )
    (options.out / "results.json").write_bytes(to_json(results))
    return results


def _tuned(options: DemoOptions) -> DataLoaderSettings:
    """As many decode workers as DataHelix has, as far as ranks can share them; as many batches ahead."""
    workers = max(1, len(os.sched_getaffinity(0)) // options.ranks)
    return DataLoaderSettings(workers=workers, prefetch=max(1, (RING_BATCHES - 1) // workers))


def _figures(runs: Mapping[str, Run], ceiling: Ceiling) -> dict[str, float]:
    """Of all runs. Raises BenchFailed where their steps had different samples."""
    seen = {title: _by_step(run.records) for title, run in runs.items()}
    if any(visits != seen[HELIX] for visits in seen.values()):
        raise BenchFailed("the loaders delivered different samples; the comparison means nothing")
    measured = {title: stats.figures(run.records) for title, run in runs.items()}
    named = {t: report.run_figures(measured[t], runs[t].cpu_s_per_sample) for t in runs}
    figures = named[HELIX] | report.bound_figures(measured[HELIX], ceiling)
    if DATA_LOADER in runs:
        figures |= report.compared_figures(named[HELIX], named[DATA_LOADER])
    return figures


def _ceiling(
    options: DemoOptions,
    index: Path,
    recipe: LabelledClip,
    visits: Sequence[Visit],
    ring_bytes: int,
    title: str,
    progress: Progress,
) -> Ceiling:
    task = progress.add_task(title, total=len(visits))
    loops = LoopSettings(
        index=index, recipe=recipe, seed=options.seed, visits=tuple(visits), ring_bytes=ring_bytes
    )
    result = measure(
        loops, options.cores, lambda begun: progress.update(task, completed=min(begun, len(visits)))
    )
    progress.update(task, completed=len(visits))
    return result


def _window(
    options: DemoOptions, samples: Sequence[Sample], recipe: LabelledClip, ceiling: Ceiling
) -> Window:
    """Windows with which decoding takes `demand` of the cores if no rank ever waits."""
    step_s = options.ranks * options.batch * ceiling.cpu_s_per_sample / (options.demand * len(options.cores))
    tokens = [
        describe(recipe, samples, v, options.seed).costs["tokens"] for v in one_epoch(samples, options.seed)
    ]
    heaviest = heaviest_rank_tokens(tokens, ranks=options.ranks, batch=options.batch, seed=options.seed)
    return Window(fixed_s=FIXED_SHARE * step_s, per_token_s=(1 - FIXED_SHARE) * step_s / heaviest)


def _by_step(records: Sequence[StepRecord]) -> list[list[tuple[int, int]]]:
    """The samples (epoch, id) of every step; which rank has which is the loader's choice."""
    steps = stats.by_step(records)
    return [sorted((record.epoch, i) for record in step for i in record.ids) for step in steps]


def _visits(records: Sequence[StepRecord]) -> list[Visit]:
    """The samples of the run in the order of its steps."""
    steps = stats.by_step(records)
    return [Visit(sample=i, epoch=record.epoch) for step in steps for record in step for i in record.ids]
