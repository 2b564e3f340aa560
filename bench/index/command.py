"""`python -m bench index`: files by their headers against scanning them, and a tree new and unchanged."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import Progress

from bench.clips import default_cache
from bench.index.files import make_tree, prepare_clips, prepare_images, prepare_sounds
from bench.index.measure import HEADERS, SCAN, Built, Probed, alike, build_tree, probe_round
from bench.index.report import AGAIN, NEW, TARGETS, figures, table
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


class IndexSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`rounds` of every side of every kind, each `seconds` long at least; `files` in the tree."""

    rounds: int = 5
    seconds: float = 1.0
    files: int = 100_000
    clips: int = 16
    longest_s: float = 40.0


class IndexResults(Results, frozen=True, kw_only=True):
    """The JSON of `bench index`."""

    settings: IndexSettings
    rounds: tuple[Probed, ...]
    built: tuple[Built, ...]


@click.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help="Rounds of every side.")
@click.option(
    "--files", default=100_000, show_default=True, type=click.IntRange(1), help="Of the tree that is indexed."
)
@click.option(
    "--cache", type=click.Path(path_type=Path), help="Clips. [default: $HELIX_CACHE, ~/.cache/helix]"
)
@result_options
def index(rounds: int, files: int, cache: Path | None, json_to: Path | None, check: bool) -> None:
    """Measure how fast files are indexed: their headers against scanning them, and trees as a whole.

    Files are in the page cache. The tree holds hard links of 16 small JPEGs.
    """
    console = console_for(json_to)
    settings = IndexSettings(rounds=rounds, files=files)
    with failures_shown("index", console):
        results = run(settings, cache or default_cache(), console)
        conclude(results, table(results.figures), console, json_to=json_to, check=check)


def run(settings: IndexSettings, cache: Path, console: Console) -> IndexResults:
    """Measure all kinds, then the tree."""
    found = circumstances()
    with tempfile.TemporaryDirectory(prefix="helix-bench-") as scratch, progress_on(console) as progress:
        images = prepare_images(Path(scratch) / "images")
        kinds = {"image": images, "video": prepare_clips(settings.clips, settings.longest_s, cache, progress)}
        kinds |= {path.suffix[1:]: [path] for path in prepare_sounds(Path(scratch) / "sounds")}
        rounds = _rounds(kinds, settings, progress)
        built = _trees(images, settings, Path(scratch), progress)
    return IndexResults(
        command="index",
        figures=figures(rounds, built),
        targets=TARGETS,
        circumstances=found,
        settings=settings,
        rounds=tuple(rounds),
        built=tuple(built),
        notes=load_notes(found),
    )


def _rounds(kinds: dict[str, list[Path]], settings: IndexSettings, progress: Progress) -> list[Probed]:
    """Both sides in turn, after both have looked at all files and said the same."""
    bar = progress.add_task("probing", total=settings.rounds * (2 * len(kinds) - 1))
    for kind, paths in kinds.items():
        if kind != "image" and not alike(paths):
            raise BenchFailed(f"headers and scan differ on {kind} files")
    rounds = []
    for _ in range(settings.rounds):
        for kind, paths in kinds.items():
            for side in (HEADERS,) if kind == "image" else (HEADERS, SCAN):
                rounds.append(probe_round(kind, side, paths, settings.seconds))
                progress.advance(bar)
    return rounds


def _trees(images: list[Path], settings: IndexSettings, scratch: Path, progress: Progress) -> list[Built]:
    bar = progress.add_task("indexing trees", total=2)
    tree = make_tree(scratch / "tree", images, settings.files)
    built = []
    for name in (NEW, AGAIN):
        built.append(build_tree(name, tree, scratch / "tree.arrow", settings.files))
        progress.advance(bar)
    return built
