"""A loader with a fast and a slow queue, in the manner of MinatoLoader (Nouaji et al., EuroSys 2026).

Taken from the paper: rank-local; workers begin every sample, and one that takes longer than a limit goes to
another queue, where workers in the background finish it; batches are built ahead, of whatever is ready.

Our reading (bench/node/queues.py has the policy): a worker looks at the clock where a recipe may be cut, and
hands on what is left; a sample that cannot be cut is finished by who began it. The paper changes the number
of workers by the load; here splits of the cores are tried, and the best is kept.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from bench.node import plans
from bench.node.case import Case, Facts, Variant
from bench.node.queues import FastSlow, stretches
from bench.node.system import Fed, System
from bench.node.systems.dataloader import joined
from bench.results import BenchFailed
from bench.samples import Visit

_WARM_UP = 16
"""Samples that are only timed."""
_SHARES = (75, 90)
"""Percentiles that are tried as limits."""


class Task(NamedTuple):
    """Begin a sample."""

    visit: Visit
    limit_s: float | None


class Rest(NamedTuple):
    """What is left of a sample: its batch of one, from unit `begin` on, after `took_s` of work."""

    visit: Visit
    flat: Any
    begin: int
    took_s: float


class Result(NamedTuple):
    """A sample is ready: its batch of one. Or `error` is why there is none."""

    visit: Visit
    flat: Any
    took_s: float
    error: str = ""


class Minato(System):
    """Cores split over fast and slow workers; where a rank has one, it takes up slow samples when it has no
    other to begin."""

    name = "minato"
    title = "Fast and slow queue"

    def variants(self, case: Case) -> list[Variant]:
        """Splits of the cores, and percentiles."""
        workers = max(1, case.decoders // case.ranks)
        slows = sorted({1, max(1, workers // 2)}) if workers > 1 else [0]
        return [
            Variant(f"{workers - slow} fast, {slow} slow, p{share}", {"slow": slow, "share": share})
            for slow in slows
            for share in _SHARES
        ]

    def decode_processes(self, case: Case, variant: Variant) -> int:
        """The cores, but at least one a rank."""
        del variant
        return case.ranks * max(1, case.decoders // case.ranks)

    @contextmanager
    def batches(self, case: Case, variant: Variant, rank: int, facts: Facts) -> Iterator[Iterator[Fed]]:
        """A loader of this rank, whose samples are begun in the order of a distributed sampler."""
        del facts
        slow = int(variant.options["slow"])
        loader = Loader(
            case,
            (visit for batch in plans.slices(case, rank) for visit in batch),
            fast=max(1, case.decoders // case.ranks) - slow,
            slow=slow,
            share=int(variant.options["share"]) / 100,
        )
        try:
            yield iter(loader)
        finally:
            loader.close()


class Loader:
    """Worker processes, and a thread that builds batches of what they have ready."""

    def __init__(self, case: Case, visits: Iterator[Visit], *, fast: int, slow: int, share: float) -> None:
        import torch.multiprocessing as mp

        mp.set_sharing_strategy("file_descriptor")  # type: ignore[no-untyped-call]
        context = mp.get_context("fork")  # as a DataLoader starts its own
        self._tasks, rests = context.SimpleQueue(), context.SimpleQueue()
        self._workers, self._results = [], []
        for number in range(fast + slow):
            # A pipe each: who is killed cannot take a lock along.
            reader, writer = context.Pipe(duplex=False)
            args = (case, self._tasks, rests if slow else None, writer)
            target = work_fast if number < fast else work_slow
            worker = context.Process(target=target, args=args, daemon=True)
            worker.start()
            writer.close()
            self._workers.append(worker)
            self._results.append(reader)
        self._over, self._end = context.Pipe(duplex=False)
        self._visits = visits
        self._ready: FastSlow[Any] = FastSlow(
            case.batch, most=case.batch * (case.lookahead - 1), share=share, warm_up=_WARM_UP
        )
        self._lock = threading.Lock()
        self._batches: queue.SimpleQueue[Fed | BenchFailed] = queue.SimpleQueue()
        self._begin()
        self._builder = threading.Thread(target=self._build, name="builder", daemon=True)
        self._builder.start()

    def __iter__(self) -> Iterator[Fed]:
        while True:
            fed = self._batches.get()
            if isinstance(fed, BenchFailed):
                raise fed
            with self._lock:
                self._ready.handed(len(fed.ids))
                self._begin()
            yield fed
            del fed  # the rank is done with it

    def _begin(self) -> None:
        while self._ready.room:
            self._ready.begin()
            self._tasks.put(Task(next(self._visits), self._ready.limit_s))

    def _build(self) -> None:
        try:
            while self._over not in (ready := wait([self._over, *self._results])):
                for one in ready:
                    assert isinstance(one, Connection), "nothing else is waited for"
                    self._take(one.recv())
        except EOFError:
            self._batches.put(BenchFailed("a worker process ended"))
        except BenchFailed as e:
            self._batches.put(e)

    def _take(self, result: Result) -> None:
        from bench.node.flat import unpack

        if result.error:
            raise BenchFailed(result.error)
        with self._lock:
            self._ready.done(result.visit, result.flat, result.took_s)
            batch = self._ready.take()
        if batch is not None:
            tensors = joined([unpack(flat) for _, flat in batch])
            self._batches.put(Fed(tensors, batch[0][0].epoch, tuple(visit.sample for visit, _ in batch)))

    def close(self) -> None:
        """End the thread and the workers, whatever they are at."""
        self._end.send(None)
        self._builder.join()
        for worker in self._workers:
            worker.kill()
            worker.join()
        for one in (*self._results, self._over, self._end):
            one.close()


class _Worker:
    """What fast and slow workers have in common. Samples are decoded into memory that the rank then gets."""

    def __init__(self, case: Case, results: Connection) -> None:
        import torch

        from bench.node.flat import Decoder

        torch.set_num_threads(1)
        os.sched_setaffinity(0, case.cores)
        self._decoder = Decoder(case.index, case.recipe, case.seed)
        self._results = results

    def begin(self, task: Task) -> Rest | None:
        """Decode until the sample is ready, or what is left once the limit is passed."""
        from bench.node.flat import Decoding, shared

        began_s = time.monotonic()
        try:
            desc = self._decoder.describe(task.visit)
            decoding = Decoding.begun([desc], shared)
            for part in stretches(desc, task.limit_s):
                self._decoder.fill(task.visit, desc, decoding, 0, part)
                took_s = time.monotonic() - began_s
                if part.end < part.units and task.limit_s is not None and took_s >= task.limit_s:
                    return Rest(task.visit, decoding.flat, part.end, took_s)
            self._results.send(Result(task.visit, decoding.flat, time.monotonic() - began_s))
        except Exception as e:  # noqa: BLE001 - the rank raises it
            self._results.send(Result(task.visit, None, 0.0, f"sample {task.visit.sample}: {e}"))
        return None

    def finish(self, rest: Rest) -> None:
        """Decode what is left."""
        from bench.node.flat import Decoding
        from libhelix.recipe import Part

        began_s = time.monotonic()
        try:
            desc = self._decoder.describe(rest.visit)
            part = Part(rest.begin, desc.units, desc.units)
            self._decoder.fill(rest.visit, desc, Decoding([desc], rest.flat), 0, part)
            self._results.send(Result(rest.visit, rest.flat, rest.took_s + time.monotonic() - began_s))
        except Exception as e:  # noqa: BLE001 - the rank raises it
            self._results.send(Result(rest.visit, None, 0.0, f"sample {rest.visit.sample}: {e}"))


def work_fast(case: Case, tasks: Any, rests: Any, results: Connection) -> None:
    """A process that begins samples. Without a queue for what is left (rests) it finishes these itself, when
    no sample is to be begun."""
    worker = _Worker(case, results)
    own: deque[Rest] = deque()
    while True:
        if own and tasks.empty():
            worker.finish(own.popleft())
            continue
        rest = worker.begin(tasks.get())
        if rest is not None and rests is not None:
            rests.put(rest)
        elif rest is not None:
            own.append(rest)


def work_slow(case: Case, tasks: Any, rests: Any, results: Connection) -> None:
    """A process that finishes what others began."""
    del tasks
    worker = _Worker(case, results)
    while True:
        worker.finish(rests.get())
