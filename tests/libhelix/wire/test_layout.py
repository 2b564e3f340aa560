"""The table of samples at the end of an extent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libhelix.errors import ProtocolError
from libhelix.wire.layout import ALIGN, Record, aligned, pack_record, read_table, record_bytes
from libhelix.wire.messages import FieldSpec, Schema, Shape

number = st.integers(0, (1 << 62) - 1)
specs = st.builds(
    FieldSpec,
    name=st.just("x"),
    dtype=st.just("uint8"),
    layout=st.sampled_from(["stack", "pad", "pack", "ragged"]),
    ndim=st.integers(0, 4),
    bounded=st.booleans(),
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Schema, list[Record]]:
    schema = tuple(draw(st.lists(specs, max_size=4)))
    records = []
    for _ in range(draw(st.integers(1, 5))):
        shapes = tuple(_shape(draw, f.ndim) for f in schema)
        true = tuple(_shape(draw, f.ndim) if f.bounded else s for f, s in zip(schema, shapes))
        records.append(Record(draw(number), draw(st.booleans()), shapes, true))
    return schema, records


def _shape(draw: st.DrawFn, ndim: int) -> Shape:
    return tuple(draw(st.lists(number, min_size=ndim, max_size=ndim)))


@given(tables())
def test_a_table_reads_as_it_was_written(table: tuple[Schema, list[Record]]) -> None:
    schema, records = table
    packed = [pack_record(schema, r.id, r.valid, r.shapes, r.true_shapes) for r in records]
    assert all(len(p) == record_bytes(schema) for p in packed)
    assert read_table(schema, memoryview(b"".join(packed)), len(records)) == records


@given(tables(), st.integers(-9, 9).filter(bool))
def test_a_table_of_another_length_is_refused(table: tuple[Schema, list[Record]], more: int) -> None:
    schema, records = table
    nbytes = len(records) * record_bytes(schema) + more
    with pytest.raises(ProtocolError, match=f"a sample table of {nbytes} bytes"):
        read_table(schema, memoryview(bytes(nbytes)), len(records))


@given(st.integers(0, 1 << 40))
def test_alignment_rounds_up_to_the_next_multiple(nbytes: int) -> None:
    assert aligned(nbytes) % ALIGN == 0
    assert 0 <= aligned(nbytes) - nbytes < ALIGN
