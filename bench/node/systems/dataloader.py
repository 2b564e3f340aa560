"""A rank-local torch DataLoader, with the orders that people give it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

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
        """A DataLoader of batches."""
        del facts
        order = type(self).order(case, rank)
        with self.loader(case, variant, type(self).order(case, rank)) as batches:
            yield (
                Fed(batch, visits[0].epoch, tuple(v.sample for v in visits))
                for batch, visits in zip(batches, order)
            )

    @contextmanager
    def loader(
        self, case: Case, variant: Variant, batches: Iterator[plans.Batch]
    ) -> Iterator[Iterator[dict[str, Any]]]:
        """A DataLoader of these batches; its workers end with it."""
        from bench.torch_loader import data_loader

        sharing = cast(Literal["file_descriptor", "file_system"], variant.options["sharing"])
        loader = data_loader(
            index=Path(case.index),
            recipe=loaded(case.recipe),
            batches=batches,
            seed=case.seed,
            workers=int(variant.options["workers"]),
            prefetch=int(variant.options["prefetch"]),
            sharing=sharing,
        )
        found = iter(loader)
        try:
            yield found
        finally:
            found._shutdown_workers()  # type: ignore[attr-defined]  # else they end when collected


class PerSample(RankLocal):
    """Workers decode single samples, and the rank puts batches together: a copy more, but a short look-ahead
    keeps as many workers busy as it has samples."""

    name = "dataloader-samples"
    title = "DataLoader, samples collated in the rank"

    def variants(self, case: Case) -> list[Variant]:
        """All cores of the rank, or as many workers as samples may be ahead."""
        ahead = max(1, (case.lookahead - 1) * case.batch)
        workers = max(1, min(case.decoders // case.ranks, ahead))
        options: dict[str, int | float | str] = {
            "workers": workers, "prefetch": max(1, ahead // workers), "sharing": "file_descriptor"
        }  # fmt: skip
        return [Variant(f"{workers} workers x {options['prefetch']} samples", options)]

    @contextmanager
    def batches(self, case: Case, variant: Variant, rank: int, facts: Facts) -> Iterator[Iterator[Fed]]:
        """A DataLoader of batches of one."""
        del facts
        single = ((visit,) for batch in type(self).order(case, rank) for visit in batch)
        with self.loader(case, variant, single) as samples:
            yield (
                Fed(joined([next(samples) for _ in visits]), visits[0].epoch, tuple(v.sample for v in visits))
                for visits in type(self).order(case, rank)
            )


def joined(batches: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Batches of one as one batch."""
    import torch

    found: dict[str, Any] = {}
    for name, value in batches[0].items():
        values = [batch[name] for batch in batches]
        if isinstance(value, list):
            found[name] = [one for some in values for one in some]
        elif name.endswith("_cu_seqlens"):
            lengths = torch.tensor([0, *(int(bounds[-1]) for bounds in values)], dtype=torch.int32)
            found[name] = lengths.cumsum(0, dtype=torch.int32)
        else:
            found[name] = torch.cat(values)
    return found


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
