"""The bytes of one sample, as they travel from node to node: its slots, field by field, then its record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from libhelix.plan.layout import dense
from libhelix.recipe import DTYPES
from libhelix.wire import messages as m
from libhelix.wire.layout import aligned, record_bytes


@dataclass(frozen=True)
class Parcel:
    """places   of the fields, from the start of the parcel
    record   where the record begins
    runs     (offset in the parcel, bytes) of every field, then of the record
    """

    places: tuple[m.Place, ...]
    record: int
    nbytes: int
    runs: tuple[tuple[int, int], ...]


def parcel_of(schema: m.Schema, places: Sequence[m.Place]) -> Parcel | None:
    """How a sample with these places travels; None where a slot of it is not one run of bytes."""
    at, ours, runs = 0, [], []
    for spec, place in zip(schema, places, strict=True):
        if place.strides != dense(spec.dtype, place.slot):
            return None
        nbytes = DTYPES[spec.dtype] * math.prod(place.slot)
        ours.append(m.Place(at, place.shape, place.strides, place.slot))
        runs.append((at, nbytes))
        at = aligned(at + nbytes)
    record = record_bytes(schema)
    runs.append((at, record))
    return Parcel(tuple(ours), at, at + record, tuple(runs))


def landing(
    parcel: Parcel, begins: Sequence[int], ring: int, at: int, nbytes: int
) -> tuple[tuple[int, int, int], ...]:
    """Where bytes [at, at + nbytes) of a parcel go, whose runs go to `begins`, in a ring of so many bytes:
    (offset in these bytes, offset in the ring, count)."""
    found = []
    for (begin, count), to in zip(parcel.runs, begins, strict=True):
        first, last = max(begin, at), min(begin + count, at + nbytes)
        while first < last:
            where = (to + first - begin) % ring
            some = min(last - first, ring - where)
            found.append((first - at, where, some))
            first += some
    return tuple(found)
