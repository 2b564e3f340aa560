"""One training run: its records, its CPU time, and when its samples were decoded."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import msgspec
from rich.progress import Progress

from bench.demo.launch import run_ranks
from bench.demo.records import StepRecord, TrainSettings
from bench.demo.trace import DecodeTask, read_tasks
from bench.processes import MARK, CpuMeter, Marked, end_marked


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What a training run gave. cpu_s: of all its processes, from the end of the first step to the end."""

    records: list[StepRecord]
    cpu_s: float
    tasks: list[DecodeTask]

    @property
    def cpu_s_per_sample(self) -> float:
        """CPU seconds of a sample: decoding, moving and training on it."""
        return self.cpu_s / sum(len(r.ids) for r in self.records if r.step > 0)


class _Watch:
    """Follows the steps of all ranks, and reads the CPU meter when all have done the first and the last."""

    def __init__(self, ranks: int, steps: int, meter: CpuMeter, progress: Progress, title: str) -> None:
        self._done = [0] * ranks
        self._steps = steps
        self._meter = meter
        self._progress = progress
        self._task = progress.add_task(title, total=steps)
        self._first_s = self._last_s = 0.0

    @property
    def cpu_s(self) -> float:
        return self._last_s - self._first_s

    def __call__(self, record: StepRecord) -> None:
        before = min(self._done)
        self._done[record.rank] = record.step + 1
        after = min(self._done)
        if after == before:
            return
        self._progress.update(self._task, completed=after)
        read_s = self._meter.read_s()
        if after == 1:
            self._first_s = read_s
        if after == self._steps:
            self._last_s = read_s


def run_job(settings: TrainSettings, ranks: int, out: Path, progress: Progress, title: str) -> Run:
    """Train. `out` gets steps.jsonl, settings.json, the ranks' logs, and tasks/. No process is left."""
    tasks = out / "tasks"
    tasks.mkdir(parents=True, exist_ok=True)
    for old in tasks.glob("*.jsonl"):
        old.unlink()
    mark = f"{os.getpid()}-{secrets.token_hex(4)}"
    watch = _Watch(ranks, settings.steps, CpuMeter(Marked(mark)), progress, title)
    recipe = msgspec.structs.replace(settings.recipe, trace=str(tasks))
    try:
        traced = msgspec.structs.replace(settings, recipe=recipe)
        messages = run_ranks(traced, ranks, out, watch, {MARK: mark})
    finally:
        end_marked(mark)
    records = [m for m in messages if isinstance(m, StepRecord)]
    (out / "steps.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(records))
    return Run(records=records, cpu_s=watch.cpu_s, tasks=read_tasks(tasks))
