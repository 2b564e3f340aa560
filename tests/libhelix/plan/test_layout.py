"""Where fields lie: places written one by one give what numpy's stack, pad and concatenate give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libhelix.errors import RecipeError
from libhelix.plan.layout import BatchLayout, lay_out, schema_of
from libhelix.recipe import DTYPES, Descriptor, Field, Pack, Pad, Ragged, Stack
from libhelix.wire.layout import ALIGN, record_bytes
from libhelix.wire.messages import FieldSpec, Place, Row

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]
sizes = st.integers(0, 4)
layouts: st.SearchStrategy[Literal["stack", "pad", "pack", "ragged"]] = st.sampled_from(
    ["stack", "pad", "pack", "ragged"]
)
few = settings(deadline=None, max_examples=200)


@st.composite
def fields(draw: st.DrawFn, samples: int) -> tuple[FieldSpec, list[Shape]]:
    """A field, and its shape in each sample."""
    layout = draw(layouts)
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    ndim = draw(st.integers(1 if layout == "pack" else 0, 3))
    axis = draw(st.integers(0, ndim - 1)) if layout == "pack" else 0
    base = draw(st.tuples(*[sizes] * ndim))
    shapes: list[Shape] = []
    for _ in range(samples):
        match layout:
            case "stack":
                shapes.append(base)
            case "pack":
                n = draw(sizes)
                around = base if n or draw(st.booleans()) else draw(st.tuples(*[sizes] * ndim))
                shapes.append((*around[:axis], n, *around[axis + 1 :]))
            case _:
                shapes.append(draw(st.tuples(*[sizes] * ndim)))
    return FieldSpec("f", dtype, layout, ndim, pad_value=draw(st.integers(0, 1)), axis=axis), shapes


@st.composite
def batches(draw: st.DrawFn) -> tuple[tuple[FieldSpec, ...], list[Row]]:
    samples = draw(st.integers(1, 5))
    chosen = [draw(fields(samples)) for _ in range(draw(st.integers(1, 4)))]
    schema = tuple(spec for spec, _ in chosen)
    rows = [Row(b, tuple(s[b] for _, s in chosen), {}, 1, (), (0,)) for b in range(samples)]
    return schema, rows


def _view(extent: bytearray, dtype: str, place: Place, shape: Shape) -> Array:
    numpy_dtype = "uint16" if dtype == "bfloat16" else dtype
    view: Array = np.ndarray(shape, numpy_dtype, buffer=extent, offset=place.offset, strides=place.strides)
    return view


def _bytes_of(place: Place, shape: Shape, itemsize: int) -> set[int]:
    """Every byte of a slot, counted one by one from its strides."""
    found = {place.offset} if 0 not in shape else set()
    for n, stride in zip(shape, place.strides):
        found = {at + i * stride for at in found for i in range(n)}
    return {at + i for at in found for i in range(itemsize)}


@few
@given(batches())
def test_slots_and_records_are_disjoint_aligned_and_inside_the_extent(
    batch: tuple[tuple[FieldSpec, ...], list[Row]],
) -> None:
    schema, rows = batch
    layout = lay_out(schema, rows)
    taken: set[int] = set()
    for places, record in zip(layout.places, layout.records):
        for spec, place in zip(schema, places):
            assert place.offset % DTYPES[spec.dtype] == 0
            mine = _bytes_of(place, place.slot, DTYPES[spec.dtype])
            assert len(mine) == DTYPES[spec.dtype] * math.prod(place.slot)
            assert not taken & mine
            taken |= mine
        mine = set(range(record, record + record_bytes(schema)))
        assert record % 8 == 0
        assert not taken & mine
        taken |= mine
    assert taken <= set(range(layout.nbytes))
    assert all(f.offset % ALIGN == 0 for f in layout.fields)
    assert layout.table == (layout.records[0], record_bytes(schema) * len(rows))
    assert sum(layout.table) == layout.nbytes


def test_packed_samples_without_any_bytes_lie_where_their_field_does() -> None:
    spec = FieldSpec("f", "int64", "pack", 3)
    rows = [Row(i, ((n, 0, 3),), {}, 1, (), (0,)) for i, n in enumerate((0, 3, 4, 1))]
    assert [places[0].offset for places in lay_out((spec,), rows).places] == [0, 0, 0, 0]


@few
@given(batches())
def test_a_batch_filled_sample_by_sample_is_what_numpy_makes_of_the_samples(
    batch: tuple[tuple[FieldSpec, ...], list[Row]],
) -> None:
    schema, rows = batch
    layout = lay_out(schema, rows)
    extent = bytearray(b"\xee" * layout.nbytes)
    samples = [[_content(spec, row, i) for i, spec in enumerate(schema)] for row in rows]
    for places, contents in zip(layout.places, samples):
        for spec, place, content in zip(schema, places, contents):
            _view(extent, spec.dtype, place, place.slot)[...] = spec.pad_value
            inner = _view(extent, spec.dtype, place, place.shape)
            inner[...] = content.reshape(place.shape)  # differs only where a packed sample is empty
    for i, spec in enumerate(schema):
        contents = [sample[i] for sample in samples]
        if spec.layout == "ragged":
            _expect_ragged(extent, layout, i, spec, contents)
            continue
        where = layout.fields[i]
        numpy_dtype = "uint16" if spec.dtype == "bfloat16" else spec.dtype
        found = np.frombuffer(extent, numpy_dtype, math.prod(where.shape), where.offset)
        expected = _expected(spec, contents)
        assert where.shape == expected.shape
        assert np.array_equal(found.reshape(where.shape), expected)


def _content(spec: FieldSpec, row: Row, field: int) -> Array:
    dtype = "uint16" if spec.dtype == "bfloat16" else spec.dtype
    count = math.prod(row.shapes[field])
    return (np.arange(count) * 3 + row.id).astype(dtype).reshape(row.shapes[field])


def _expected(spec: FieldSpec, contents: Sequence[Array]) -> Array:
    if spec.layout == "stack":
        return np.stack(contents)
    if spec.layout == "pack":
        full = [c for c in contents if c.shape[spec.axis]] or list(contents[:1])
        return np.concatenate(full, axis=spec.axis)
    largest = [max(c.shape[axis] for c in contents) for axis in range(spec.ndim)]
    return np.stack(
        [
            np.pad(c, [(0, n - m) for n, m in zip(largest, c.shape)], constant_values=spec.pad_value)
            if spec.ndim
            else c
            for c in contents
        ]
    )


def _expect_ragged(
    extent: bytearray, layout: BatchLayout, field: int, spec: FieldSpec, contents: Sequence[Array]
) -> None:
    """As trainers read it: from the field's offset on, each sample at the next multiple of 128."""
    at = layout.fields[field].offset
    assert layout.fields[field].shape == (len(contents),)
    for content in contents:
        found = np.frombuffer(extent, content.dtype, content.size, at)
        assert np.array_equal(found.reshape(content.shape), content)
        at += -(-content.nbytes // ALIGN) * ALIGN


def _row(*shapes: Shape) -> Row:
    return Row(0, shapes, {}, 1, (), (0,))


def test_stacked_samples_of_two_shapes_name_the_field_and_the_cure() -> None:
    schema = (FieldSpec("ids", "int64", "stack", 1),)
    with pytest.raises(RecipeError) as caught:
        lay_out(schema, [_row((3,)), _row((4,))])
    assert str(caught.value) == (
        "field 'ids' is stacked and has shape (4,) in one sample, (3,) in another; "
        "give it one shape, or Pad, Pack or Ragged"
    )


def test_packed_samples_that_differ_beside_the_axis_name_the_field_and_the_cure() -> None:
    schema = (FieldSpec("patches", "uint8", "pack", 2, axis=0),)
    with pytest.raises(RecipeError) as caught:
        lay_out(schema, [_row((0, 9)), _row((3, 5)), _row((4, 6))])
    assert str(caught.value) == (
        "field 'patches' is packed along axis 0 and has shape (4, 6) beside (5,) in the other axes; "
        "give all samples the same, or Ragged"
    )


def test_an_empty_packed_sample_fits_any_neighbours() -> None:
    schema = (FieldSpec("patches", "uint8", "pack", 2, axis=0),)
    layout = lay_out(schema, [_row((0, 0)), _row((3, 5)), _row((0, 7))])
    assert layout.fields[0].shape == (3, 5)
    assert [place[0].shape for place in layout.places] == [(0, 5), (3, 5), (0, 5)]


def test_the_schema_is_what_all_samples_have_in_common() -> None:
    fields = (
        Field("a", "uint8", (4, 2), Stack(), rows_per_unit=2),
        Field("b", "float32", (3,), Pad(-1), bounded=True),
        Field("c", "int64", (5, 6), Pack(1)),
        Field("d", "bfloat16", (), Ragged()),
    )
    assert schema_of(Descriptor(fields, units=2)) == (
        FieldSpec("a", "uint8", "stack", 2, rows_per_unit=2),
        FieldSpec("b", "float32", "pad", 1, pad_value=-1, bounded=True),
        FieldSpec("c", "int64", "pack", 2, axis=1),
        FieldSpec("d", "bfloat16", "ragged", 0),
    )
