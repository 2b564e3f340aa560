"""Rounds -> figures and the table. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from bench.decode.rounds import CEILING, HELIX, SIDES, TORCH, DecodeSettings, Window, WorkloadRounds
from bench.results import Results, Target
from bench.stats import median
from bench.workloads import LARGE, MEDIUM, SMALL

MOST_CPU = {SMALL.name: 1.02, MEDIUM.name: 0.85, LARGE.name: 0.70}
"""CPU time of a sample, as a share of the DataLoader's."""

LEAST_THROUGHPUT = 0.95
"""Share of what bare loops reach."""

TARGETS = tuple(
    target
    for name, most in MOST_CPU.items()
    for target in (
        Target(f"{name}_cpu_ratio", "<=", most),
        Target(f"{name}_throughput_of_ceiling", ">=", LEAST_THROUGHPUT),
    )
)
FOREIGN = 0.05
"""Share of the cores that others may take before it is noted."""


class DecodeResults(Results, frozen=True, kw_only=True):
    """The JSON of `bench decode`."""

    settings: DecodeSettings
    workloads: tuple[WorkloadRounds, ...]


def spread(values: Sequence[float]) -> float:
    """Largest less smallest, as a share of the median."""
    return (max(values) - min(values)) / median(values)


def figures(measured: Sequence[WorkloadRounds]) -> dict[str, float]:
    """Medians over the rounds and their spread; ratios are of medians."""
    found: dict[str, float] = {}
    for rounds in measured:
        name = rounds.workload
        for side in SIDES:
            windows = _of(rounds, side)
            cpu_ms = [w.cpu_s_per_sample * 1e3 for w in windows]
            rates = [w.samples_per_s for w in windows]
            found[f"{name}_{side}_cpu_ms_per_sample"] = median(cpu_ms)
            found[f"{name}_{side}_cpu_spread"] = spread(cpu_ms)
            found[f"{name}_{side}_samples_per_s"] = median(rates)
            found[f"{name}_{side}_samples_per_s_spread"] = spread(rates)
        helix, torch, bare = (found[f"{name}_{side}_samples_per_s"] for side in SIDES)
        found[f"{name}_throughput_of_ceiling"] = helix / bare
        found[f"{name}_torch_throughput_of_ceiling"] = torch / bare
        helix, torch, bare = (found[f"{name}_{side}_cpu_ms_per_sample"] for side in SIDES)
        found[f"{name}_cpu_ratio"] = helix / torch
        found[f"{name}_cpu_over_bare"] = helix / bare
        found[f"{name}_foreign_cores"] = max(w.foreign_cores for w in rounds.windows)
    return found


def _of(rounds: WorkloadRounds, side: str) -> list[Window]:
    return [w for w in rounds.windows if w.side == side]


def doubts(measured: Sequence[WorkloadRounds], cores: int) -> tuple[str, ...]:
    """Windows that others disturbed."""
    found = []
    for rounds in measured:
        disturbed = [w for w in rounds.windows if w.foreign_cores > FOREIGN * cores]
        if disturbed:
            worst = max(w.foreign_cores for w in disturbed)
            found.append(
                f"{rounds.workload}: others took up to {worst:.2f} of {cores} cores in {len(disturbed)} of "
                f"{len(rounds.windows)} windows"
            )
    return tuple(found)


def table(results: DecodeResults) -> Table:
    """What people read."""
    f = results.figures
    shown = Table(title="Decoding: medians, and how far the rounds are apart", title_justify="left")
    shown.add_column("", style="bold", no_wrap=True)
    for column in ("CPU ms/sample", "samples/s", "of ceiling", "CPU ratio"):
        shown.add_column(column, justify="right", no_wrap=True)
    for rounds in results.workloads:
        name = rounds.workload
        titles = {
            HELIX: f"{name} DataHelix",
            TORCH: f"  DataLoader ({rounds.sharing})",
            CEILING: "  bare loops",
        }
        for side in SIDES:
            prefix = f"{name}_{side}"
            share = f[f"{prefix}_samples_per_s"] / f[f"{name}_{CEILING}_samples_per_s"]
            shown.add_row(
                titles[side],
                f"{f[f'{prefix}_cpu_ms_per_sample']:.2f} {f[f'{prefix}_cpu_spread']:.0%}",
                f"{f[f'{prefix}_samples_per_s']:.1f} {f[f'{prefix}_samples_per_s_spread']:.0%}",
                f"{share:.3f}",
                f"{f[f'{name}_cpu_ratio']:.3f}" if side == HELIX else "",
                end_section=side == CEILING,
            )
    return shown
