"""Which node decodes which samples of a step: heavier ones where there is more to decode with.

A step keeps its samples, and its ranks keep what they declare: whole ranks change places, and samples change
theirs with samples that declare the same and have the same shapes. So no cap is exceeded, no rank computes
longer than before, and what each node has to decode follows what it can decode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from libhelix.plan.window import FILLER, Step
from libhelix.wire.messages import Row, Speeds

_MOST_US = 1 << 40


@dataclass(frozen=True)
class Placement:
    """Ranks of each node, and how fast it decodes; only what speeds are to each other counts."""

    nodes: tuple[tuple[int, ...], ...]
    speeds: Speeds


class _Loads:
    """Microseconds of decoding that nodes have been given, relative to their speed."""

    def __init__(self, speeds: Sequence[int]) -> None:
        self._speeds = np.maximum(np.asarray(speeds, dtype=np.float64), 1.0)
        self._us = np.zeros(len(speeds))

    def add(self, node: int, us: int) -> None:
        self._us[node] += us

    def first(self, us: int, room: np.ndarray) -> int:
        """The node with room that would be done first with so much more; it is added."""
        done = (self._us + us) / self._speeds
        node = int(np.argmin(np.where(room > 0, done, np.inf)))
        self._us[node] += us
        return node


def place(steps: Sequence[Step], rows: Mapping[int, Row], placement: Placement) -> tuple[Step, ...]:
    """The same steps, their samples dealt out to nodes by speed. Only one node ever decides this, so that
    numbers need not be the same on all machines."""
    return tuple(_place(step, rows, placement) for step in steps)


def _place(step: Step, rows: Mapping[int, Row], placement: Placement) -> Step:
    us = {d: min(sum(rows[d].segment_us), _MOST_US) for d in _draws(step)}
    columns = _place_ranks(step, us, placement)
    moved = [[list(micro[rank]) for rank in columns] for micro in step]
    _place_samples(moved, rows, us, placement)
    return tuple(tuple(tuple(draws) for draws in micro) for micro in moved)


def _draws(step: Step) -> Iterable[int]:
    return (d for micro in step for rank in micro for d in rank if d != FILLER)


def _place_ranks(step: Step, us: Mapping[int, int], placement: Placement) -> list[int]:
    """By rank, whose samples of a step it gets: whole ranks, all their micro-batches."""
    ranks = range(len(step[0]))
    work = [sum(us[d] for micro in step for d in micro[r] if d != FILLER) for r in ranks]
    loads, room = _Loads(placement.speeds), np.asarray([len(ranks) for ranks in placement.nodes])
    free = [list(reversed(ranks)) for ranks in placement.nodes]
    given = [0] * len(work)
    for column in sorted(ranks, key=lambda r: (-work[r], r)):
        node = loads.first(work[column], room)
        room[node] -= 1
        given[free[node].pop()] = column
    return given


def _place_samples(
    step: list[list[list[int]]], rows: Mapping[int, Row], us: Mapping[int, int], placement: Placement
) -> None:
    """Let samples that declare the same change places, in place."""
    node_of = {rank: node for node, ranks in enumerate(placement.nodes) for rank in ranks}
    alike: dict[object, list[tuple[int, int, int]]] = {}
    for j, micro in enumerate(step):
        for rank, draws in enumerate(micro):
            for i, draw in enumerate(draws):
                if draw != FILLER:
                    row = rows[draw]
                    key = (row.shapes, tuple(sorted(row.costs.items())), row.group)
                    alike.setdefault(key, []).append((j, rank, i))
    loads = _Loads(placement.speeds)
    for places in alike.values():
        if len(places) == 1:
            j, rank, i = places[0]
            loads.add(node_of[rank], us[step[j][rank][i]])
    for places in alike.values():
        if len(places) == 1:
            continue
        draws = sorted((step[j][rank][i] for j, rank, i in places), key=lambda d: (-us[d], d))
        free: list[list[tuple[int, int, int]]] = [[] for _ in placement.nodes]
        for place in sorted(places, key=lambda p: (p[2], p[0], p[1])):  # by turns over a node's batches
            free[node_of[place[1]]].append(place)
        room = np.asarray([len(places) for places in free])
        for at in free:
            at.reverse()
        for draw in draws:
            node = loads.first(us[draw], room)
            room[node] -= 1
            j, rank, i = free[node].pop()
            step[j][rank][i] = draw
