"""`bench handoff` on tiny batches and clips: what is counted, not how long it takes."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bench.handoff import command
from bench.handoff.command import HandoffSettings, handoff_figures, run, start_figures, table
from bench.handoff.recipe import Blocks
from bench.handoff.requests import ColdStartTimes, HandoffTimes
from bench.processes import MARK
from bench.workloads import Workload
from libhelix.recipe import Part, Rng, Sample, check_descriptor, nbytes

TINY = Workload(
    name="tiny",
    frames=2,
    height=16,
    width=16,
    batch=1,
    clip_width=64,
    clip_height=48,
    clip_frames=6,
    clips=4,
    codec="mpeg4",
)


def marked_by_us() -> list[Path]:
    """Processes of sides that this process has started."""
    entry = f"{MARK}={os.getpid()}-".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if entry in environ.read_bytes():
                found.append(environ.parent)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("size", [1_000_000 // 8, 18_750_000])
def test_four_fields_take_the_bytes_that_were_asked_for(size: int) -> None:
    recipe = Blocks(nbytes=size)
    desc = check_descriptor(recipe.describe(Sample(3, "x", ()), Rng(0, 0, 3)), "Blocks")
    assert len(desc.fields) == 4
    assert sum(nbytes(f.dtype, f.shape) for f in desc.fields) == size


def test_fill_writes_to_every_page() -> None:
    recipe = Blocks(nbytes=100_000)
    sample = Sample(3, "x", ())
    desc = recipe.describe(sample, Rng(0, 0, 3))
    out = {f.name: np.zeros(f.shape, f.dtype) for f in desc.fields}
    recipe.fill(sample, desc, Part(0, 1, 1), out)
    assert all(a[0] == 1 for a in out.values())
    assert out["pixels"].sum() == math.ceil(90_000 / os.sysconf("SC_PAGESIZE"))


def test_percentiles_of_the_hand_offs_are_in_milliseconds() -> None:
    times = HandoffTimes(seconds=[i / 1e5 for i in range(101)], cpu_seconds=[1e-4], unready=2, batch_bytes=7)
    figures = handoff_figures("large", times)
    assert figures["handoff_large_p50_ms"] == pytest.approx(0.5)
    assert figures["handoff_large_p99_ms"] == pytest.approx(0.99)
    assert figures["handoff_large_cpu_p50_ms"] == pytest.approx(0.1)
    assert figures["handoff_large_max_ms"] == pytest.approx(1.0)
    assert (figures["handoff_large_count"], figures["handoff_large_unready"]) == (101, 2)


def test_the_first_batch_is_the_sum_of_its_stages_and_the_median_of_the_starts() -> None:
    starts = [
        ColdStartTimes(construct_s=0.1, connect_s=0.2, attach_s=i / 10, fill_s=0.1) for i in (9, 1, 5, 3, 7)
    ]
    figures = start_figures(starts)
    assert figures["first_batch_median_s"] == pytest.approx(0.9)
    assert figures["first_batch_attach_s"] == pytest.approx(0.5)
    assert figures["first_batch_max_s"] == pytest.approx(1.3)


def test_tiny_hand_offs_beside_a_busy_loader_and_a_cold_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "MEDIUM", TINY)
    monkeypatch.setattr(command, "SIZES", {"large": 80_000, "small": 8_000})
    settings = HandoffSettings(
        handoffs=2, warm_up=1, batch=2, pause_s={"large": 0.1, "small": 0.1}, starts=1, ring_bytes=400_000
    )
    results = run(settings, tmp_path, Console(quiet=True))
    assert results.figures["handoff_large_count"] == 2
    assert results.figures["handoff_small_bytes"] == 8_000
    assert results.figures["first_batch_median_s"] > 0
    assert {t.figure for t in results.targets} <= set(results.figures)
    assert table(results).row_count == 3
    assert not marked_by_us()
