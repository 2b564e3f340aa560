"""Extents become tensors that alias the ring, and are given back when the last of them dies.

All tensors of a batch are made from one memoryview slice. What keeps any of their storages alive (a view, a
detached tensor, an autograd graph, an array, a DLPack capsule) keeps that slice alive, and its finalizer is
the release.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from libhelix.batch import Batch
from libhelix.index.join import Joined
from libhelix.plan.ring import gaps
from libhelix.recipe import DTYPES
from libhelix.wire import messages as m
from libhelix.wire import segment
from libhelix.wire.layout import Record, aligned

_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES if hasattr(torch, name)}


class Arena:
    """A consumer's ring, mapped for reading and writing: a batch is its trainer's own until released."""

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self._nbytes = nbytes
        self._view = segment.attach(descriptor, nbytes)

    @property
    def memory(self) -> memoryview:
        """All of the mapping: the ring twice in a row."""
        return self._view

    def abandon(self, held: Iterable[tuple[int, int]]) -> None:
        """No batch comes any more: keep the memory of extents (offset, bytes) that are held, and no other."""
        for offset, nbytes in gaps(held, self._nbytes, 0):
            over = max(0, offset + nbytes - self._nbytes)  # it runs on at the ring's beginning
            segment.give_back(self._view, [(offset, nbytes - over), (0, over)])

    def lease(self, offset: int, nbytes: int, release: Callable[[], None]) -> memoryview:
        """The bytes of an extent; `release` is called when nothing refers to them any more.

        It is called wherever the interpreter happens to be, so it must neither wait nor take a lock.
        """
        extent = self._view[offset : offset + nbytes]
        finalizer = weakref.finalize(extent, _release, os.getpid(), release)
        finalizer.atexit = False  # the socket may be gone by then, and the daemon sees our end anyway
        return extent

    def copy(self, offset: int, nbytes: int) -> memoryview:
        """A private copy of an extent."""
        return memoryview(bytearray(self._view[offset : offset + nbytes]))


def _release(pid: int, release: Callable[[], None]) -> None:
    if os.getpid() == pid:  # not in a forked child: the lease is its parent's
        release()


def tensors(
    extent: memoryview, ready: m.Ready, schema: m.Schema, records: Callable[[], Sequence[Record]]
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The fields of a batch as tensors over its extent, and the bounds of packed fields as int32 tensors."""
    fields: dict[str, Any] = {}
    bounds: dict[str, torch.Tensor] = {}
    for i, (spec, place) in enumerate(zip(schema, ready.fields)):
        at = place.offset - ready.offset
        if spec.layout == "ragged":
            fields[spec.name] = _ragged(extent, at, spec.dtype, i, records())
            continue
        fields[spec.name] = _dense(extent, at, spec.dtype, place.shape)
        if spec.layout == "pack":
            lengths = [0, *(r.shapes[i][spec.axis] for r in records())]
            if (padding := place.shape[spec.axis] - sum(lengths)) > 0:
                lengths.append(padding)
            bounds[f"{spec.name}_cu_seqlens"] = torch.tensor(lengths, dtype=torch.int32).cumsum(
                0, dtype=torch.int32
            )
    return fields, bounds


def _dense(extent: memoryview, at: int, dtype: str, shape: Sequence[int]) -> torch.Tensor:
    count = math.prod(shape)
    if count == 0:
        return torch.empty(tuple(shape), dtype=_DTYPES[dtype])  # frombuffer refuses empty ranges
    flat = torch.frombuffer(extent, dtype=_DTYPES[dtype], count=count, offset=at)
    # In place: a view would be a second tensor, made in the trainer's time.
    return flat if len(shape) == 1 else flat.resize_(shape)


def _ragged(
    extent: memoryview, at: int, dtype: str, field: int, records: Sequence[Record]
) -> list[torch.Tensor]:
    found = []
    for record in records:
        planned = record.shapes[field]
        whole = _dense(extent, at, dtype, planned)
        found.append(whole[tuple(slice(0, n) for n in record.true_shapes[field])] if planned else whole)
        at += aligned(DTYPES[dtype] * math.prod(planned))
    return found


def batch_over(extent: memoryview, ready: m.Ready, schema: m.Schema, index: Joined) -> Batch:
    """The batch that lies in an extent; its tensors alias it."""
    at = ready.table[0] - ready.offset
    batch = Batch(
        {},
        epoch=ready.at.epoch,
        step=ready.at.step,
        micro=ready.at.micro,
        num_samples=ready.samples - ready.fillers,
        fillers=ready.fillers,
        global_samples=ready.global_samples,
        costs=ready.costs,
        global_costs=ready.global_costs,
        _schema=schema,
        _table=bytes(extent[at : at + ready.table[1]]),
        _sample_of=lambda sample: index[sample],
    )
    fields, batch.host = tensors(extent, ready, schema, lambda: batch.records)
    batch.update(fields)
    return batch
