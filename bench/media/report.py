"""Outcomes -> figures and the table. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from bench.media.requests import Used
from bench.media.rounds import Outcome
from bench.media.systems import OURS, SYSTEMS
from bench.results import Results, Target

MOST_OF_BEST = 1.0
"""CPU time of ours, as a share of the best other's that gives what was asked for."""
MOST_OF_TORCHCODEC = 0.72
"""Of torchcodec's exact mode, over all sampling of H.264."""
CLASSES = (
    "h264_gop30_8_frames", "h264_gop30_32_frames", "h264_gop250_8_frames", "h264_gop250_32_frames",
    "hevc_gop48_8_frames", "vp9_gop48_8_frames", "av1_gop48_8_frames", "mpeg4_gop48_8_frames",
    "jpeg_vga", "jpeg_1080p", "jpeg_progressive_vga", "jpeg_progressive_1080p",
    "png_vga", "png_1080p", "webp_vga", "webp_1080p", "wav", "flac", "mp3", "m4a",
)  # fmt: skip
TARGETS = (
    Target("h264_of_torchcodec", "<=", MOST_OF_TORCHCODEC),
    *(Target(f"{name}_of_best", "<=", MOST_OF_BEST) for name in CLASSES),
)


class MediaResults(Results, frozen=True, kw_only=True):
    """The JSON of `bench media`. `libraries`: version, or why each is missing."""

    libraries: dict[str, Used]
    outcomes: dict[str, dict[str, Outcome]]


def figures(outcomes: Mapping[str, Mapping[str, Outcome]]) -> dict[str, float]:
    """CPU milliseconds by class and library, and ratios."""
    found: dict[str, float] = {}
    h264: dict[str, float] = {}
    for label, by_system in outcomes.items():
        for system, outcome in by_system.items():
            if not outcome.error:
                found[f"{label}_{system.lower()}_cpu_ms"] = outcome.cpu_s * 1e3
                found[f"{label}_{system.lower()}_wrong"] = outcome.wrong
                if label.startswith("h264"):
                    h264[system] = h264.get(system, 0.0) + outcome.cpu_s
        others = [o.cpu_s for s, o in by_system.items() if s != OURS and not o.error and not o.wrong]
        ours = by_system[OURS]
        if others and not ours.error:
            found[f"{label}_of_best"] = ours.cpu_s / min(others)
    if "torchcodec" in h264:
        found["h264_of_torchcodec"] = h264[OURS] / h264["torchcodec"]
    return found


def notes(used: Mapping[str, Used]) -> tuple[str, ...]:
    """Which libraries are missing."""
    return tuple(f"{name} is not compared: {what.missing}" for name, what in used.items() if what.missing)


def table(results: MediaResults) -> Table:
    """What people read."""
    there = [name for name in SYSTEMS if results.libraries.get(name, Used()).version]
    shown = Table(title="CPU ms, one thread; ! parts that are not what was asked for", title_justify="left")
    shown.add_column("", style="bold", no_wrap=True)
    for name in (*there, "of best"):
        shown.add_column(name, justify="right", no_wrap=True)
    for label, by_system in results.outcomes.items():
        ratio = results.figures.get(f"{label}_of_best")
        cells = [_cell(by_system.get(name)) for name in there]
        shown.add_row(label, *cells, f"{ratio:.2f}" if ratio is not None else "-")
    return shown


def _cell(outcome: Outcome | None) -> str:
    if outcome is None or outcome.error == "no decoder":
        return ""
    if outcome.error:
        return "fails"
    wrong = f" !{outcome.wrong}/{outcome.of}" if outcome.wrong else ""
    return f"{outcome.cpu_s * 1e3:.2f}{wrong}"
