"""Batches in one piece of memory, for systems that hand decoded samples from process to process.

A header that says what lies where, then the values, each field at a multiple of 64 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from bench.node.recipe import loaded
from bench.samples import Visit, describe, read_samples
from bench.torch_loader import TOKENS
from libhelix.recipe import Descriptor, Field, Pack, Part, Ragged
from libhelix.wire.settings import RecipeSpec

_ALIGN = 64
_LENGTH = 8
"""Bytes in which the header's own length stands."""

Batch = dict[str, Any]
"""A tensor for a field, a list of them where it is ragged, as `bench.torch_loader.collate` makes it."""
Allocate = Callable[[int], torch.Tensor]
"""So many bytes, uint8 [n], values undefined."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A tensor of a batch. `listed`: one of a list, which has an entry for each."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    listed: bool = False

    @property
    def nbytes(self) -> int:
        """Without what aligns the next."""
        return _dtype(self.dtype).itemsize * int(np.prod(self.shape, dtype=np.int64))


def private(nbytes: int) -> torch.Tensor:
    """Memory of this process."""
    return torch.empty(nbytes, dtype=torch.uint8)


def shared(nbytes: int) -> torch.Tensor:
    """Memory that other processes get with the tensor, as a DataLoader's workers use it."""
    storage = torch.UntypedStorage._new_shared(nbytes)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def packed_bytes(batch: Batch) -> int:
    """Bytes of a batch in one piece."""
    return _total(_entries(batch))


def pack(batch: Batch, out: torch.Tensor) -> None:
    """Write a batch into `out`, which has `packed_bytes` of it."""
    entries = _entries(batch)
    _write_header(out, entries)
    values = (one for value in batch.values() for one in (value if isinstance(value, list) else [value]))
    for place, value in zip(_views(out, entries), values, strict=True):
        place.copy_(value)


def unpack(flat: torch.Tensor) -> Batch:
    """The batch that was packed: views, not copies."""
    entries = _read_header(flat)
    batch: Batch = {}
    for entry, view in zip(entries, _views(flat, entries), strict=True):
        if entry.listed:
            batch.setdefault(entry.name, []).append(view)
        else:
            batch[entry.name] = view
    return batch


def split(batch: Batch, samples: int) -> list[Batch]:
    """Every sample of a batch as a batch of one: views, what `dataloader.joined` puts together again."""
    found: list[Batch] = [{} for _ in range(samples)]
    for name, value in batch.items():
        bounds = batch.get(f"{name}_cu_seqlens")
        for i, one in enumerate(found):
            if bounds is not None:
                one[name] = value[int(bounds[i]) : int(bounds[i + 1])]
            elif name.endswith("_cu_seqlens"):
                one[name] = torch.tensor([0, int(value[i + 1] - value[i])], dtype=torch.int32)
            else:
                one[name] = value[i : i + 1]
    return found


class Decoding:
    """Visits that are being decoded, straight into the memory in which they travel."""

    def __init__(self, descs: Sequence[Descriptor], flat: torch.Tensor) -> None:
        self.flat = flat
        self._descs = descs
        self._batch = unpack(flat)

    @classmethod
    def begun(cls, descs: Sequence[Descriptor], allocate: Allocate) -> Decoding:
        """In fresh memory."""
        entries = _described(descs)
        flat = allocate(_total(entries))
        _write_header(flat, entries)
        batch = unpack(flat)
        batch[TOKENS].copy_(torch.tensor([desc.costs.get(TOKENS, 0) for desc in descs]))
        for field in descs[0].fields:
            if isinstance(field.layout, Pack):
                lengths = [_field(desc, field.name).shape[0] for desc in descs]
                batch[f"{field.name}_cu_seqlens"].copy_(torch.tensor([0, *lengths]).cumsum(0))
        return cls(descs, flat)

    def out(self, slot: int, part: Part) -> dict[str, np.ndarray]:
        """Where `fill` writes a part of the sample in a slot."""
        found = {}
        for field in self._descs[slot].fields:
            value, k = self._batch[field.name], field.rows_per_unit
            if isinstance(field.layout, Pack):
                bounds = self._batch[f"{field.name}_cu_seqlens"]
                rows = value[int(bounds[slot]) : int(bounds[slot + 1])]
            else:
                rows = value[slot]
            if k:
                found[field.name] = rows.numpy()[part.begin * k : part.end * k]
            elif part.first:
                found[field.name] = rows.numpy()
        return found


class Decoder:
    """An index and a recipe, opened once in a process."""

    def __init__(self, index: str, recipe: RecipeSpec, seed: int) -> None:
        self._recipe = loaded(recipe)
        self._samples = read_samples(Path(index))
        self._seed = seed

    def describe(self, visit: Visit) -> Descriptor:
        """The descriptor of a visit."""
        return describe(self._recipe, self._samples, visit, self._seed)

    def decode(self, visits: Sequence[Visit], allocate: Allocate) -> torch.Tensor:
        """A batch in one piece; nothing is copied."""
        descs = [self.describe(visit) for visit in visits]
        decoding = Decoding.begun(descs, allocate)
        for slot, (visit, desc) in enumerate(zip(visits, descs)):
            self.fill(visit, desc, decoding, slot, Part(0, desc.units, desc.units))
        return decoding.flat

    def fill(self, visit: Visit, desc: Descriptor, decoding: Decoding, slot: int, part: Part) -> None:
        """Decode a part of the sample in a slot."""
        self._recipe.fill(self._samples[visit.sample], desc, part, decoding.out(slot, part))


def _described(descs: Sequence[Descriptor]) -> list[Entry]:
    entries = [Entry(TOKENS, "int64", (len(descs),))]
    for field in descs[0].fields:
        each = [_field(desc, field.name) for desc in descs]
        if isinstance(field.layout, Ragged):
            entries += [Entry(f.name, f.dtype, f.shape, listed=True) for f in each]
        elif isinstance(field.layout, Pack):
            rows = sum(f.shape[0] for f in each)
            entries.append(Entry(field.name, field.dtype, (rows, *field.shape[1:])))
            entries.append(Entry(f"{field.name}_cu_seqlens", "int32", (len(descs) + 1,)))
        else:
            entries.append(Entry(field.name, field.dtype, (len(descs), *field.shape)))
    return entries


def _field(desc: Descriptor, name: str) -> Field:
    return next(f for f in desc.fields if f.name == name)


def _entries(batch: Batch) -> list[Entry]:
    found = []
    for name, value in batch.items():
        for one in value if isinstance(value, list) else [value]:
            dtype = str(one.dtype).removeprefix("torch.")
            found.append(Entry(name, dtype, tuple(one.shape), isinstance(value, list)))
    return found


def _write_header(flat: torch.Tensor, entries: Sequence[Entry]) -> None:
    header = msgspec.json.encode(entries)
    array = flat.numpy()
    array[:_LENGTH] = np.frombuffer(len(header).to_bytes(_LENGTH, "little"), np.uint8)
    array[_LENGTH : _LENGTH + len(header)] = np.frombuffer(header, np.uint8)


def _read_header(flat: torch.Tensor) -> list[Entry]:
    array = flat.numpy()
    length = int.from_bytes(array[:_LENGTH].tobytes(), "little")
    return msgspec.json.decode(array[_LENGTH : _LENGTH + length].tobytes(), type=list[Entry])


def _views(flat: torch.Tensor, entries: Sequence[Entry]) -> Iterator[torch.Tensor]:
    at = _up(_LENGTH + len(msgspec.json.encode(entries)))
    for entry in entries:
        yield flat[at : at + entry.nbytes].view(_dtype(entry.dtype)).reshape(entry.shape)
        at += _up(entry.nbytes)


def _total(entries: Sequence[Entry]) -> int:
    header = _up(_LENGTH + len(msgspec.json.encode(entries)))
    return header + sum(_up(entry.nbytes) for entry in entries)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype), f"{name} is a dtype"
    return found


def _up(nbytes: int) -> int:
    return (nbytes + _ALIGN - 1) // _ALIGN * _ALIGN
