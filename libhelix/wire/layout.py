"""The table of samples at the end of an extent: one record per sample, in batch order.

    record := id int64 | valid int64                                             (little-endian)
              | planned shape, int64 each, of every field in schema order
              | true shape, int64 each, of every bounded field

The worker that fills a sample's first unit writes its record; the trainer reads the table after Ready.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from libhelix.errors import ProtocolError
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


def read_table(schema: Sequence[FieldSpec], table: memoryview, samples: int) -> list[Record]:
    """The records of a batch. Raises ProtocolError where the bytes are no such table."""
    step = record_bytes(schema)
    if len(table) != samples * step:
        raise ProtocolError(f"a sample table of {len(table)} bytes for {samples} records of {step}")
    records = []
    for at in range(0, len(table), step):
        numbers = iter(struct.unpack_from(f"<{step // 8}q", table, at))
        sample, valid = next(numbers), next(numbers)
        shapes = tuple(tuple(next(numbers) for _ in range(f.ndim)) for f in schema)
        true = tuple(
            tuple(next(numbers) for _ in range(f.ndim)) if f.bounded else shape
            for f, shape in zip(schema, shapes)
        )
        records.append(Record(sample, bool(valid), shapes, true))
    return records
