"""`python -m bench demo`: data, windows, training, ceiling, report."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.demo import data, machine, report, stats
from bench.demo.ceiling import Ceiling, LoopSettings, measure
from bench.demo.launch import DemoFailed, run_ranks
from bench.demo.recipe import LabelledClip
from bench.demo.records import Message, StepRecord, TrainSettings, Window
from bench.demo.samples import Visit, describe, heaviest_rank_tokens, one_epoch, read_samples, write_index
from libhelix.errors import HelixError
from libhelix.recipe import Sample

FIXED_SHARE = 0.25
"""Of a step's mean window, the part that does not depend on tokens."""

RING_BATCHES = 3
"""Batches of a rank that the loader keeps by default."""

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
@click.option(
    "--json", "json_to", type=click.Path(path_type=Path, allow_dash=True), help="Copy of results.json."
)
def demo(
    ranks: int,
    steps: int,
    batch: int,
    demand: float,
    seed: int,
    decode_cores: int,
    cache: Path | None,
    out: Path,
    json_to: Path | None,
) -> None:
    """Train a small model on video clips and show how long it waited for input.

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
        cache=cache or data.default_cache(),
        out=out.resolve(),  # ranks and decode workers may run elsewhere
    )
    console = Console(stderr=str(json_to) == "-")
    signal.signal(signal.SIGTERM, _as_interrupt)  # so that the ranks are ended then too
    try:
        results = run_demo(options, console)
    except (DemoFailed, HelixError, OSError) as e:
        console.print(f"demo failed: {e}", style="bold red", markup=False, highlight=False)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("stopped", style="bold red")
        sys.exit(130)
    console.print(report.table(results))
    for warning in report.warnings(results):
        console.print(f"warning: {warning}", style="yellow", markup=False, highlight=False)
    if json_to is not None:
        text = msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n"
        sys.stdout.buffer.write(text) if str(json_to) == "-" else json_to.write_bytes(text)
    if not results.figures["loss_last"] < results.figures["loss_first"]:
        console.print("demo failed: the loss did not fall", style="bold red")
        sys.exit(1)


def run_demo(options: DemoOptions, console: Console) -> report.Results:
    """The whole demo but for the table. `options.out` gets results.json, steps.jsonl and the ranks' logs."""
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
    with _progress(console) as progress:
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
        messages = _train(options, settings, progress)
        records = [m for m in messages if isinstance(m, StepRecord)]
        (options.out / "steps.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(records))
        ring_bytes = RING_BATCHES * options.ranks * max(r.nbytes for r in records)
        visits = _visits(records)[:CEILING_VISITS]
        ceiling = _ceiling(options, index, recipe, visits, ring_bytes, "decoding alone", progress)
    run = stats.figures(records)
    results = report.Results(
        figures=report.figures(run, ceiling),
        limit=report.limited_by(run, ceiling),
        machine=machine.this_machine(),
        versions=machine.versions(),
        git_revision=machine.git_revision(Path(__file__).parent),
        settings=settings,
        demand=options.demand,
        data_version=made.version,
        data_notes=made.notes,
    )
    report.write(results, options.out / "results.json")
    return results


def _train(options: DemoOptions, settings: TrainSettings, progress: Progress) -> list[Message]:
    task = progress.add_task("training", total=options.steps)
    steps_of = [0] * options.ranks

    def advance(record: StepRecord) -> None:
        steps_of[record.rank] = record.step + 1
        progress.update(task, completed=min(steps_of))

    return run_ranks(settings, options.ranks, options.out, advance)


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


def _visits(records: Sequence[StepRecord]) -> list[Visit]:
    """The samples of the run in the order of its steps."""
    steps = stats.by_step(records)
    return [Visit(sample=i, epoch=record.epoch) for step in steps for record in step for i in record.ids]


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
