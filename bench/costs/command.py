"""`python -m bench costs`: how well helixd predicts what decoding takes, by codec."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import msgspec
from rich.console import Console

from bench.clips import ENCODERS, default_cache, encodable, encode_all
from bench.costs.clips import CLIPS_VERSION, clips_of
from bench.costs.measure import PartCost, decode_tasks
from bench.costs.report import TARGETS, figures, table
from bench.machine import circumstances
from bench.results import (
    Results,
    conclude,
    console_for,
    failures_shown,
    load_notes,
    progress_on,
    result_options,
)
from bench.samples import write_index
from helixd.core.decode_cost import DecodeCosts


class CostSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`tasks` samples of each codec are decoded; predictions count after the first `learning` ones."""

    codecs: tuple[str, ...]
    clips: int = 15
    tasks: int = 400
    learning: int = 200


class CostResults(Results, frozen=True, kw_only=True):
    """The JSON of `bench costs`."""

    settings: CostSettings
    parts: dict[str, list[PartCost]]


@click.command()
@click.option(
    "--codec",
    "names",
    multiple=True,
    type=click.Choice(list(ENCODERS)),
    help="Only this one; may be repeated. Targets of others count as missed.  [default: all]",
)
@click.option(
    "--cache", type=click.Path(path_type=Path), help="Clips. [default: $HELIX_CACHE, ~/.cache/helix]"
)
@result_options
def costs(names: tuple[str, ...], cache: Path | None, json_to: Path | None, check: bool) -> None:
    """Decode parts of clips with drawn recipes, and compare their CPU time with what was predicted.

    Clips differ in size, key-frame distance, bit rate and length. Runs on one core.
    """
    console = console_for(json_to)
    settings = CostSettings(codecs=encodable(names or tuple(ENCODERS)))
    with failures_shown("costs", console):
        results = run(settings, cache or default_cache(), console)
        conclude(results, table(results.figures, settings.codecs), console, json_to=json_to, check=check)


def run(settings: CostSettings, cache: Path, console: Console) -> CostResults:
    """Measure these codecs."""
    found = circumstances()
    measured: dict[str, list[PartCost]] = {}
    learned = DecodeCosts()
    with tempfile.TemporaryDirectory(prefix="helix-bench-") as scratch, progress_on(console) as progress:
        for codec in settings.codecs:
            clips = cache / "bench" / f"costs-{CLIPS_VERSION}"
            encode_all(clips_of(codec, settings.clips), clips, progress)
            index = write_index(clips / codec, Path(scratch) / f"{codec}.arrow")
            bar = progress.add_task(codec, total=settings.tasks)
            parts = measured[codec] = []
            for part in decode_tasks(index, settings.tasks, learned):
                parts.append(part)
                progress.update(bar, completed=part.task + 1)
    return CostResults(
        command="costs",
        figures=figures(measured, settings.learning),
        targets=TARGETS,
        circumstances=found,
        settings=settings,
        parts=measured,
        notes=load_notes(found),
    )
