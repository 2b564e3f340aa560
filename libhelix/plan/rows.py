"""Rows of described samples: their sums, the row of a bad sample, and how many of those a job stands."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from libhelix.plan.window import FILLER
from libhelix.recipe import DTYPES
from libhelix.wire import messages as m

HOPELESS = 4
"""So many samples, the first that a rank is given, all bad: nothing is worth training on."""
DESCRIBES_TRIED = 64
"""Samples tried for one whose describe succeeds."""
MAX_BATCH_BYTES = 1 << 40


def sum_costs(costs: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Declared costs, added up by name."""
    total: dict[str, int] = {}
    for one in costs:
        for name, cost in one.items():
            total[name] = total.get(name, 0) + cost
    return total


Known = dict[tuple[int, str], m.Shape]
"""Shapes of stacked fields, by field and, where batches are of one group, by group."""


def learn_shapes(
    schema: Sequence[m.FieldSpec], row: m.Row, known: Known, *, by_group: bool = False
) -> str | None:
    """Note the shapes of stacked fields: one for all samples of a batch. What is wrong, if they differ."""
    group = row.group if by_group else ""
    for i, spec in enumerate(schema):
        if spec.layout == "stack" and known.setdefault((i, group), row.shapes[i]) != row.shapes[i]:
            others = f"others of group {group!r}" if group else "others"
            return (
                f"field {spec.name!r} is stacked and has shape {row.shapes[i]} in sample {row.id}, "
                f"{known[i, group]} in {others}; give it one shape, or Pad, Pack or Ragged"
            )
    return None


def masked_row(schema: Sequence[m.FieldSpec], row: m.Row, known: Known) -> m.Row:
    """The row of a sample that describe failed on: stacked fields have their one shape, others are empty."""
    shapes = tuple(_stacked(i, known) or (0,) * spec.ndim for i, spec in enumerate(schema))
    return m.Row(row.bad, shapes, {}, 1, (), (0,), error=row.error)


def _stacked(field: int, known: Known) -> m.Shape | None:
    """Of several groups, the shape of the first by name: it must not depend on which came first."""
    found = [(group, shape) for (i, group), shape in known.items() if i == field]
    return min(found)[1] if found else None


def mask_bad(
    schema: Sequence[m.FieldSpec], rows: dict[int, m.Row], taken: Iterable[int], known: Known
) -> None:
    """Give the rows of a window's bad samples the shapes that they are masked in: they take room like any
    other. They follow from the window, where it has a good sample, not from what was described before."""
    bad, here = [], Known()
    for draw in taken:
        if rows[draw].masked:
            bad.append(draw)
        else:
            learn_shapes(schema, rows[draw], here, by_group=True)
    for draw in bad:
        rows[draw] = masked_row(schema, rows[draw], here or known)


def filler_rows(schema: Sequence[m.FieldSpec], rows: Iterable[m.Row], known: Known) -> tuple[m.Row, m.Row]:
    """The rows of fillers, which stand where a batch has no sample and are masked: of those beside samples,
    and of those that are alone in a batch. `rows` are those of the window.

    A filler is as small as any sample of its window, so that a model takes a batch of fillers alone as it
    takes any other. Beside samples it has no length in packed fields, alone it has one row.
    """
    sizes = [row.shapes for row in rows if not row.masked]
    beside, alone = [], []
    for i, spec in enumerate(schema):
        if not sizes:
            shape = _stacked(i, known) or (1,) * spec.ndim
        else:
            shape = tuple(min(axis) for axis in zip(*(shapes[i] for shapes in sizes)))
        if spec.layout != "stack":
            shape = tuple(max(1, n) for n in shape)
        along = spec.axis if spec.layout == "pack" else None
        beside.append(tuple(0 if axis == along else n for axis, n in enumerate(shape)))
        alone.append(tuple(1 if axis == along else n for axis, n in enumerate(shape)))
    one, other = (
        m.Row(FILLER, tuple(shapes), {}, 1, (), (0,), error="a filler") for shapes in (beside, alone)
    )
    return one, other


def same_schema(one: Sequence[m.FieldSpec], other: Sequence[m.FieldSpec]) -> bool:
    """Whether two schemas are the same; not-a-number as a pad value is."""
    return one == other or repr(one) == repr(other)


def row_problem(schema: Sequence[m.FieldSpec], row: m.Row) -> str | None:
    """Why a row is none of this schema; None where it is. A worker is not trusted to be in its senses."""
    if len(row.shapes) != len(schema) or any(len(s) != f.ndim for f, s in zip(schema, row.shapes)):
        return f"has shapes {row.shapes} for {len(schema)} fields"
    for field, shape in zip(schema, row.shapes):
        if field.dtype not in DTYPES:
            return f"has a field of dtype {field.dtype!r}"
        if math.prod(shape) * DTYPES[field.dtype] > MAX_BATCH_BYTES:
            return f"has a field of shape {shape}"
    bounds = (0, *row.cuts, row.units)
    if len(row.segment_us) != len(row.cuts) + 1 or any(a >= b for a, b in pairwise(bounds)):
        return f"has {row.units} units, cuts {row.cuts} and {len(row.segment_us)} segments"
    return None
