"""The table for people and results.json for everything else."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from bench.ceiling import Ceiling
from bench.demo.records import TrainSettings
from bench.demo.stats import RunFigures
from bench.results import Results, Target

TARGETS = (Target("share_of_ceiling", ">=", 0.95),)

BALANCED = 0.05
"""Bounds closer than this are called equal: they are measured to a few per cent."""


class DemoResults(Results, frozen=True, kw_only=True):
    """results.json."""

    limit: str
    settings: TrainSettings
    demand: float
    data_version: str
    data_notes: tuple[str, ...]


def limited_by(figures: Mapping[str, float]) -> str:
    """Which bound is the lower one: "accelerator", "decoding" or "both"."""
    ratio = figures["accelerator_bound_samples_per_s"] / figures["decode_bound_samples_per_s"]
    if abs(ratio - 1) < BALANCED:
        return "both"
    return "accelerator" if ratio < 1 else "decoding"


def figures(run: RunFigures, ceiling: Ceiling) -> dict[str, float]:
    """All figures by name."""
    bound = min(run.accelerator_bound_samples_per_s, ceiling.bound_samples_per_s)
    decode_cores = ceiling.cpu_s_per_sample * run.accelerator_bound_samples_per_s
    named = {
        "steps": run.steps,
        "ranks": run.ranks,
        "samples": run.samples,
        "samples_per_s": run.samples_per_s,
        "tokens_per_s": run.tokens_per_s,
        "step_median_ms": run.median_step_s * 1e3,
        "input_wait_p50_ms": run.input_wait_p50_s * 1e3,
        "input_wait_p95_ms": run.input_wait_p95_s * 1e3,
        "input_wait_max_ms": run.input_wait_max_s * 1e3,
        "misses": run.misses,
        "asks": run.asks,
        "miss_threshold_ms": run.miss_over_s * 1e3,
        "time_to_first_batch_s": run.time_to_first_batch_s,
        "decode_bound_samples_per_s": ceiling.bound_samples_per_s,
        "decode_ceiling_samples_per_s": ceiling.samples_per_s,
        "decode_ceiling_cores": ceiling.cores,
        "decode_ceiling_core_share": ceiling.core_share,
        "decode_cpu_ms_per_sample": ceiling.cpu_s_per_sample * 1e3,
        "accelerator_bound_samples_per_s": run.accelerator_bound_samples_per_s,
        "share_of_ceiling": run.samples_per_s / bound,
        "decode_demand": decode_cores / ceiling.cores,
        "trainer_cpu_share": run.trainer_cores / ceiling.cores,
        "overrun_mean_ms": run.overrun_mean_s * 1e3,
        "masked_samples": run.masked,
        "loss_first": run.loss_first,
        "loss_last": run.loss_last,
    }
    return {name: float(value) for name, value in named.items()}


BUSY_SHARE = 0.9
"""Bare loops that get less of the cores than this share them with something else."""


def doubts(figures: Mapping[str, float]) -> tuple[str, ...]:
    """What makes the figures doubtful, a line each."""
    found = []
    had = figures["decode_ceiling_core_share"]
    if had < BUSY_SHARE:
        found.append(f"the bare loops had only {had:.0%} of their cores: a busy machine, or a slow disk")
    if masked := figures["masked_samples"]:
        found.append(f"{masked:.0f} samples could not be decoded and were masked; see the ranks' logs")
    return tuple(found)


_LIMITS = {
    "accelerator": "the accelerators (the cores could decode more)",
    "decoding": "decoding (the accelerators could train more)",
    "both": f"both, within {BALANCED:.0%}",
}


def table(results: DemoResults) -> Table:
    """The table that ends the demo."""
    f = results.figures
    shown = Table(title="DataHelix demo", title_justify="left", show_header=False, min_width=60)
    shown.add_column("figure", style="bold", no_wrap=True)
    shown.add_column("value", justify="right", no_wrap=True)
    shown.add_column("meaning", style="dim")
    for name, value, meaning in (*_input_rows(f), *_bound_rows(f, results.limit), *_other_rows(f)):
        shown.add_row(name, value, meaning)
    return shown


def _input_rows(f: dict[str, float]) -> list[tuple[str, str, str]]:
    return [
        ("steps", f"{f['steps']:.0f}", f"of {f['ranks']:.0f} ranks, median {f['step_median_ms']:.0f} ms"),
        ("samples/s", f"{f['samples_per_s']:.1f}", f"{f['tokens_per_s']:,.0f} tokens/s"),
        ("input wait p50", f"{f['input_wait_p50_ms']:.2f} ms", "time in next(), all ranks"),
        ("input wait p95", f"{f['input_wait_p95_ms']:.2f} ms", f"longest {f['input_wait_max_ms']:.0f} ms"),
        (
            "misses",
            f"{f['misses']:.0f} of {f['asks']:.0f}",
            f"waits over {f['miss_threshold_ms']:.1f} ms = max(1 ms, 1 % of the median step)",
        ),
        ("first batch", f"{f['time_to_first_batch_s']:.2f} s", "slowest rank; left out above and below"),
    ]


def _bound_rows(f: dict[str, float], limit: str) -> list[tuple[str, str, str]]:
    return [
        (
            "decode bound",
            f"{f['decode_bound_samples_per_s']:.1f}/s",
            f"{f['decode_ceiling_cores']:.0f} cores / CPU time of a sample; bare loops over the same samples "
            f"reached {f['decode_ceiling_samples_per_s']:.1f}/s",
        ),
        (
            "accelerator bound",
            f"{f['accelerator_bound_samples_per_s']:.1f}/s",
            "simulated windows, longest rank of each step, no wait at all",
        ),
        ("share of the bound", f"{f['share_of_ceiling']:.1%}", f"of the lower one; limit: {_LIMITS[limit]}"),
    ]


def _other_rows(f: dict[str, float]) -> list[tuple[str, str, str]]:
    return [
        (
            "CPU demand",
            f"{f['decode_demand']:.0%}",
            f"of the cores to decode at the accelerators' pace; trainers took {f['trainer_cpu_share']:.0%}",
        ),
        ("loss", f"{f['loss_first']:.3f} -> {f['loss_last']:.3f}", "mean of the first and last steps"),
    ]
