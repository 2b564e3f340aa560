"""Which samples stand in for those that are bad, with `on_bad="replace"`.

Where describe failed, another sample of the window takes its place before anything is planned. Where
decoding fails, the batch is laid out and counted: only a sample of the same shapes and costs fits. Both come
from what was planned with the batch, so that nothing else of the plan changes, and are delivered once more
than the plan says. Every choice follows from rows alone: helixd and `backend="inline"` make the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from libhelix.plan.window import FILLER
from libhelix.wire.messages import Row

MOST_TRIES = 3
"""Samples tried in the place of one; then it is masked."""


def replace_bad(rows: dict[int, Row], draws: Sequence[int]) -> None:
    """Of the draws of a window, give those whose describe failed the row of the next one that is good."""
    draws = sorted(draws)
    good = [rows[d] for d in draws if not rows[d].error]
    before = 0
    for draw in draws:
        row = rows[draw]
        if not row.error:
            before += 1
        elif good:
            other = good[before % len(good)]
            rows[draw] = msgspec.structs.replace(other, error=row.error, instead_of=row.bad)
        else:
            rows[draw] = msgspec.structs.replace(row, id=row.bad, instead_of=None)


def stand_ins(micros: Sequence[Sequence[Row]], micro: int, sample: int) -> list[Row]:
    """The rows that may be decoded in place of `micros[micro][sample]`, the first to be tried first: of those
    after it, round, each sample once. `micros` are the micro-batches of one rank in a window."""
    rows = [row for one in micros for row in one]
    at = sum(len(one) for one in micros[:micro]) + sample
    shapes, costs, seen = rows[at].shapes, rows[at].costs, {rows[at].id}
    found: list[Row] = []
    for row in (*rows[at + 1 :], *rows[:at]):
        if len(found) == MOST_TRIES:
            break
        if row.error or row.id == FILLER or row.id in seen:
            continue
        if row.shapes != shapes or row.costs != costs:
            continue
        seen.add(row.id)
        found.append(row)
    return found
