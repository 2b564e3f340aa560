"""Ray Data: one dataset for the node, decoded by a pool of actors as it is streamed, split over the ranks."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

from bench.node import plans
from bench.node.case import Case, Facts, Variant
from bench.node.system import Fed
from bench.node.systems.ray import Ray, connected
from bench.results import BenchFailed
from bench.samples import Visit
from libhelix.wire.settings import RecipeSpec

_SPARE = 8
"""Steps that the dataset is longer than the run: batches overtake one another."""
_SPLITS = "splits"
_SPLITS_LIMIT_S = 60.0
_NEEDED = ("ray", "pandas", "pyarrow")


class RayData(Ray):
    """As many actors as cores. A row of the dataset is a batch to decode; which is ready first goes to the
    rank that got least. Ray Data's memory for results is the look-ahead of all ranks; it keeps that limit as
    well as it can guess what tasks will give, and may have somewhat more or fewer batches than others."""

    name = "ray-data"
    title = "Ray Data"

    def missing(self) -> str | None:
        """It is an extra of Ray."""
        lacking = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        return f"{' and '.join(lacking)} not installed: pip install 'ray[data]'" if lacking else None

    def variants(self, case: Case) -> list[Variant]:
        """Batches that wait at an actor while it decodes another, so that it never idles, or none."""
        del case
        return [Variant(f"{n} in flight", {"in_flight": n}) for n in (2, 1)]

    @contextmanager
    def batches(self, case: Case, variant: Variant, rank: int, facts: Facts) -> Iterator[Iterator[Fed]]:
        """A split of the stream."""
        with connected(facts):
            split = _split(case, rank, int(variant.options["in_flight"]))
            # Blocks as they come: each is a batch.
            found = split.iter_batches(
                batch_size=None, batch_format="pyarrow", prefetch_batches=max(1, case.lookahead - 2)
            )
            with closing(iter(found)) as rows:
                yield map(_fed, rows)


def _split(case: Case, rank: int, in_flight: int) -> Any:
    """This rank's part of the stream, which rank 0 sets up for all."""
    import ray

    if rank == 0:
        splits = _dataset(case, in_flight).streaming_split(case.ranks)
        ray.remote(num_cpus=0)(_Splits).options(name=_SPLITS, lifetime="detached").remote(splits)
    until_s = time.monotonic() + _SPLITS_LIMIT_S
    while True:
        try:
            return ray.get(ray.get_actor(_SPLITS).of.remote(rank))
        except ValueError:  # there is none of that name yet
            if time.monotonic() > until_s:
                raise BenchFailed("rank 0 made no dataset") from None
            time.sleep(0.05)


class _Splits:
    """An actor: where ranks get their splits."""

    def __init__(self, splits: list[Any]) -> None:
        self._splits = splits

    def of(self, rank: int) -> Any:
        """The split of a rank."""
        return self._splits[rank]


def _dataset(case: Case, in_flight: int) -> Any:
    """Batches for all ranks and the whole run, step by step, in the order of a distributed sampler."""
    import ray

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # What Ray Data reserves for a task before it has seen one.
    context.target_max_block_size = case.batch * case.level_bytes
    ahead = case.ranks * (case.lookahead - 1) * case.batch * case.level_bytes
    context.execution_options.resource_limits = ray.data.ExecutionResources(
        cpu=float(case.decoders), object_store_memory=float(ahead)
    )
    steps = zip(*(plans.slices(case, rank) for rank in range(case.ranks)))
    count = case.all_steps * case.micro_batches + case.lookahead + _SPARE
    rows = [
        {"epoch": batch[0].epoch, "ids": [visit.sample for visit in batch]}
        for step in itertools.islice(steps, count)
        for batch in step
    ]
    return ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _Decode,
        fn_constructor_args=(case.index, case.recipe, case.seed, case.cores),
        batch_size=1,
        batch_format="pyarrow",
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=case.decoders, max_tasks_in_flight_per_actor=in_flight),
    )


class _Decode:
    """What an actor does with a row."""

    def __init__(self, index: str, recipe: RecipeSpec, seed: int, cores: tuple[int, ...]) -> None:
        import torch

        from bench.node.flat import Decoder, private

        torch.set_num_threads(1)
        os.sched_setaffinity(0, cores)
        self._decode = functools.partial(Decoder(index, recipe, seed).decode, allocate=private)

    def __call__(self, row: Any) -> Any:
        """The row, and the batch in one piece, which is copied once: into the object store."""
        import pyarrow as pa

        epoch, ids = _visits(row)
        flat = self._decode([Visit(sample=i, epoch=epoch) for i in ids]).numpy()
        ends = pa.py_buffer(np.array([0, len(flat)], np.int64))
        values = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, pa.py_buffer(flat)])
        return row.append_column("flat", values)


def _fed(row: Any) -> Fed:
    import torch

    from bench.node.flat import unpack

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        flat = torch.from_numpy(np.frombuffer(row.column("flat")[0].as_buffer(), np.uint8))
    return Fed(unpack(flat), *_visits(row))


def _visits(row: Any) -> tuple[int, tuple[int, ...]]:
    """Epoch and samples; Ray Data may make an array of the list."""
    ids = np.ravel(row.column("ids")[0].as_py())
    return int(row.column("epoch")[0].as_py()), tuple(int(i) for i in ids)
