"""A rank-local torch DataLoader, with the orders that people give it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from bench.node import plans
from bench.node.case import Case, Facts, Variant
from bench.node.recipe import loaded
from bench.node.system import Fed, System
from bench.samples import VISIT, Visit

Order = Callable[[Case, int], Iterator[plans.Batch]]
T = TypeVar("T")
MOST_SPLITS = 4


class RankLocal(System):
    """Persistent workers that decode whole batches, in the order of a distributed sampler.

    A worker has a batch in work whenever it can: w workers that prefetch p have w x p, and the rank holds one
    more. So a look-ahead of 3 keeps two workers busy, whatever the cores; that is the DataLoader's own limit.
    """

    name = "dataloader"
    title = "DataLoader"
    order: Order = staticmethod(plans.slices)
    overtakes = True
    """Whether batches may also come as they are ready."""

    def variants(self, case: Case) -> list[Variant]:
        """Splits of the cores and of the look-ahead over workers, both ways to share memory, and batches in
        their order or as they are ready."""
        ways = ("file_descriptor",) if case.emulated else ("file_descriptor", "file_system")
        orders = (1, 0) if self.overtakes and may_overtake() else (1,)
        return [
            _variant(workers, prefetch, "batches", sharing, in_order)
            for workers, prefetch in splits(case.decoders // case.ranks, case.lookahead - 1)
            for sharing in ways
            for in_order in orders
        ]

    def decode_processes(self, case: Case, variant: Variant) -> int:
        """Workers of all ranks."""
        return case.ranks * int(variant.options["workers"])

    @contextmanager
    def batches(self, case: Case, variant: Variant, rank: int, facts: Facts) -> Iterator[Iterator[Fed]]:
        """A DataLoader of batches."""
        del facts
        asked: deque[plans.Batch] = deque()
        with self.loader(case, variant, _noted(type(self).order(case, rank), asked)) as batches:
            if variant.options["in_order"]:
                yield (_fed(batch, asked.popleft()) for batch in batches)
            else:
                yield map(_as_it_came, batches)

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
            in_order=bool(variant.options["in_order"]),
        )
        found = iter(loader)
        try:
            yield found
        finally:
            found._shutdown_workers()  # type: ignore[attr-defined]  # else they end when collected


def splits(cores: int, ahead: int) -> list[tuple[int, int]]:
    """(workers, prefetch) with which a rank of so many cores has at most `ahead` in work, and with each
    number of workers as many as that allows; or one more, where that lets all of them work."""
    most = max(1, min(cores, ahead))
    found = {(w, max(1, ahead // w)) for w in range(1, most + 1)}
    found |= {(w, ahead // w + 1) for w in range(2, most + 1) if w * (ahead // w + 1) == ahead + 1}
    return sorted(found, key=lambda split: (-split[0], -split[1]))[:MOST_SPLITS]


def may_overtake() -> bool:
    """Whether this torch has loaders that hand out what is ready first."""
    major, minor = version("torch").split(".")[:2]
    return (int(major), int(minor)) >= (2, 6)


def _variant(workers: int, prefetch: int, what: str, sharing: str, in_order: int) -> Variant:
    options: dict[str, int | float | str] = {
        "workers": workers, "prefetch": prefetch, "sharing": sharing, "in_order": in_order
    }  # fmt: skip
    order = "" if in_order else ", as ready"
    return Variant(f"{workers} workers x {prefetch} {what}, {sharing}{order}", options)


def _noted(order: Iterator[T], asked: deque[T]) -> Iterator[T]:
    """The order as it is, each also in `asked`: a loader takes it in this process."""
    for one in order:
        asked.append(one)
        yield one


def _fed(batch: dict[str, Any], visits: Sequence[Visit]) -> Fed:
    return Fed(batch, visits[0].epoch, tuple(visit.sample for visit in visits))


def _as_it_came(batch: dict[str, Any]) -> Fed:
    return _fed(batch, [Visit(sample, epoch) for sample, epoch in batch.pop(VISIT).tolist()])


class PerSample(RankLocal):
    """Workers decode single samples, and the rank puts batches together: a copy more, but a short look-ahead
    keeps as many workers busy as it has samples."""

    name = "dataloader-samples"
    title = "DataLoader, samples collated in the rank"

    def variants(self, case: Case) -> list[Variant]:
        """All cores of the rank, or as many workers as samples may be ahead; in their order, or as they are
        ready."""
        ahead = max(1, (case.lookahead - 1) * case.batch)
        workers = max(1, min(case.decoders // case.ranks, ahead))
        orders = (1, 0) if may_overtake() else (1,)
        return [_variant(workers, max(1, ahead // workers), "samples", "file_descriptor", o) for o in orders]

    @contextmanager
    def batches(self, case: Case, variant: Variant, rank: int, facts: Facts) -> Iterator[Iterator[Fed]]:
        """A DataLoader of batches of one."""
        del facts
        asked: deque[Visit] = deque()
        order = (visit for batch in type(self).order(case, rank) for visit in batch)
        with self.loader(case, variant, ((visit,) for visit in _noted(order, asked))) as samples:
            batches = (joined([next(samples) for _ in range(case.batch)]) for _ in repeat(None))
            if variant.options["in_order"]:
                yield (_fed(batch, [asked.popleft() for _ in range(case.batch)]) for batch in batches)
            else:
                yield map(_as_it_came, batches)


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
    overtakes = False
    """Ranks would not have the batches of one step together, which is what a plan is for."""
