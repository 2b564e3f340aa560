"""`python -m bench split`: two daemons, with one core and with two, that take turns."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import Progress

from bench.clips import FPS, ClipPlan, default_cache, encode_all
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
from bench.samples import write_index
from bench.side import Side
from bench.split.report import ONE, PARTS, TARGETS, TWO, WHOLE, Round, figures, table
from bench.split.requests import Open, Wait, Waited

CLIPS_VERSION = "1"
"""Raise it when the clips change: figures of different versions must not be compared."""


class SplitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured: `frames` frames of two clips, one with key frames every `gop_s`, one with one."""

    rounds: int
    cores: tuple[int, int]
    frames: int = 64
    size: tuple[int, int] = (224, 224)
    clip_size: tuple[int, int] = (240, 424)
    parts_s: int = 600
    whole_s: int = 60
    gop_s: int = 4


@click.command(epilog="Example:  python -m bench split --rounds 3 --check --json split.json")
@click.option(
    "--rounds", default=7, show_default=True, type=click.IntRange(1), help="Waits for each clip on each side."
)
@click.option(
    "--cache", type=click.Path(path_type=Path), help="Clips. [default: $HELIX_CACHE, ~/.cache/helix]"
)
@result_options
def split(rounds: int, cache: Path | None, json_to: Path | None, check: bool) -> None:
    """Measure how much sooner two workers have a batch of one long clip than one worker.

    64 frames of ten minutes with a key frame every 4 s, and of one minute with a single key frame: that one
    cannot be cut, and idle cores help with frame threads. The pixels must be the same each time.
    """
    console = console_for(json_to)
    with failures_shown("split", console):
        own = sorted(os.sched_getaffinity(0))
        if len(own) < 2:
            raise BenchFailed("this process may run on one core only; it takes two")
        settings = SplitSettings(rounds=rounds, cores=(own[0], own[1]))
        results = run(settings, cache or default_cache(), console)
        conclude(results, table(results), console, json_to=json_to, check=check)


def run(settings: SplitSettings, cache: Path, console: Console) -> Results:
    """Measure everything."""
    found = circumstances()
    with tempfile.TemporaryDirectory(prefix="helix-bench-") as scratch, progress_on(console) as progress:
        indexes = {clip: _prepare(clip, settings, cache, Path(scratch), progress) for clip in (PARTS, WHOLE)}
        rounds = _rounds(settings, indexes, progress)
    return Results(
        command="split",
        figures=figures(rounds),
        targets=TARGETS,
        circumstances=found,
        settings=msgspec.to_builtins(settings),
        notes=load_notes(found),
    )


def _prepare(clip: str, settings: SplitSettings, cache: Path, scratch: Path, progress: Progress) -> Path:
    """An index of one clip, encoded where the cache lacks it."""
    height, width = settings.clip_size
    seconds = settings.parts_s if clip == PARTS else settings.whole_s
    gop = FPS * (settings.gop_s if clip == PARTS else seconds + 1)
    plan = ClipPlan("clip.mp4", "h264", width, height, seconds * FPS, direction=0, seed=0, gop=gop)
    folder = cache / "bench" / f"split-{CLIPS_VERSION}" / f"{width}x{height}-{plan.frames}-{gop}"
    encode_all([plan], folder, progress)
    return write_index(folder, scratch / f"{clip}.arrow")


def _rounds(settings: SplitSettings, indexes: dict[str, Path], progress: Progress) -> list[Round]:
    """All waits, the sides in turn; the first of each, in which much is loaded, does not count."""
    jobs = {workers: f"bench-{os.getpid()}-{secrets.token_hex(4)}" for workers in (ONE, TWO)}
    cores = {ONE: f"{settings.cores[0]}", TWO: f"{settings.cores[0]},{settings.cores[1]}"}
    environments = {w: {"HELIX_CORES": cores[w], "HELIX_RESERVE": "0"} for w in jobs}
    task = progress.add_task("waiting", total=(settings.rounds + 1) * len(indexes) * len(jobs))
    rounds: list[Round] = []
    with (
        Side("bench.split.trainer", environments[ONE]) as one,
        Side("bench.split.trainer", environments[TWO]) as two,
    ):
        sides = {ONE: one, TWO: two}
        for workers, side in sides.items():
            side.ask(Open(index=str(indexes[WHOLE]), job=jobs[workers]), Waited)
        for number in range(settings.rounds + 1):
            for clip, index in indexes.items():
                for workers in (ONE, TWO) if number % 2 else (TWO, ONE):
                    wait = Wait(
                        index=str(index), job=jobs[workers], frames=settings.frames, size=settings.size
                    )
                    waited = sides[workers].ask(wait, Waited)
                    if number:
                        rounds.append(Round(clip=clip, workers=workers, waited=waited))
                    progress.advance(task)
    return rounds
