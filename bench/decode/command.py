"""`python -m bench decode`: the same clips, decoded by DataHelix, by a DataLoader, and by bare loops."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click
from rich.console import Console

from bench.clips import default_cache
from bench.decode.report import TARGETS, DecodeResults, doubts, figures, table
from bench.decode.rounds import SIDES, DecodeSettings, run_workload
from bench.machine import circumstances
from bench.results import (
    conclude,
    console_for,
    failures_shown,
    load_notes,
    progress_on,
    result_options,
)
from bench.samples import read_samples
from bench.torch_loader import Sharing
from bench.workloads import WORKLOADS, Workload, prepare

PREFETCH = 2
"""DataLoader's own default. DataHelix and the bare loops get as much memory."""


@click.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help="Rounds of every side.")
@click.option(
    "--seconds", default=4.0, show_default=True, type=click.FloatRange(0.1), help="Of a side in a round."
)
@click.option(
    "--workload",
    "names",
    multiple=True,
    type=click.Choice([w.name for w in WORKLOADS]),
    help="Only this one; may be repeated. Targets of others count as missed.",
)
@click.option(
    "--sharing",
    type=click.Choice(["auto", "file_descriptor", "file_system"]),
    default="auto",
    show_default=True,
    help="Of the DataLoader's workers; auto tries both and takes the one that needs less CPU time.",
)
@click.option(
    "--cache", type=click.Path(path_type=Path), help="Clips. [default: $HELIX_CACHE, ~/.cache/helix]"
)
@result_options
def decode(
    rounds: int,
    seconds: float,
    names: tuple[str, ...],
    sharing: str,
    cache: Path | None,
    json_to: Path | None,
    check: bool,
) -> None:
    """Measure CPU time of a sample and throughput against a tuned DataLoader and against bare loops.

    The DataLoader runs the same decode code, in as many workers and with as many bytes ahead.
    """
    console = console_for(json_to)
    settings = decode_settings(rounds, seconds, sharing)
    chosen = [w for w in WORKLOADS if not names or w.name in names]
    with failures_shown("decode", console):
        results = run(chosen, settings, cache or default_cache(), console)
        conclude(results, table(results), console, json_to=json_to, check=check)


def decode_settings(rounds: int, seconds: float, sharing: str) -> DecodeSettings:
    """Settings for this machine: one worker on every own core, equal memory on all sides."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    strategies: dict[str, Sharing] = {"file_descriptor": "file_descriptor", "file_system": "file_system"}
    return DecodeSettings(
        cores=cores,
        rounds=rounds,
        seconds=seconds,
        ring=PREFETCH * len(cores) + 1,
        prefetch=PREFETCH,
        sharing=strategies.get(sharing),
    )


def run(workloads: list[Workload], settings: DecodeSettings, cache: Path, console: Console) -> DecodeResults:
    """Measure these workloads."""
    found = circumstances()
    measured = []
    with tempfile.TemporaryDirectory(prefix="helix-bench-") as scratch, progress_on(console) as progress:
        indexes = [prepare(w, cache, Path(scratch), progress) for w in workloads]
        for workload, index in zip(workloads, indexes, strict=True):
            task = progress.add_task(workload.name, total=settings.rounds * len(SIDES))
            samples = len(read_samples(index))
            measured.append(
                run_workload(workload, index, samples, settings, lambda task=task: progress.advance(task))  # type: ignore[misc]
            )
    return DecodeResults(
        command="decode",
        figures=figures(measured),
        targets=TARGETS,
        circumstances=found,
        settings=settings,
        workloads=tuple(measured),
        notes=(*load_notes(found), *doubts(measured, len(settings.cores))),
    )
