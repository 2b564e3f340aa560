"""A workload made ready: its files, an index, and rows with what decoding took; then cases of it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import msgspec
from rich.progress import Progress

from bench.clips import ClipPlan, encode_all
from bench.interrupts import shielded_children
from bench.node.case import Case, Emulation, Rows, Window
from bench.node.emulate import Emulated
from bench.node.media import Small, make
from bench.node.recipe import field_bytes, loaded
from bench.node.workloads import VERSION, Workload
from bench.results import BenchFailed
from libhelix.index.build import build
from libhelix.index.formats import Options
from libhelix.index.read import Index
from libhelix.recipe import Part, Recipe, Rng
from libhelix.recipes.rows import spec_of
from libhelix.wire.settings import RecipeSpec

_FIXED, _SQUARES = 0.05, 0.03
"""Shares of the mean window that are there for every batch, and that grow with the square of a sample."""
_ALIGN = 128
RECORDED_ANEW = 1024


class Prepared(msgspec.Struct, frozen=True):
    """A workload whose files are there."""

    name: str
    index: str
    recipe: RecipeSpec
    rows: str
    scale: float = 1.0


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What cases of a run have in common, but for the workload and the look-ahead.

    window_s: an emulated step is to take so long, if ranks are level: it sets the dilation.
    """

    ranks: int
    batch: int
    micro_batches: int
    cores: tuple[int, ...]
    emulated_cores: int | None
    window_s: float
    rho: float
    steps: int
    warm_up: int
    seed: int
    skew: bool = False
    storage_s: float = 0.0


def prepare(
    workload: Workload, samples: int, cache: Path, progress: Progress, *, anew: bool = False
) -> Prepared:
    """Make what the cache lacks; `anew` as for `measured`."""
    folder = cache / "bench" / f"node-{VERSION}" / f"{workload.name}-{samples}"
    plans = workload.plans(samples)
    encode_all([p for p in plans if isinstance(p, ClipPlan)], folder / "media", progress)
    make([p for p in plans if isinstance(p, Small)], folder / "media", progress)
    index = folder / "index.arrow"
    options = Options(group="folder" if workload.folders else "", keep_incomplete=True)
    made = build([folder / "media"], index, options=options)
    if made.refused:
        raise BenchFailed(f"{workload.name}: {made.refused[0][0]}: {made.refused[0][1]}")
    found = measured(workload.name, index, workload.recipe, folder, progress, anew=anew)
    return msgspec.structs.replace(found, scale=workload.emulated_scale)


def measured(
    name: str, index: Path, recipe: Recipe, folder: Path, progress: Progress, *, anew: bool = False
) -> Prepared:
    """An index with its rows, which are kept in `folder`.

    `anew`: what decoding takes is recorded again, unless that takes long: a machine that others use too may
    have been faster, and windows follow from it.
    """
    spec = spec_of(recipe)
    mark = hashlib.blake2b(
        msgspec.json.encode((Index.open(index).fingerprint, spec)), digest_size=4
    ).hexdigest()
    rows = folder / f"rows-{mark}{'-anew' if anew else ''}.json"
    if not rows.exists() or (anew and len(Index.open(index)) <= RECORDED_ANEW):
        found = _rows(index, spec, progress)
        partial = rows.with_suffix(f".{os.getpid()}")
        partial.write_bytes(msgspec.json.encode(found))
        partial.replace(rows)
    return Prepared(name, str(index), spec, str(rows))


def _rows(index: Path, recipe: RecipeSpec, progress: Progress) -> Rows:
    """Decode all samples, each twice, and note the second time: the first reads the file."""
    count = len(Index.open(index))
    task = progress.add_task("recording costs", total=count)
    stretches = [range(i, min(count, i + 16)) for i in range(0, count, 16)]
    found: list[tuple[int, int, int, int]] = []
    pool = ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn"))
    try:
        with shielded_children():
            jobs = [pool.submit(_decode, str(index), recipe, ids) for ids in stretches]
        for job in jobs:
            found += job.result()
            progress.update(task, completed=len(found))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    tokens, nbytes, declared, recorded = zip(*found)
    return Rows(tokens=tokens, nbytes=nbytes, declared_us=declared, recorded_us=recorded)


def _decode(index: str, spec: RecipeSpec, ids: Sequence[int]) -> list[tuple[int, int, int, int]]:
    import numpy as np

    from libhelix.recipe import DTYPES

    samples, recipe = Index.open(index), loaded(spec)
    found = []
    for i in ids:
        sample = samples[i]
        desc = recipe.describe(sample, Rng(0, 0, i))
        out = {f.name: np.zeros(f.shape, f.dtype if f.dtype in DTYPES else "uint8") for f in desc.fields}
        took_s = 0.0
        for _ in range(2):
            began_s = time.thread_time()
            recipe.fill(sample, desc, Part(0, desc.units, desc.units), out)
            took_s = time.thread_time() - began_s
        found.append(
            (desc.costs["tokens"], field_bytes(desc), sum(desc.segment_us), max(1, round(took_s * 1e6)))
        )
    return found


def case_of(prepared: Prepared, shape: Shape, lookahead: int) -> Case:
    """A case in which decoding asks for rho of the cores, were all ranks level."""
    rows = msgspec.json.decode(Path(prepared.rows).read_bytes(), type=Rows)
    cores = shape.emulated_cores or len(shape.cores)
    emulation = None
    if shape.emulated_cores:
        emulation = Emulation(cores, 1.0, prepared.scale, shape.ranks if shape.skew else 0)
    took = [emulation.full_us(i, us) if emulation else us for i, us in enumerate(rows.recorded_us)]
    # Of a micro-batch, for which all ranks decode `batch` samples each.
    window_s = shape.ranks * shape.batch * sum(took) / len(took) * 1e-6 / (cores * shape.rho)
    recipe, dilation = loaded(prepared.recipe), 1.0
    if emulation:
        dilation = max(1.0, shape.window_s / window_s)
        emulation = msgspec.structs.replace(emulation, dilation=dilation)
        storage_s = shape.storage_s * dilation
        recipe = Emulated(prepared.recipe, prepared.rows, emulation, storage_s=storage_s)
    level = (max(rows.nbytes) + _ALIGN - 1) // _ALIGN * _ALIGN
    return Case(
        workload=prepared.name,
        index=prepared.index,
        recipe=spec_of(recipe),
        rows=prepared.rows,
        samples=len(rows.tokens),
        ranks=shape.ranks,
        batch=shape.batch,
        micro_batches=shape.micro_batches,
        cores=shape.cores,
        emulated=emulation,
        lookahead=lookahead,
        lookahead_bytes=lookahead * shape.batch * level,
        level_bytes=level,
        window=window_of(rows.tokens, shape.batch, window_s * dilation),
        steps=shape.steps,
        warm_up=shape.warm_up,
        seed=shape.seed,
        skew=shape.skew,
        storage_s=shape.storage_s,
    )


def window_of(tokens: Sequence[int], batch: int, mean_s: float) -> Window:
    """Coefficients with which the mean window of a batch is `mean_s`."""
    mean = sum(tokens) / len(tokens)
    square = sum(t * t for t in tokens) / len(tokens)
    linear = 1.0 - _FIXED - _SQUARES
    return Window(_FIXED * mean_s, linear * mean_s / (batch * mean), _SQUARES * mean_s / (batch * square))
