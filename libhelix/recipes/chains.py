"""Batches of a PyTorch IterableDataset, which can only be gone through from its beginning.

A loader reads so many *streams* of it, each as a DataLoader's worker would: a copy of the dataset, which asks
`get_worker_info()` which of them it is. Batch k of an epoch is of stream k mod streams. One worker makes all
batches of a stream, in order; whoever takes it over goes through it once more, up to where it was, with the
same seeds.
"""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from libhelix.errors import MediaError, RecipeError, RecipeNotImportable
from libhelix.recipe import Descriptor, Part, Recipe, Rng, Sample
from libhelix.recipes.dataset import SAMPLE_US, named, payload, placed, seeded
from libhelix.recipes.parcel import Parcel
from libhelix.recipes.stored import another

MOST_OPEN = 2
"""Epochs of a stream that are gone through at a time: where one ends, the next has begun."""
_WORKER = "torch.utils.data._utils.worker"
"""Where `get_worker_info()` looks; who has no torch does not ask."""
KEPT = 4
"""Batches of a stream that were passed over and may be asked for yet."""


class DatasetChain(Recipe, frozen=True, eq=False, weakref=True):
    """Sample k is a batch of stream k mod `streams`: the next `size` samples of it, collated.

    per_epoch   0: every epoch begins at the beginning. Else an epoch goes on where the one before ended,
                after so many batches of each stream
    drop_last   leave out what is left at the end of a stream, else it is a shorter batch
    collate     "" takes the only sample as it is

    A stream that is over before the epoch begins anew.
    """

    dataset: str
    streams: int
    per_epoch: int
    size: int
    drop_last: bool
    collate: str
    max_bytes: int

    def chains(self) -> int:
        """The batches of a stream follow from those before."""
        return self.streams

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """One field of bytes; the draws are seed and epoch. The dataset is not needed for that."""
        del sample
        return Descriptor(
            fields=(payload(self.max_bytes),),
            draws=(rng.seed, rng.epoch),
            segment_us=(SAMPLE_US * self.size,),
        )

    def fill(
        self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]
    ) -> Mapping[str, tuple[int, ...]]:
        """Go on to the batch, and copy what comes of it."""
        del part
        return placed(self.parcel(sample.id, *desc.draws), sample, self.max_bytes, out)

    def parcel(self, number: int, seed: int, epoch: int) -> Parcel:
        """Batch `number` of an epoch, ready to be written."""
        number, stream = divmod(number, self.streams)
        if self.per_epoch:
            epoch, number = 0, epoch * self.per_epoch + number
        opened = _open.setdefault(self, OrderedDict())
        key = seed, epoch, stream
        going = opened.get(key)
        if going is None or not going.can_give(number):
            opened[key] = going = _Going(self, *key)
            mine = [k for k in opened if k[2] == stream]
            for old in mine[:-MOST_OPEN]:
                del opened[old]
        try:
            return going.batch(number)
        except Exception:
            raise  # it has ended, and raises so for all that would follow
        except BaseException:
            del opened[key]  # interrupted, it is nowhere
            raise

    def asked(self) -> bool:
        """Whether streams that are being gone through have asked which of them they are."""
        return any(going.info.asked for going in _open.get(self, {}).values() if going.info is not None)


_open: WeakKeyDictionary[DatasetChain, OrderedDict[tuple[int, int, int], _Going]] = WeakKeyDictionary()
"""By recipe, streams that are being gone through."""


class _Going:
    """A stream of an epoch, and how far it has come."""

    def __init__(self, recipe: DatasetChain, seed: int, epoch: int, stream: int) -> None:
        # Not the recipe itself, which this would keep alive.
        self._dataset, self._size, self._drop_last = recipe.dataset, recipe.size, recipe.drop_last
        self._collate = named(recipe.collate, call=False) if recipe.collate else None
        self._seed, self._epoch = seed, epoch
        self._stream, self._streams = stream, recipe.streams
        self._next = 0
        self._passes = 0
        self._samples: Iterator[Any] = iter(())
        self.info: Any = None
        self._kept: dict[int, Parcel] = {}
        self._failed: Exception | None = None

    def can_give(self, number: int) -> bool:
        """Whether a batch is yet to come, or kept."""
        return number >= self._next or number in self._kept

    def batch(self, number: int) -> Parcel:
        """A batch that can be given."""
        if self._failed is not None and number >= self._next:
            raise self._failed
        try:
            self._go_to(number)
        except Exception as e:
            self._failed = e
            raise
        found = self._kept.pop(number)
        for old in [k for k in self._kept if k < number - KEPT]:
            del self._kept[old]
        return found

    def _go_to(self, number: int) -> None:
        while self._next <= number:
            bits = Rng(self._seed, self._epoch, self._next * self._streams + self._stream).bits()
            with seeded(bits):
                samples = self._take()
                if number - self._next <= KEPT:
                    value = self._collate(samples) if self._collate is not None else samples[0]
                    self._kept[self._next] = Parcel(value)
            self._next += 1

    def _take(self) -> list[Any]:
        """The samples of the next batch: of this pass through the dataset, or of the next one."""
        least = self._size if self._drop_last else 1
        for _ in range(2):
            with _worker_info(self.info):
                samples = list(islice(self._samples, self._size))
            if len(samples) >= least:
                return samples
            self._begin_pass()
        with _worker_info(self.info):
            samples = list(islice(self._samples, self._size))
        if len(samples) >= least:
            return samples
        few = f"{len(samples) or 'no'} samples, a batch needs {least}"
        if self._streams == 1:
            raise MediaError(f"the dataset gives {few}")
        raise MediaError(
            f"stream {self._stream} of {self._streams} gives {few}; there is less to share out than "
            "num_workers= x ranks: give a smaller num_workers="
        )

    def _begin_pass(self) -> None:
        try:
            dataset = another(self._dataset)
        except RecipeNotImportable as e:
            raise RecipeError(str(e)) from e
        epoch = self._epoch + self._passes
        base = Rng(self._seed, epoch, 0).of_epoch().bits() >> 1  # a DataLoader's has 63 bits
        self.info = info_of(dataset, self._stream, self._streams, base)
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        with _worker_info(self.info):
            self._samples = iter(dataset)
        self._passes += 1


def info_of(dataset: Any, stream: int, streams: int, seed: int) -> Any:
    """What `get_worker_info()` says in a stream; None where torch is not there to be asked."""
    if (torch := sys.modules.get(_WORKER)) is None:
        return None

    class Info(torch.WorkerInfo):  # type: ignore[misc, name-defined]
        """Notes whether it was asked."""

        asked = False

        def __getattribute__(self, name: str) -> Any:
            if name in ("id", "num_workers"):
                type(self).asked = True
            return super().__getattribute__(name)

    return Info(id=stream, num_workers=streams, seed=seed + stream, dataset=dataset)


@contextlib.contextmanager
def _worker_info(info: Any) -> Iterator[None]:
    """Have `get_worker_info()` say so."""
    if info is None:
        yield
        return
    torch: Any = sys.modules[_WORKER]
    before, torch._worker_info = torch._worker_info, info
    try:
        yield
    finally:
        torch._worker_info = before
