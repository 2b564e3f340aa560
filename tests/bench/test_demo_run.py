"""A tiny training run from both loaders: the same samples, tasks on record, a picture, no process left."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bench.clips import ClipPlan
from bench.demo import data
from bench.demo.command import DemoOptions, run_demo
from bench.demo.records import StepRecord
from bench.demo.run import Run
from bench.demo.timeline import clipped, rows_of, waits, windows
from bench.demo.trace import DecodeTask, read_tasks, traced
from tests.bench.test_demo_stats import record
from tests.bench.test_handoff import marked_by_us


def test_spans_are_clipped_to_what_is_shown() -> None:
    assert clipped([(0.0, 1.0), (1.5, 1.0), (2.5, 9.0), (4.0, 1.0)], 2.0, 4.0) == [(0.0, 0.5), (0.5, 1.5)]


def test_a_rank_waits_and_then_computes() -> None:
    step = record(0, 1, wait_s=0.03, window_s=0.05)
    assert waits([step]) == [(0.1, 0.03)]
    ((began_s, length_s),) = windows([step])
    assert began_s == pytest.approx(0.13)
    assert length_s == 0.05


def test_every_rank_and_every_core_has_a_row() -> None:
    tasks = [DecodeTask(0.2, 0.3, core, 7) for core in (1, 0)]
    run = Run(records=[record(r, s) for r in range(2) for s in range(3)], cpu_s=1.6, tasks=tasks)
    assert list(rows_of(run)) == ["rank 0", "rank 1", "core 0", "core 1"]
    assert run.cpu_s_per_sample == pytest.approx(0.2)  # of the 8 samples after the first step


def test_tasks_are_on_record_only_where_a_folder_is_named(tmp_path: Path) -> None:
    with traced("", 1):
        pass
    assert read_tasks(tmp_path) == []
    for sample in (5, 6):
        with traced(str(tmp_path), sample):
            pass
    first, second = read_tasks(tmp_path)
    assert (first.sample, second.sample) == (5, 6)
    assert first.began_s <= first.ended_s <= second.began_s
    assert first.core in os.sched_getaffinity(0)


def test_a_rank_trains_on_the_same_samples_from_both_loaders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [
        ClipPlan(f"class{i % 4}/clip{i}.mp4", "mpeg4", 160, 96, frames=12, direction=i % 4, seed=i)
        for i in range(8)
    ]
    make = data.make
    monkeypatch.setattr(
        data, "make", lambda cache, console: make(cache, console=console, plans=plans, real=False)
    )
    options = DemoOptions(
        ranks=1,
        steps=8,
        batch=2,
        demand=2.0,
        seed=3,
        cores=tuple(sorted(os.sched_getaffinity(0))),
        cache=tmp_path / "cache",
        out=tmp_path / "out",
        compare=True,
    )
    results = run_demo(options, Console(quiet=True))
    f = results.figures
    assert f["samples"] == f["dataloader_samples"] == 14
    assert f["loss_first"] == pytest.approx(f["dataloader_loss_first"], abs=1e-4)
    assert f["cpu_ms_per_sample"] > 0
    assert {t.figure for t in results.targets} <= set(f)
    for side in ("datahelix", "dataloader"):
        steps = msgspec.json.Decoder(StepRecord).decode_lines(
            (options.out / side / "steps.jsonl").read_bytes()
        )
        tasks = read_tasks(options.out / side / "tasks")
        assert {i for s in steps for i in s.ids} <= {t.sample for t in tasks}
    assert (options.out / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert not marked_by_us()
