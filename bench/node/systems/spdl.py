"""SPDL (github.com/facebookresearch/spdl): a pipeline of stages; rank-local.

Decoding is in threads, in threads of another process, or in a pool of processes, as its documentation has it.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import active_children, get_context
from typing import Any

from bench.node import plans
from bench.node.case import Case, Facts, Variant
from bench.node.queues import Ready
from bench.node.system import Fed, System
from bench.node.systems.dataloader import joined
from bench.samples import Visit

_WAYS = ("threads", "threads in a process", "processes, samples", "processes, batches")
_SPARE_BYTES = 1 << 16
"""Of a batch, for what is not in the samples: headers, and what aligns fields."""

Item = tuple[int, tuple[int, ...], dict[str, Any]]
"""A batch: its epoch, the ids of its samples, its tensors."""


class Spdl(System):
    """As many threads or processes decode as the rank has cores, and batches are made of what is ready first,
    as SPDL does unless told otherwise. A source waits while the look-ahead is full."""

    name = "spdl"
    title = "SPDL"

    def missing(self) -> str | None:
        """Nobody gets it with this package."""
        if importlib.util.find_spec("spdl") is None or importlib.util.find_spec("spdl.pipeline") is None:
            return "it is not installed: pip install spdl-core"
        return None

    def variants(self, case: Case) -> list[Variant]:
        """Where decoding happens."""
        del case
        return [Variant(way, {"way": way}) for way in _WAYS]

    def decode_processes(self, case: Case, variant: Variant) -> int:
        """Threads or processes: the cores, but at least one a rank."""
        del variant
        return case.ranks * _workers(case)

    def batches(
        self, case: Case, variant: Variant, rank: int, facts: Facts
    ) -> AbstractContextManager[Iterator[Fed]]:
        """A pipeline of this rank."""
        del facts
        way = str(variant.options["way"])
        if way == "threads in a process":
            return _in_process(case, rank)
        return _in_rank(case, rank, way)


def _workers(case: Case) -> int:
    return max(1, case.decoders // case.ranks)


class Source:
    """Visits, or whole batches of them, in the order of a distributed sampler. `credits` is a semaphore: one
    for each batch that may be in the pipeline, which keeps it to the look-ahead."""

    def __init__(self, case: Case, rank: int, credits: Any, *, whole: bool) -> None:
        self._case, self._rank = case, rank
        self.whole = whole
        self._credits = credits
        self._over = False

    def end(self) -> None:
        """Give nothing more."""
        self._over = True
        self._credits.release()

    def __iter__(self) -> Iterator[Any]:
        for batch in plans.slices(self._case, self._rank):
            self._credits.acquire()
            if self._over:
                return
            if self.whole:
                yield batch
            else:
                yield from batch


@contextmanager
def _in_rank(case: Case, rank: int, way: str) -> Iterator[Iterator[Fed]]:
    """A pipeline in the rank's own process, whose decoding may be in others."""
    credits = threading.Semaphore(case.lookahead - 1)
    source = Source(case, rank, credits, whole=way == "processes, batches")
    with _pool(case) if way.startswith("processes") else _threads(case) as decode:
        pipeline = _pipeline(case, source, *decode)
        with pipeline.auto_stop(), _ended(source):
            yield (_fed(item, credits.release) for item in pipeline)


@contextmanager
def _ended(source: Source) -> Iterator[None]:
    """A pipeline waits for its source, so that this one must not wait any more."""
    try:
        yield
    finally:
        source.end()


def _fed(item: Item, handed: Callable[[], None]) -> Fed:
    handed()
    return Fed(item[2], item[0], item[1])


@contextmanager
def _threads(case: Case) -> Iterator[tuple[Callable[[Any], Any], None]]:
    """Decoding in this process."""
    from bench.node.flat import Decoder, private

    decoder = Decoder(case.index, case.recipe, case.seed)
    yield lambda visit: (visit, decoder.decode((visit,), private)), None


@contextmanager
def _pool(case: Case) -> Iterator[tuple[Callable[[Any], Any], ProcessPoolExecutor]]:
    """Decoding in processes, which give what they decode in shared memory."""
    import torch.multiprocessing as mp

    mp.set_sharing_strategy("file_descriptor")  # type: ignore[no-untyped-call]
    told = (case.index, case.recipe, case.seed, case.cores)
    pool = ProcessPoolExecutor(
        _workers(case), mp_context=get_context("fork"), initializer=_open, initargs=told
    )
    try:
        pool.submit(os.getpid).result()  # all are forked now, before the pipeline has threads
        yield _decode, pool
    finally:
        pool.shutdown(cancel_futures=True)


_opened: Any = None
"""The decoder of a process of the pool."""


def _open(index: str, recipe: Any, seed: int, cores: tuple[int, ...]) -> None:
    global _opened
    import torch

    from bench.node.flat import Decoder

    torch.set_num_threads(1)
    os.sched_setaffinity(0, cores)
    _opened = Decoder(index, recipe, seed)


def _decode(work: Visit | plans.Batch) -> tuple[Visit | plans.Batch, Any]:
    from bench.node.flat import shared

    visits = (work,) if isinstance(work, Visit) else work
    return work, _opened.decode(visits, shared)


def _pipeline(
    case: Case, source: Source, decode: Callable[[Any], Any], pool: ProcessPoolExecutor | None
) -> Any:
    """Source, decoding, batches, sink."""
    from spdl.pipeline import PipelineBuilder
    from spdl.pipeline.defs import Aggregator

    class Batches(Aggregator):  # type: ignore[misc,unused-ignore]  # where spdl is not there to be looked at
        """Samples of one epoch, the first that are ready."""

        def __init__(self) -> None:
            self._ready: Ready[Any] = Ready(case.batch)

        def accumulate(self, item: tuple[Visit, Any]) -> list[tuple[Visit, Any]] | None:
            self._ready.add(*item)
            return self._ready.take()

        def flush(self) -> None:
            """The source has no end."""

    workers = _workers(case)
    builder = PipelineBuilder().add_source(source)
    builder.pipe(decode, concurrency=workers, executor=pool)
    if source.whole:
        builder.pipe(_whole)
    else:
        builder.aggregate(Batches()).pipe(_collate)
    builder.add_sink(max(1, case.lookahead - 1))
    # A thread more than decode, so that batches are made meanwhile.
    return builder.build(
        num_threads=(0 if pool else workers) + 1, max_failures=0, use_thread_output_queue=True
    )


def _collate(samples: Sequence[tuple[Visit, Any]]) -> Item:
    from bench.node.flat import unpack

    visits = [visit for visit, _ in samples]
    tensors = joined([unpack(flat) for _, flat in samples])
    return visits[0].epoch, tuple(visit.sample for visit in visits), tensors


def _whole(decoded: tuple[plans.Batch, Any]) -> Item:
    from bench.node.flat import unpack

    visits, flat = decoded
    return visits[0].epoch, tuple(visit.sample for visit in visits), unpack(flat)


@contextmanager
def _in_process(case: Case, rank: int) -> Iterator[Iterator[Fed]]:
    """The threads, and the pipeline, in one process beside the rank; batches come through segments of shared
    memory that are used in turn."""
    from spdl.pipeline import SharedMemorySegmentPool, iterate_in_subprocess

    credits = get_context("fork").Semaphore(case.lookahead - 1)
    # One for each batch of the look-ahead, and one as a batch is given back only when the next is there.
    segments = SharedMemorySegmentPool(case.batch * case.level_bytes + _SPARE_BYTES, case.lookahead + 1)
    found = iterate_in_subprocess(
        functools.partial(Pipelined, case, rank, credits),
        buffer_size=max(1, case.lookahead - 1),
        mp_context="fork",
        daemon=True,
        arena=segments,
    )
    try:
        yield _handed(iter(found), credits)
    finally:
        for process in active_children():
            process.kill()  # it waits for us to take a batch, and would be asked to end for seconds
        found._shutdown()


def _handed(items: Iterator[Item], credits: Any) -> Iterator[Fed]:
    while True:
        # Not kept in a variable: a segment is free when nobody has its tensors.
        yield _fed(next(items), credits.release)


class Pipelined:
    """The pipeline of threads, made where it is iterated."""

    def __init__(self, case: Case, rank: int, credits: Any) -> None:
        self._case, self._rank, self._credits = case, rank, credits

    def __iter__(self) -> Iterator[Item]:
        import torch

        torch.set_num_threads(1)
        os.sched_setaffinity(0, self._case.cores)
        source = Source(self._case, self._rank, self._credits, whole=False)
        with _threads(self._case) as decode:
            pipeline = _pipeline(self._case, source, *decode)
            with pipeline.auto_stop(), _ended(source):
                yield from pipeline
