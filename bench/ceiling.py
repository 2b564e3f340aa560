"""The decode ceiling: how fast the cores could decode if that were all they did.

One process on each decode core, pinned, in a bare loop: describe, fill, next. No planning, no messages, no
trainer. They share a cursor over the samples, so no core idles while samples are left, and write into as
much shared memory as the run's ring had, so that caches are missed as often.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier
from pathlib import Path

import msgspec
import numpy as np

from bench.interrupts import shielded_children
from bench.results import BenchFailed
from bench.samples import Visit, describe, descriptor_bytes, read_samples
from libhelix.recipe import DTYPES, Descriptor, Part, Recipe, Sample

ALIGN_BYTES = 128
_START_S = 60.0
_POLL_S = 0.2


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """What the bare loops reached. `cpu_s` is the CPU time of all of them together; `wall_s` is the mean of
    their wall times, because some have ended while the last sample is decoded."""

    samples: int
    cores: int
    wall_s: float
    cpu_s: float

    @property
    def samples_per_s(self) -> float:
        """Samples decoded in a second of wall time by all cores."""
        return self.samples / self.wall_s

    @property
    def bound_samples_per_s(self) -> float:
        """What the cores could decode if they did nothing else: cores / CPU seconds of a sample.

        A little above `samples_per_s`, and far above it on a busy machine or a slow disk. Runs are held
        against this one, so that a disturbed measurement flatters nobody.
        """
        return self.cores / self.cpu_s_per_sample

    @property
    def core_share(self) -> float:
        """Share of the cores that the loops had; well below 1 where something else ran beside them."""
        return self.cpu_s / (self.wall_s * self.cores)

    @property
    def cpu_s_per_sample(self) -> float:
        """Mean CPU seconds of a sample."""
        return self.cpu_s / self.samples


class LoopSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the loops do. `ring_bytes` is shared out evenly among them."""

    index: Path
    recipe: Recipe
    seed: int
    visits: tuple[Visit, ...]
    ring_bytes: int


class _LoopResult(msgspec.Struct, frozen=True):
    began_s: float
    ended_s: float
    cpu_s: float


class Ring:
    """Shared memory that is written round and round."""

    def __init__(self, nbytes: int) -> None:
        self._memory = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
        self._memory[:: mmap.PAGESIZE] = 1  # every page exists before the clock starts
        self._at = 0

    def take(self, desc: Descriptor) -> dict[str, np.ndarray]:
        """The arrays of a sample's fields at the next free place."""
        return {f.name: self._take(f.dtype, f.shape) for f in desc.fields}

    def _take(self, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        kind = np.dtype("uint16" if dtype == "bfloat16" else dtype)
        count = DTYPES[dtype] * int(np.prod(shape, dtype=np.int64))
        if self._at + count > len(self._memory):
            self._at = 0
        view = self._memory[self._at : self._at + count].view(kind).reshape(shape)
        self._at += -(-count // ALIGN_BYTES) * ALIGN_BYTES
        return view


def measure(settings: LoopSettings, cores: Sequence[int], on_progress: Callable[[int], None]) -> Ceiling:
    """Decode all visits on `cores` and time it. `on_progress` gets the number of samples begun.

    Raises BenchFailed where a loop fails. No process is left, however this ends.
    """
    context = get_context("spawn")
    cursor = context.Value("q", 0)
    together = context.Barrier(len(cores))
    pipes = [context.Pipe(duplex=False) for _ in cores]
    loops = [
        context.Process(target=_loop, args=(settings, core, cores, cursor, together, theirs), daemon=True)
        for core, (_, theirs) in zip(cores, pipes, strict=True)
    ]
    try:
        with shielded_children():
            for loop in loops:
                loop.start()
        for _, theirs in pipes:
            theirs.close()
        results = _collect([ours for ours, _ in pipes], cursor, on_progress)
    finally:
        for loop in loops:
            if loop.pid is not None:
                loop.kill()
                loop.join()
    return Ceiling(
        samples=len(settings.visits),
        cores=len(cores),
        wall_s=sum(r.ended_s - r.began_s for r in results) / len(results),
        cpu_s=sum(r.cpu_s for r in results),
    )


def _collect(
    pipes: Sequence[Connection], cursor: Synchronized[int], on_progress: Callable[[int], None]
) -> list[_LoopResult]:
    open_pipes = list(pipes)
    results: list[_LoopResult] = []
    while open_pipes:
        for pipe in connection.wait(open_pipes, timeout=_POLL_S):
            assert isinstance(pipe, Connection), "only pipes are waited for"
            try:
                results.append(pipe.recv())
            except EOFError as e:
                raise BenchFailed("a decode loop of the ceiling ended early; its error is above") from e
            open_pipes.remove(pipe)
        on_progress(cursor.value)
    return results


def _loop(
    settings: LoopSettings,
    core: int,
    cores: Sequence[int],
    cursor: Synchronized[int],
    together: Barrier,
    report: Connection,
) -> None:
    os.sched_setaffinity(0, {core})
    samples = read_samples(settings.index)
    described = (describe(settings.recipe, samples, v, settings.seed) for v in settings.visits)
    largest = max(descriptor_bytes(d) + ALIGN_BYTES * len(d.fields) for d in described)
    ring = Ring(max(settings.ring_bytes // len(cores), largest))
    _decode(settings, settings.visits[0], samples, ring)  # codecs load on first use
    together.wait(_START_S)
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    while True:
        with cursor.get_lock():
            at = cursor.value
            cursor.value = at + 1
        if at >= len(settings.visits):
            break
        _decode(settings, settings.visits[at], samples, ring)
    report.send(_LoopResult(began_s, time.monotonic(), time.process_time() - began_cpu_s))


def _decode(settings: LoopSettings, visit: Visit, samples: Sequence[Sample], ring: Ring) -> None:
    desc = describe(settings.recipe, samples, visit, settings.seed)
    whole = Part(0, desc.units, desc.units)
    settings.recipe.fill(samples[visit.sample], desc, whole, ring.take(desc))
