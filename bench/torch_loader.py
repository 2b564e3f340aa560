"""A recipe behind a torch DataLoader, tuned: what a careful user would write around the same decode code.

Persistent workers; every sample decoded into memory that is used again; every batch written once more, into
shared memory, by the worker that decoded it. Nothing is copied in the trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from bench.samples import VISIT, Visit, describe, read_samples
from libhelix.recipe import DTYPES, Descriptor, Field, Pack, Part, Ragged, Recipe

Sharing = Literal["file_descriptor", "file_system"]
Tensors = dict[str, torch.Tensor]
Batch = dict[str, Any]
"""A tensor for a field; a list of them where it is ragged."""

TOKENS = "tokens"
"""The declared tokens of every sample, beside its fields."""


class RecipeDataset(Dataset[Tensors]):
    """Visits in, tensors out. They are overwritten by the next batch, because collating copies them: fresh
    arrays would cost a page fault for every page."""

    def __init__(self, index: Path, recipe: Recipe, seed: int, *, visits: bool = False) -> None:
        self._visits = visits
        self._recipe = recipe
        self._seed = seed
        self._samples = read_samples(index)
        self._buffers: dict[tuple[int, str], np.ndarray] = {}

    def __getitems__(self, visits: Sequence[Visit]) -> list[Tensors]:
        """The samples of a batch."""
        return [self._decode(slot, visit) for slot, visit in enumerate(visits)]

    def _decode(self, slot: int, visit: Visit) -> Tensors:
        desc = self.describe(visit)
        out = {f.name: self._array(slot, f) for f in desc.fields}
        self._recipe.fill(self._samples[visit.sample], desc, Part(0, desc.units, desc.units), out)
        tensors = {name: torch.from_numpy(array) for name, array in out.items()}
        tensors[TOKENS] = torch.tensor(desc.costs.get(TOKENS, 0))
        if self._visits:
            tensors[VISIT] = torch.tensor([visit.sample, visit.epoch])
        return tensors

    def describe(self, visit: Visit) -> Descriptor:
        """The descriptor of a visit."""
        return describe(self._recipe, self._samples, visit, self._seed)

    def _array(self, slot: int, field: Field) -> np.ndarray:
        nbytes = DTYPES[field.dtype] * int(np.prod(field.shape, dtype=np.int64))
        buffer = self._buffers.get((slot, field.name))
        if buffer is None or len(buffer) < nbytes:
            buffer = self._buffers[slot, field.name] = np.empty(nbytes, np.uint8)
        return buffer[:nbytes].view(field.dtype).reshape(field.shape)


class _Batches:
    """The order as DataLoader wants it: an iterable of batches, that may have no end."""

    def __init__(self, batches: Iterable[Sequence[Visit]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Sequence[Visit]]:
        return iter(self._batches)


def data_loader(
    *,
    index: Path,
    recipe: Recipe,
    batches: Iterable[Sequence[Visit]],
    seed: int,
    workers: int,
    prefetch: int,
    sharing: Sharing,
    in_order: bool = True,
) -> DataLoader[Batch]:
    """A loader of these batches, `prefetch` of them ahead in each worker. Those that are not `in_order` come
    as they are ready (from torch 2.6 on), with the visits that they are of."""
    _share_by(sharing)
    dataset = RecipeDataset(index, recipe, seed, visits=not in_order)
    first = dataset.describe(Visit(sample=0, epoch=0))
    packed = frozenset(f.name for f in first.fields if isinstance(f.layout, Pack))
    ragged = frozenset(f.name for f in first.fields if isinstance(f.layout, Ragged))
    overtaking: dict[str, Any] = {} if in_order else {"in_order": False}
    return DataLoader(
        dataset,
        batch_sampler=_Batches(batches),  # type: ignore[arg-type]  # its length is never asked for
        num_workers=workers,
        prefetch_factor=prefetch,
        persistent_workers=True,
        collate_fn=partial(collate, packed, ragged),
        worker_init_fn=partial(_share_by, sharing),
        **overtaking,
    )


def _share_by(sharing: Sharing, _worker: int = 0) -> None:
    """The trainer and every worker have to agree on it."""
    torch.multiprocessing.set_sharing_strategy(sharing)  # type: ignore[no-untyped-call]


def collate(packed: frozenset[str], ragged: frozenset[str], samples: Sequence[Tensors]) -> Batch:
    """A batch: fields in `packed` end to end, with their bounds in `<field>_cu_seqlens`; those in `ragged` as
    lists; others stacked."""
    apart = packed | ragged
    batch: Batch = default_collate([{k: v for k, v in s.items() if k not in apart} for s in samples])
    for name in ragged:
        batch[name] = [_concatenate([s[name]]) for s in samples]
    for name in packed:
        parts = [s[name] for s in samples]
        batch[name] = _concatenate(parts)
        lengths = torch.tensor([0, *(len(p) for p in parts)], dtype=torch.int32)
        batch[f"{name}_cu_seqlens"] = lengths.cumsum(0, dtype=torch.int32)
    return batch


def _concatenate(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """In a worker into storage that is shared already, as torch's own collate does for stacks."""
    if get_worker_info() is None:
        return torch.cat(list(parts))
    elements = sum(p.numel() for p in parts)
    storage = parts[0]._typed_storage()._new_shared(elements)  # type: ignore[no-untyped-call]
    out = parts[0].new(storage).resize_(sum(len(p) for p in parts), *parts[0].shape[1:])
    torch.cat(list(parts), out=out)
    return out
