"""A rank-local torch DataLoader, with the orders that people give it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, cast

from bench.node import plans
from bench.node.case import Case, Facts, Variant
from bench.node.recipe import loaded
from bench.node.system import Fed, System

Order = Callable[[Case, int], Iterator[plans.Batch]]


class RankLocal(System):
    """Persistent workers that decode whole batches, in the order of a distributed sampler.

    A worker has a batch in work whenever it can: w workers that prefetch p have w x p, and the rank holds one
    more. So a look-ahead of 3 keeps two workers busy, whatever the cores; that is the DataLoader's own limit.
    """

    name = "dataloader"
    title = "DataLoader"
    order: Order = staticmethod(plans.slices)

    def variants(self, case: Case) -> list[Variant]:
        """Splits of the cores and of the look-ahead over workers, and both ways to share memory."""
        most = max(1, min(case.decoders // case.ranks, case.lookahead - 1))
        found = []
        for workers in range(most, max(0, most - 3), -1):
            prefetch = max(1, (case.lookahead - 1) // workers)
            for sharing in ("file_descriptor",) if case.emulated else ("file_descriptor", "file_system"):
                options: dict[str, int | float | str] = {
                    "workers": workers, "prefetch": prefetch, "sharing": sharing
                }  # fmt: skip
                found.append(Variant(f"{workers} workers x {prefetch}, {sharing}", options))
        return found

    def decode_processes(self, case: Case, variant: Variant) -> int:
        """Workers of all ranks."""
        return case.ranks * int(variant.options["workers"])

    @contextmanager
    def batches(self, case: Case, variant: Variant, rank: int, facts: Facts) -> Iterator[Iterator[Fed]]:
        """A DataLoader; its workers end with it."""
        from bench.torch_loader import data_loader

        del facts
        sharing = cast(Literal["file_descriptor", "file_system"], variant.options["sharing"])
        loader = data_loader(
            index=Path(case.index),
            recipe=loaded(case.recipe),
            batches=type(self).order(case, rank),
            seed=case.seed,
            workers=int(variant.options["workers"]),
            prefetch=int(variant.options["prefetch"]),
            sharing=sharing,
        )
        batches = iter(loader)
        order = type(self).order(case, rank)
        try:
            yield (
                Fed(batch, visits[0].epoch, tuple(v.sample for v in visits))
                for batch, visits in zip(batches, order)
            )
        finally:
            batches._shutdown_workers()  # type: ignore[attr-defined]  # else they end when collected


class LengthGrouped(RankLocal):
    """Samples of like length in a batch."""

    name = "dataloader-lengths"
    title = "DataLoader, length-grouped"
    order: Order = staticmethod(plans.length_grouped)


class Windowed(RankLocal):
    """The batches that DataHelix plans: what is gained by order alone."""

    name = "dataloader-windows"
    title = "DataLoader, our window plan"
    order: Order = staticmethod(plans.windows)
