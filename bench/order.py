"""The order in which a loader delivers samples, for whoever has to follow it without one."""

from __future__ import annotations

from collections.abc import Iterator

from bench.samples import Visit
from libhelix.plan.planner import Planner, epoch_windows
from libhelix.wire.messages import Row
from libhelix.wire.settings import Base, FixedBatch, RecipeSpec, Settings


def batches(
    *, samples: int, batch: int, seed: int, rank: int = 0, ranks: int = 1
) -> Iterator[tuple[Visit, ...]]:
    """The batches of a rank, without end: those of `Loader` with FixedBatch(batch), where all cost alike."""
    planner = Planner(
        Settings(
            recipe=RecipeSpec("any", "any", "{}"),  # the order does not depend on it
            index_fingerprint="",
            index_samples=samples,
            batching=FixedBatch(batch),
            seed=seed,
            shuffle=True,
            dp_size=ranks,
            replicas=1,
            micro_batches=1,
            ring=3,
            on_bad="mask",
        )
    )
    base = Base(0, 0, 0)
    while True:
        windows = epoch_windows(planner, base, _alike)
        for step in (step for window in windows for step in window.steps):
            yield tuple(Visit(sample=i, epoch=base.epoch) for i in planner.ids(base.epoch, step[0][rank]))
        base = windows[-1].after


def _alike(epoch: int, sample: int) -> Row:
    del epoch
    return Row(sample, (), {}, 1, (), (0,))
