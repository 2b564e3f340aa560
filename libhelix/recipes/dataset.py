"""Samples of a PyTorch dataset, made by its own code in the pool: one by one, or batches whole.

Everything random in that code (Python's, numpy's and torch's global generators) is seeded for each sample,
or batch, by seed, epoch and number; so it does not matter who makes it, and when.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from libhelix.errors import MediaError, RecipeError, RecipeNotImportable
from libhelix.plan.order import Permutation
from libhelix.recipe import DTYPES, Descriptor, Field, Part, Ragged, Recipe, Rng, Sample
from libhelix.recipes.parcel import Parcel
from libhelix.recipes.stored import found, in_worker

PAYLOAD = "batch"
"""The field of whole batches."""
SAMPLE_US = 1000
"""Predicted for a sample; what it turns out to take corrects it."""


class FieldOf(msgspec.Struct, frozen=True):
    """Name, dtype and shape of one value of a sample."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class DatasetSample(Recipe, frozen=True):
    """`dataset[i]`, which has these fields for every i. `dataset` is a name of libhelix.recipes.stored."""

    dataset: str
    fields: tuple[FieldOf, ...]

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """The fields are known; the draw seeds the dataset's generators."""
        del sample
        named(self.dataset, call=True)
        fields = tuple(Field(f.name, f.dtype, f.shape) for f in self.fields)
        return Descriptor(fields, draws=rng.bits(), segment_us=(SAMPLE_US,))

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        """Copy the values of the sample to their places."""
        del part
        dataset = named(self.dataset, call=True)
        with seeded(desc.draws):
            leaves = dict(flattened(dataset[sample.id]))
        if leaves.keys() != out.keys():
            raise MediaError(f"has the values {sorted(leaves)}, the first sample had {sorted(out)}")
        for field in self.fields:
            value = as_array(leaves[field.name])
            if value is None or (value[0], value[1].shape) != (field.dtype, field.shape):
                has = f"{value[0]} {list(value[1].shape)}" if value else type(leaves[field.name]).__name__
                raise MediaError(
                    f"{field.name!r} is {has}, in the first sample it was {field.dtype} "
                    f"{list(field.shape)}; give a collate_fn= that joins them"
                )
            out[field.name][...] = value[1]


class DatasetBatch(Recipe, frozen=True):
    """Sample k is `collate(batch k)` of a dataset: anything that can be pickled, of at most `max_bytes`.

    Batches have `size` samples, the last one what is left. `collate`: "" takes the only sample as it is.
    """

    dataset: str
    samples: int
    size: int
    shuffle: bool
    collate: str
    max_bytes: int

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """One field of bytes; the draws are the numbers of the samples, and a seed."""
        named(self.dataset, call=True)
        numbers = np.arange(sample.id * self.size, min((sample.id + 1) * self.size, self.samples))
        if self.shuffle:
            numbers = Permutation(self.samples, rng.of_epoch().bits(), 0)[numbers]
        return Descriptor(
            fields=(payload(self.max_bytes),),
            draws=(rng.bits(), numbers.tolist()),
            segment_us=(SAMPLE_US * len(numbers),),
        )

    def fill(
        self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]
    ) -> Mapping[str, tuple[int, ...]]:
        """Collate, and copy what comes of it."""
        del part
        return placed(self.parcel(desc), sample, self.max_bytes, out)

    def parcel(self, desc: Descriptor) -> Parcel:
        """The batch, ready to be written."""
        dataset = named(self.dataset, call=True)
        collate = named(self.collate, call=False) if self.collate else None
        seed, numbers = desc.draws
        with seeded(seed):
            samples = [dataset[i] for i in numbers]
            return Parcel(collate(samples) if collate is not None else samples[0])


class OfOne(msgspec.Struct, frozen=True):
    """Joins nothing: it gives the function of a name the only sample, as a DataLoader without batch_size."""

    name: str

    def __call__(self, samples: list[Any]) -> Any:
        """What the function makes of the sample."""
        return named(self.name, call=False)(samples[0])


def payload(max_bytes: int) -> Field:
    """The field of a batch that is made whole."""
    return Field(PAYLOAD, "uint8", (max_bytes,), Ragged(), bounded=True)


def placed(
    parcel: Parcel, sample: Sample, max_bytes: int, out: Mapping[str, np.ndarray]
) -> Mapping[str, tuple[int, ...]]:
    """Copy a batch that was made whole to its place; its true shape. Raises MediaError for want of room."""
    if parcel.nbytes > max_bytes:
        raise MediaError(
            f"{sample.key} takes {parcel.nbytes} bytes, there is room for {max_bytes}; give "
            f"max_bytes={parcel.nbytes + parcel.nbytes // 4}, or more"
        )
    parcel.write(out[PAYLOAD])
    return {PAYLOAD: (parcel.nbytes,)}


def named(name: str, *, call: bool) -> Any:
    """The object of a name. Raises RecipeError: without it no sample can be made."""
    try:
        return found(name, call)
    except RecipeNotImportable as e:
        raise RecipeError(str(e)) from e


@contextlib.contextmanager
def seeded(bits: int) -> Iterator[None]:
    """Seed what code may draw from, and leave it as it was: inline, it is the trainer's."""
    if in_worker():
        _seed(bits)
        yield
        return
    torch = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()
    own = torch.default_generator.get_state() if torch is not None else None
    _seed(bits)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch is not None and own is not None:
            torch.default_generator.set_state(own)


def _seed(bits: int) -> None:
    random.seed(bits)
    np.random.seed(bits & 0xFFFFFFFF)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(bits)  # not torch.manual_seed: that reaches accelerators


def flattened(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a sample by name: keys and places in lists, joined by dots. A lone one is "sample"."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flattened(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for i, inner in enumerate(value):
            yield from flattened(inner, f"{name}.{i}" if name else str(i))
    else:
        yield name or "sample", value


def as_array(value: Any) -> tuple[str, np.ndarray[Any, Any]] | None:
    """A value's dtype by name, and the value as a field takes it; None where no field does."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
            return None
        dtype, plain = str(value.dtype).removeprefix("torch."), value.detach()
        array = plain.view(torch.int16).numpy().view(np.uint16) if dtype == "bfloat16" else None
        if dtype not in DTYPES:
            return None
        return dtype, array if array is not None else plain.numpy()
    if not isinstance(value, bool | int | float | np.generic | np.ndarray):
        return None
    array = np.asarray(value)
    return (array.dtype.name, array) if array.dtype.name in DTYPES else None
