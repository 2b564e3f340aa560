"""`python -m bench media`: the same files, decoded by DataHelix and by other libraries, for CPU time."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import msgspec
from rich.console import Console

from bench.clips import default_cache
from bench.machine import circumstances
from bench.media.corpus import classes
from bench.media.report import TARGETS, MediaResults, figures, notes, table
from bench.media.rounds import measure
from bench.media.systems import OURS, SYSTEMS
from bench.results import (
    BenchFailed,
    conclude,
    console_for,
    failures_shown,
    load_notes,
    progress_on,
    result_options,
)


class MediaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Rounds of every library, each of two times; the least counts."""

    rounds: int
    only: str


@click.command()
@click.option(
    "--rounds", default=5, show_default=True, type=click.IntRange(1), help="Rounds of every library."
)
@click.option("--only", default="", help="Classes that begin so, such as h264. Targets of others are missed.")
@click.option(
    "--cache", type=click.Path(path_type=Path), help="Files. [default: $HELIX_CACHE, ~/.cache/helix]"
)
@result_options
def media(rounds: int, only: str, cache: Path | None, json_to: Path | None, check: bool) -> None:
    """Measure CPU time of decoding against torchcodec, decord, OpenCV, Pillow, SPDL and soundfile.

    Those that are installed are compared; pip has them as opencv-python-headless, decord, spdl and so on.
    Every library opens the file anew for each sample and uses one thread; ours knows it from its index.
    What it gives is compared with ours, picture by picture.
    """
    console = console_for(json_to)
    with failures_shown("media", console):
        results = run(MediaSettings(rounds=rounds, only=only), cache or default_cache(), console)
        conclude(results, table(results), console, json_to=json_to, check=check)


def run(settings: MediaSettings, cache: Path, console: Console) -> MediaResults:
    """Measure these classes."""
    found = circumstances()
    with tempfile.TemporaryDirectory(prefix="helix-bench-") as scratch, progress_on(console) as progress:
        chosen = classes(cache, settings.only, progress)
        if not chosen:
            raise BenchFailed(f"no class begins with {settings.only!r}")
        task = progress.add_task("decoding", total=len(chosen))
        used, outcomes = measure(
            chosen,
            list(SYSTEMS),
            rounds=settings.rounds,
            scratch=Path(scratch),
            on_class=lambda: progress.advance(task),
        )
    for label, by_system in outcomes.items():
        if by_system[OURS].error:
            raise BenchFailed(f"{label}: {by_system[OURS].error}")
    return MediaResults(
        command="media",
        figures=figures(outcomes),
        targets=TARGETS,
        circumstances=found,
        settings=settings,
        libraries=used,
        outcomes=outcomes,
        notes=(*load_notes(found), *notes(used)),
    )
