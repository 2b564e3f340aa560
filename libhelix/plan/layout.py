"""Where each field of each sample lies in the extent of a batch, known before its first pixel.

extent := field 0 | field 1 | ... | sample table          every field begins at a multiple of 128

stack   [B, *shape]                    pad      [B, *largest], the rest of a slot has the pad value
pack    concatenated along its axis    ragged   sample after sample, each at a multiple of 128
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from libhelix.errors import RecipeError
from libhelix.recipe import DTYPES, Descriptor, Pack, Pad, Ragged, Stack, nbytes
from libhelix.wire.layout import aligned, record_bytes
from libhelix.wire.messages import FieldRange, FieldSpec, Place, Row

Shapes = Sequence[tuple[int, ...]]
NOTHING_PADDED: Mapping[str, int] = {}


_KINDS: Mapping[type, Literal["stack", "pad", "pack", "ragged"]] = {
    Stack: "stack",
    Pad: "pad",
    Pack: "pack",
    Ragged: "ragged",
}


class BatchLayout(msgspec.Struct, frozen=True):
    """Offsets are from the start of the extent. `places[i]` are the places of sample i, field by field;
    `records[i]` is the offset of its record in the table."""

    nbytes: int
    fields: tuple[FieldRange, ...]
    places: tuple[tuple[Place, ...], ...]
    table: tuple[int, int]
    records: tuple[int, ...]


def schema_of(desc: Descriptor) -> tuple[FieldSpec, ...]:
    """The part of a descriptor that must be the same for every sample of a loader."""
    return tuple(
        FieldSpec(
            name=f.name,
            dtype=f.dtype,
            layout=_KINDS[type(f.layout)],
            ndim=len(f.shape),
            pad_value=f.layout.value if isinstance(f.layout, Pad | Pack) else 0,
            axis=f.layout.axis if isinstance(f.layout, Pack) else 0,
            rows_per_unit=f.rows_per_unit,
            bounded=f.bounded,
            counts=f.layout.counts if isinstance(f.layout, Pack) else "",
        )
        for f in desc.fields
    )


def lay_out(
    schema: Sequence[FieldSpec], rows: Sequence[Row], multiples: Mapping[str, int] = NOTHING_PADDED
) -> BatchLayout:
    """The layout of a batch of these samples. Raises RecipeError where shapes do not fit their layout.

    `multiples`: by declared cost, what the rows of packed fields that count it are padded to a multiple of.
    """
    at = 0
    fields: list[FieldRange] = []
    by_field: list[list[Place]] = []
    for i, field in enumerate(schema):
        shapes = [row.shapes[i] for row in rows]
        multiple = multiples.get(field.counts, 1) if field.counts else 1
        places, shape, size = _LAYOUTS[field.layout](field, shapes, at, multiple)
        fields.append(FieldRange(at, shape))
        by_field.append(places)
        at = aligned(at + size)
    step = record_bytes(schema)
    return BatchLayout(
        nbytes=at + step * len(rows),
        fields=tuple(fields),
        places=tuple(zip(*by_field)),
        table=(at, step * len(rows)),
        records=tuple(at + step * b for b in range(len(rows))),
    )


def dense(dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in bytes of an array without gaps, the last axis fastest."""
    strides, step = [], DTYPES[dtype]
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def _stack(field: FieldSpec, shapes: Shapes, at: int, _: int) -> tuple[list[Place], tuple[int, ...], int]:
    shape = shapes[0]
    for other in shapes:
        if other != shape:
            raise RecipeError(
                f"field {field.name!r} is stacked and has shape {other} in one sample, {shape} in another; "
                "give it one shape, or Pad, Pack or Ragged"
            )
    step, strides = nbytes(field.dtype, shape), dense(field.dtype, shape)
    places = [Place(at + b * step, shape, strides, shape) for b in range(len(shapes))]
    return places, (len(shapes), *shape), step * len(shapes)


def _pad(field: FieldSpec, shapes: Shapes, at: int, _: int) -> tuple[list[Place], tuple[int, ...], int]:
    slot = tuple(max(axis) for axis in zip(*shapes))
    step, strides = nbytes(field.dtype, slot), dense(field.dtype, slot)
    places = [Place(at + b * step, shape, strides, slot) for b, shape in enumerate(shapes)]
    return places, (len(shapes), *slot), step * len(shapes)


def _pack(
    field: FieldSpec, shapes: Shapes, at: int, multiple: int
) -> tuple[list[Place], tuple[int, ...], int]:
    axis = field.axis
    around = [(*s[:axis], *s[axis + 1 :]) for s in shapes]
    # An empty sample (a bad one) has no extent along the axis and fits any neighbour.
    rest = next((a for a, s in zip(around, shapes) if s[axis]), around[0])
    total = 0
    for other, shape in zip(around, shapes):
        if shape[axis] and other != rest:
            raise RecipeError(
                f"field {field.name!r} is packed along axis {axis} and has shape {shape} beside {rest} in "
                "the other axes; give all samples the same, or Ragged"
            )
        total += shape[axis]
    padded = -(-total // multiple) * multiple
    whole = (*rest[:axis], padded, *rest[axis:])
    strides, places, start = dense(field.dtype, whole), [], 0
    size = nbytes(field.dtype, whole)
    for i, shape in enumerate(shapes):
        n = shape[axis]
        # The padding is the last sample's to write.
        room = n + padded - total if i == len(shapes) - 1 else n
        mine, slot = (*rest[:axis], n, *rest[axis:]), (*rest[:axis], room, *rest[axis:])
        # Where there are no bytes at all, none lies beyond them.
        places.append(Place(at + start * strides[axis] if size else at, mine, strides, slot))
        start += n
    return places, whole, size


def _ragged(field: FieldSpec, shapes: Shapes, at: int, _: int) -> tuple[list[Place], tuple[int, ...], int]:
    places, size = [], 0
    for shape in shapes:
        places.append(Place(at + size, shape, dense(field.dtype, shape), shape))
        size += aligned(nbytes(field.dtype, shape))
    return places, (len(shapes),), size


_LAYOUTS = {"stack": _stack, "pad": _pad, "pack": _pack, "ragged": _ragged}
