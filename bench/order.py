"""The order in which a loader delivers samples, for whoever has to follow it without one."""

from __future__ import annotations

from collections.abc import Iterator

from bench.samples import Visit
from libhelix.plan.steps import StepPlan
from libhelix.wire.settings import FixedBatch, Position, RecipeSpec, Settings


def batches(
    *, samples: int, batch: int, seed: int, rank: int = 0, ranks: int = 1
) -> Iterator[tuple[Visit, ...]]:
    """The batches of a rank, without end: the same samples as `Loader` with FixedBatch(batch) gives it."""
    plan = StepPlan(
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
    at = Position(0, 0, 0)
    while True:
        yield tuple(Visit(sample=i, epoch=at.epoch) for i in plan.ids(at)[rank])
        at = plan.after(at)
