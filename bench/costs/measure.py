"""Parts of samples, decoded as workers decode them: what helixd expected them to take, and what they took."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from helixd.core.batch import MIN_PART_US, parts_of
from helixd.core.decode_cost import DecodeCosts
from libhelix.errors import MediaError
from libhelix.index.read import Index
from libhelix.plan.layout import lay_out
from libhelix.recipes import Clip
from libhelix.recipes.run import Loaded, describe_row, fill
from libhelix.wire import messages as m

FRAMES = (4, 8, 16, 32)
SIZES = ((112, 112), (224, 224), (240, 416), (448, 448))
PART_US = (MIN_PART_US, 4 * MIN_PART_US, 1 << 60)
"""Limits of parts, as batches of short, longer and very long windows have them."""


class PartCost(msgspec.Struct, frozen=True):
    """A part: CPU microseconds that its recipe declared, that were expected with what was learned before it,
    and that it took. `task`: the number of its sample's decoding."""

    task: int
    declared_us: int
    expected_us: float
    cpu_us: int


def decode_tasks(index: Path, tasks: int, costs: DecodeCosts, seed: int = 0) -> Iterator[PartCost]:
    """Decode `tasks` samples of an index, each with a Clip drawn anew, part by part, and learn from each."""
    draws = random.Random(seed)
    opened = Index.open(str(index))
    loaded = {
        (frames, size): Loaded(Clip(frames=frames, size=size), "Clip", opened, seed=0)
        for frames in FRAMES
        for size in SIZES
    }
    memory = bytearray()
    for task in range(tasks):
        chosen = loaded[draws.choice(FRAMES), draws.choice(SIZES)]
        row, schema = describe_row(chosen, 0, draws.randrange(len(opened)))
        if row.error:
            raise MediaError(row.error)
        layout = lay_out(schema, (row,))
        if layout.nbytes > len(memory):
            memory = bytearray(b"\x01") * (2 * layout.nbytes)  # touched, as a ring is
        for begin, end, declared_us in parts_of(row, draws.choice(PART_US)):
            piece = m.Piece(row.id, 0, begin, end, layout.records[0], layout.places[0])
            expected_us = declared_us * costs.scale(row.kind)
            before = time.thread_time_ns()
            fill(chosen, 0, piece, memory)
            cpu_us = (time.thread_time_ns() - before) // 1000
            costs.learn(row.kind, declared_us, cpu_us)
            yield PartCost(task, declared_us, expected_us, cpu_us)
