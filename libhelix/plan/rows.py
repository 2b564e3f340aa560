"""Rows of described samples: their sums, the row of a bad sample, and how many of those a job stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from libhelix.wire import messages as m

BAD_SAMPLES_ALLOWED = 10
BAD_SAMPLES_RATE = 1000


def bad_samples_allowed(samples: int) -> int:
    """Bad samples that are masked in an epoch of so many: 10, or one in 1000, whichever is more."""
    return max(BAD_SAMPLES_ALLOWED, samples // BAD_SAMPLES_RATE)


def sum_costs(costs: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Declared costs, added up by name."""
    total: dict[str, int] = {}
    for one in costs:
        for name, cost in one.items():
            total[name] = total.get(name, 0) + cost
    return total


def learn_shapes(schema: Sequence[m.FieldSpec], row: m.Row, known: dict[int, m.Shape]) -> str | None:
    """Note the shapes of stacked fields, by field. They are the same in all samples; what is wrong if not."""
    for i, spec in enumerate(schema):
        if spec.layout == "stack" and known.setdefault(i, row.shapes[i]) != row.shapes[i]:
            return (
                f"field {spec.name!r} is stacked and has shape {row.shapes[i]} in sample {row.id}, "
                f"{known[i]} in others; give it one shape, or Pad, Pack or Ragged"
            )
    return None


def masked_row(schema: Sequence[m.FieldSpec], row: m.Row, known: Mapping[int, m.Shape]) -> m.Row:
    """The row of a sample that describe failed on: stacked fields have their one shape, others are empty."""
    shapes = tuple(known.get(i, (0,) * spec.ndim) for i, spec in enumerate(schema))
    return m.Row(row.id, shapes, {}, 1, (), (0,), row.error)
