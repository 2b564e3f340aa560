"""Which samples each rank has in each step, for systems that have to be told. Endless, and the same in every
process; an epoch has every sample once, but for the last few that make no whole step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bench.node.case import Case, read_rows
from bench.samples import Visit
from libhelix.index.read import Index
from libhelix.plan.planner import Planner, epoch_windows
from libhelix.recipes.run import Loaded, describe_row, load_recipe
from libhelix.wire.messages import Row
from libhelix.wire.settings import Base, FixedBatch, Settings

Batch = tuple[Visit, ...]
LENGTH_BATCHES = 50
"""Batches of samples that are sorted by length at once, as transformers' LengthGroupedSampler does."""


def slices(case: Case, rank: int) -> Iterator[Batch]:
    """The seeded order as a distributed sampler deals it out: of n ranks, rank r takes every n-th sample."""
    if case.skew:
        return shard(case, rank)
    return _dealt(case, rank, lengths=False)


def length_grouped(case: Case, rank: int) -> Iterator[Batch]:
    """Samples of like length in a batch: sorted inside stretches of the seeded order, batches shuffled."""
    return _dealt(case, rank, lengths=True)


def windows(case: Case, rank: int) -> Iterator[Batch]:
    """The batches that DataHelix gives this rank, from the same plan."""
    planner, rows = Planner(settings(case)), _Rows(case)
    base = Base(0, 0, 0)
    while True:
        planned = epoch_windows(planner, base, rows.row)
        for step in (step for window in planned for step in window.steps):
            for micro in step:
                ids = planner.ids(base.epoch, micro[rank])
                yield tuple(Visit(sample=i, epoch=base.epoch) for i in ids)
        base = planned[-1].after


def shard(case: Case, rank: int) -> Iterator[Batch]:
    """Only every n-th sample of the index, shuffled: a rank that streams shards of its own."""
    own = np.arange(rank, case.samples, case.ranks)
    per_step = case.batch * case.micro_batches
    steps = case.samples // case.ranks // per_step
    epoch = 0
    while True:
        order = own[np.random.default_rng((case.seed, epoch, rank)).permutation(len(own))]
        yield from _cut(order[: steps * per_step], case.batch, epoch)
        epoch += 1


def settings(case: Case) -> Settings:
    """Those of DataHelix's loader, as far as the plan depends on them."""
    return Settings(
        recipe=case.recipe,
        index_fingerprint="",
        index_samples=case.samples,
        batching=FixedBatch(case.batch, regroup=case.regroup),
        seed=case.seed,
        shuffle=True,
        dp_size=case.ranks,
        replicas=1,
        micro_batches=case.micro_batches,
        ring=case.lookahead,
        on_bad="mask",
    )


def _dealt(case: Case, rank: int, *, lengths: bool) -> Iterator[Batch]:
    per_rank = case.batch * case.micro_batches
    whole = case.samples // (case.ranks * per_rank) * case.ranks * per_rank
    tokens = np.asarray(read_rows(case.rows).tokens)
    epoch = 0
    while True:
        rng = np.random.default_rng((case.seed, epoch))
        order = rng.permutation(case.samples)[:whole]
        if lengths:
            order = _by_length(order, tokens, case, rng)
            mine = order.reshape(-1, case.ranks, case.batch)[:, rank].ravel()
        else:
            mine = order[rank :: case.ranks]
        yield from _cut(mine, case.batch, epoch)
        epoch += 1


def _by_length(order: np.ndarray, tokens: np.ndarray, case: Case, rng: np.random.Generator) -> np.ndarray:
    """Batches of samples of like length, in the order in which ranks take them."""
    stretch = LENGTH_BATCHES * case.batch
    parts = [order[i : i + stretch] for i in range(0, len(order), stretch)]
    ordered = np.concatenate([part[np.argsort(-tokens[part], kind="stable")] for part in parts])
    batches = ordered.reshape(-1, case.ranks, case.batch)
    return batches[rng.permutation(len(batches))].ravel()


def _cut(ids: np.ndarray, batch: int, epoch: int) -> Iterator[Batch]:
    for i in range(0, len(ids), batch):
        yield tuple(Visit(sample=int(s), epoch=epoch) for s in ids[i : i + batch])


class _Rows:
    """Rows as helixd gets them from workers, described here, each once."""

    def __init__(self, case: Case) -> None:
        index = Index.open(case.index)
        self._loaded = Loaded(load_recipe(case.recipe), case.recipe.qualname, index, case.seed)
        self._known: dict[int, Row] = {}

    def row(self, epoch: int, sample: int) -> Row:
        # Recipes of the benchmark draw nothing, so that a sample is alike in all epochs.
        if sample not in self._known:
            self._known[sample] = describe_row(self._loaded, epoch, sample)[0]
        return self._known[sample]
