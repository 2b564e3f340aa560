"""The table of samples at the end of an extent: one record per sample, in batch order.

    record := id int64 | valid int64                                             (little-endian)
              | planned shape, int64 each, of every field in schema order
              | true shape, int64 each, of every bounded field

The worker that fills a sample's first unit writes its record; the trainer reads the table after Ready.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from libhelix.errors import ProtocolError
from libhelix.wire import messages as m
from libhelix.wire.messages import FieldSpec, Shape

ALIGN = 128
"""Fields, and samples of ragged fields, begin at multiples of this."""


class Record(NamedTuple):
    """A sample of a finished batch. `shapes` are those planned, `true_shapes` what is filled."""

    id: int
    valid: bool
    shapes: tuple[Shape, ...]
    true_shapes: tuple[Shape, ...]


def aligned(nbytes: int) -> int:
    """Rounded up to ALIGN."""
    return (nbytes + ALIGN - 1) // ALIGN * ALIGN


def record_bytes(schema: Sequence[FieldSpec]) -> int:
    """Bytes of a sample's record."""
    return 8 * (2 + sum(f.ndim * (2 if f.bounded else 1) for f in schema))


def pack_record(
    schema: Sequence[FieldSpec],
    sample: int,
    valid: bool,
    shapes: Sequence[Sequence[int]],
    true_shapes: Sequence[Sequence[int]],
) -> bytes:
    """A record as bytes, as long as `record_bytes` says."""
    numbers = [sample, int(valid), *(n for shape in shapes for n in shape)]
    numbers += [n for field, shape in zip(schema, true_shapes) if field.bounded for n in shape]
    return struct.pack(f"<{len(numbers)}q", *numbers)


def read_table(schema: m.Schema, table: memoryview, samples: int) -> list[Record]:
    """The records of a batch. Raises ProtocolError where the bytes are no such table."""
    planned, bounded, numbers = _columns(schema)
    if len(table) != samples * numbers.size:
        raise ProtocolError(f"a sample table of {len(table)} bytes for {samples} records of {numbers.size}")
    records = []
    for row in numbers.iter_unpack(table):
        shapes = tuple([row[a:b] for a, b in planned])
        true = tuple([row[a:b] for a, b in bounded]) if bounded != planned else shapes
        records.append(Record(row[0], bool(row[1]), shapes, true))
    return records


@lru_cache(maxsize=64)
def _columns(
    schema: m.Schema,
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...], struct.Struct]:
    """Where the planned and the true shapes stand among the numbers of a record, and the whole record."""
    planned, at = [], 2
    for field in schema:
        planned.append((at, at + field.ndim))
        at += field.ndim
    true = []
    for field, (a, b) in zip(schema, planned):
        if field.bounded:
            a, b = at, at + field.ndim
            at = b
        true.append((a, b))
    return tuple(planned), tuple(true), struct.Struct(f"<{at}q")
