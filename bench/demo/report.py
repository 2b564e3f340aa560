"""The table for people and results.json for everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.table import Table

from bench.ceiling import Ceiling
from bench.demo.records import DataLoaderSettings, TrainSettings
from bench.demo.stats import RunFigures
from bench.results import Results, Target

TARGETS = (Target("share_of_ceiling", ">=", 0.95),)
COMPARED_TARGETS = (Target("throughput_over_dataloader", ">=", 1.0),)

BALANCED = 0.05
"""Bounds closer than this are called equal: they are measured to a few per cent."""


class DemoResults(Results, frozen=True, kw_only=True):
    """results.json. data_loader: what DataHelix was compared with, if it was."""

    limit: str
    settings: TrainSettings
    data_loader: DataLoaderSettings | None = None
    demand: float
    data_version: str
    data_notes: tuple[str, ...]


def limited_by(figures: Mapping[str, float]) -> str:
    """Which bound is the lower one: "accelerator", "decoding" or "both"."""
    ratio = figures["accelerator_bound_samples_per_s"] / figures["decode_bound_samples_per_s"]
    if abs(ratio - 1) < BALANCED:
        return "both"
    return "accelerator" if ratio < 1 else "decoding"


def run_figures(run: RunFigures, cpu_s_per_sample: float) -> dict[str, float]:
    """What was measured of a training run, by name."""
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
        "cpu_ms_per_sample": cpu_s_per_sample * 1e3,
        "overrun_mean_ms": run.overrun_mean_s * 1e3,
        "masked_samples": run.masked,
        "loss_first": run.loss_first,
        "loss_last": run.loss_last,
    }
    return {name: float(value) for name, value in named.items()}


def bound_figures(run: RunFigures, ceiling: Ceiling) -> dict[str, float]:
    """What would have been possible, by name."""
    bound = min(run.accelerator_bound_samples_per_s, ceiling.bound_samples_per_s)
    decode_cores = ceiling.cpu_s_per_sample * run.accelerator_bound_samples_per_s
    named = {
        "decode_bound_samples_per_s": ceiling.bound_samples_per_s,
        "decode_ceiling_samples_per_s": ceiling.samples_per_s,
        "decode_ceiling_cores": ceiling.cores,
        "decode_ceiling_core_share": ceiling.core_share,
        "decode_cpu_ms_per_sample": ceiling.cpu_s_per_sample * 1e3,
        "accelerator_bound_samples_per_s": run.accelerator_bound_samples_per_s,
        "share_of_ceiling": run.samples_per_s / bound,
        "decode_demand": decode_cores / ceiling.cores,
        "trainer_cpu_share": run.trainer_cores / ceiling.cores,
    }
    return {name: float(value) for name, value in named.items()}


def compared_figures(helix: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """The DataLoader's figures, and DataHelix's as shares of them."""
    found = {f"dataloader_{name}": value for name, value in other.items()}
    found["throughput_over_dataloader"] = helix["samples_per_s"] / other["samples_per_s"]
    found["cpu_ratio_to_dataloader"] = helix["cpu_ms_per_sample"] / other["cpu_ms_per_sample"]
    return found


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
    "accelerator": "the accelerators (cores could decode more)",
    "decoding": "decoding (accelerators could train more)",
    "both": f"both, within {BALANCED:.0%}",
}


def table(results: DemoResults) -> Table:
    """The table that ends the demo."""
    f = results.figures
    tuned = results.data_loader
    shown = Table(title="DataHelix demo", title_justify="left", min_width=60)
    shown.add_column("", style="bold", no_wrap=True)
    shown.add_column("DataHelix", justify="right", no_wrap=True)
    if tuned is not None:
        shown.add_column("DataLoader", justify="right", no_wrap=True)
    shown.add_column("", style="dim")
    for name, meaning, value in _run_rows(f):
        other = [value({k: f[f"dataloader_{k}"] for k in _shared(f)})] if tuned is not None else []
        shown.add_row(name, value(f), *other, meaning)
    shown.add_section()
    blank = [""] if tuned is not None else []
    for name, text, meaning in _bound_rows(f, results.limit):
        shown.add_row(name, text, *blank, meaning)
    if tuned is not None:
        shown.caption = workers_caption(tuned, int(f["ranks"]), results.circumstances.machine.cores)
    return shown


def workers_caption(tuned: DataLoaderSettings, ranks: int, cores: int) -> str:
    """How the DataLoader was set up, and what that means where there are more ranks than cores."""
    text = (
        f"DataLoader: {tuned.workers} persistent workers a rank, prefetch_factor {tuned.prefetch}; "
        "the same decode code, samples in every step, and bytes ahead. Who gets which sample of a step, "
        "DataHelix decides by declared cost."
    ).replace("1 persistent workers", "1 persistent worker")
    if ranks * tuned.workers > cores:
        text += (
            f" It has {ranks * tuned.workers} decode processes for {cores} cores, DataHelix {cores}: "
            "a rank-local loader cannot have less than one a rank."
        )
    return text


def _shared(f: Mapping[str, float]) -> list[str]:
    return [name for name in f if f"dataloader_{name}" in f]


Row = tuple[str, str, Callable[[Mapping[str, float]], str]]


def _run_rows(f: Mapping[str, float]) -> list[Row]:
    over = f"{f['asks']:.0f} asks; waits over max(1 ms, 1 % of the median step)"
    steps = f"{f['steps']:.0f} steps of {f['ranks']:.0f} ranks"
    return [
        ("samples/s", steps, lambda v: f"{v['samples_per_s']:.1f}"),
        ("median step", "", lambda v: f"{v['step_median_ms']:.0f} ms"),
        ("input wait p50", "time in next(), all ranks", lambda v: f"{v['input_wait_p50_ms']:.2f} ms"),
        ("input wait p95", "", lambda v: f"{v['input_wait_p95_ms']:.1f} ms"),
        ("longest wait", "", lambda v: f"{v['input_wait_max_ms']:.0f} ms"),
        ("misses", over, lambda v: f"{v['misses']:.0f}"),
        ("first batch", "slowest rank; in no other figure", lambda v: f"{v['time_to_first_batch_s']:.2f} s"),
        ("CPU per sample", "all processes, training included", lambda v: f"{v['cpu_ms_per_sample']:.1f} ms"),
        ("loss", "first and last steps", lambda v: f"{v['loss_first']:.3f} -> {v['loss_last']:.3f}"),
    ]


def _bound_rows(f: Mapping[str, float], limit: str) -> list[tuple[str, str, str]]:
    return [
        (
            "decode bound",
            f"{f['decode_bound_samples_per_s']:.1f}/s",
            f"{f['decode_ceiling_cores']:.0f} cores / CPU time of a sample; bare loops reached "
            f"{f['decode_ceiling_samples_per_s']:.1f}/s",
        ),
        (
            "accelerator bound",
            f"{f['accelerator_bound_samples_per_s']:.1f}/s",
            "simulated windows, longest rank of each step, no wait",
        ),
        ("share of the bound", f"{f['share_of_ceiling']:.1%}", f"of the lower one: {_LIMITS[limit]}"),
        (
            "CPU demand",
            f"{f['decode_demand']:.0%}",
            f"of the cores to decode at the accelerators' pace; trainers took {f['trainer_cpu_share']:.0%}",
        ),
    ]
