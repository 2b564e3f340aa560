"""A sample that was decoded elsewhere in memory is, once copied, what it would be decoded in its place."""

from __future__ import annotations

import numpy as np
import pytest

from libhelix.plan.layout import lay_out
from libhelix.recipes.run import copy
from libhelix.wire import messages as m
from libhelix.wire.layout import record_bytes

SCHEMA: m.Schema = (
    m.FieldSpec("stacked", "float32", "stack", 2),
    m.FieldSpec("padded", "int16", "pad", 2, pad_value=-7),
    m.FieldSpec("half", "bfloat16", "pad", 1, pad_value=1.0),
    m.FieldSpec("packed", "uint8", "pack", 2, axis=1, pad_value=9),
    m.FieldSpec("ragged", "int64", "ragged", 1),
    m.FieldSpec("nothing", "uint8", "stack", 1),
)


def _row(number: int, n: int) -> m.Row:
    shapes = ((2, 3), (n, 4 - n), (n,), (2, n), (n,), (0,))
    return m.Row(number, shapes, {"tokens": n}, 1, (), (1,))


def _slot(memory: np.ndarray, spec: m.FieldSpec, place: m.Place) -> np.ndarray:
    dtype = "uint16" if spec.dtype == "bfloat16" else spec.dtype
    slot: np.ndarray = np.ndarray(place.slot, dtype, memory.data, place.offset, place.strides)
    return slot


@pytest.mark.parametrize("place", [0, 1, 2])
def test_it_is_in_its_slots_with_the_pad_value_around_it_and_nothing_else_is_touched(place: int) -> None:
    rows = (_row(0, 1), _row(1, 3), _row(2, 0))
    multiples = {"tokens": 8}
    alone, whole = lay_out(SCHEMA, (rows[place],), multiples), lay_out(SCHEMA, rows, multiples)
    rng = np.random.default_rng(place)
    source = rng.integers(0, 256, alone.nbytes, dtype=np.uint8)
    target = np.full(whole.nbytes, 0xEE, dtype=np.uint8)
    here, there = (
        m.Slots(0, 0, alone.places[0], alone.records[0]),
        m.Slots(1, 0, whole.places[place], whole.records[place]),
    )
    copy(m.Copy(1, 1, rows[place].id, here, there, SCHEMA), source.data, target.data)
    touched = np.zeros(whole.nbytes, dtype=bool)
    for spec, a, b in zip(SCHEMA, alone.places[0], whole.places[place], strict=True):
        slot, sent = _slot(target, spec, b), _slot(source, spec, a)
        inside = tuple(slice(0, n) for n in b.shape)
        mask = np.ones(slot.shape, dtype=bool)
        mask[inside] = False
        if 0 not in b.shape:
            assert slot[inside].tobytes() == sent[inside].tobytes(), spec.name
        pad = 0x3F80 if spec.dtype == "bfloat16" else spec.pad_value
        if spec.layout in ("pad", "pack"):
            assert (slot[mask] == pad).all(), spec.name
        mine = np.ndarray(slot.shape, f"V{slot.itemsize}", touched.data, b.offset, b.strides)
        if slot.size:
            mine[...] = np.frombuffer(b"\1" * slot.itemsize, mine.dtype)[0]
    record = record_bytes(SCHEMA)
    at = whole.records[place]
    assert (
        target[at : at + record].tobytes() == source[alone.records[0] : alone.records[0] + record].tobytes()
    )
    touched[at : at + record] = True
    assert (target[~touched] == 0xEE).all()
