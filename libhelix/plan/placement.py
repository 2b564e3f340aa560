"""Which node decodes which samples of a step: heavier ones where there is more to decode with.

A step keeps its samples, and its ranks keep what they declare: whole ranks change places, and samples change
theirs with samples that declare the same and have the same shapes. So no cap is exceeded, no rank computes
longer than before, and what each node has to decode follows what it can decode.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from libhelix.plan.window import FILLER, Step
from libhelix.wire.messages import MAX_PLACED, MAX_PLACED_SPEEDS, Row, Speeds

_MOST_US = 1 << 40


@dataclass(frozen=True)
class Placement:
    """Ranks of each node, and how fast it decodes; only what speeds are to each other counts."""

    nodes: tuple[tuple[int, ...], ...]
    speeds: Speeds


def most_placed(nodes: int) -> int:
    """How many changes of placement are remembered: what fits a message."""
    return max(4, min(MAX_PLACED, MAX_PLACED_SPEEDS // max(1, nodes)))


class _Loads:
    """Microseconds of decoding that nodes have been given, relative to their speed."""

    def __init__(self, speeds: Sequence[int]) -> None:
        self._speeds = np.maximum(np.asarray(speeds, dtype=np.float64), 1.0)
        self._us = np.zeros(len(speeds))

    def add(self, node: int, us: int) -> None:
        self._us[node] += us

    def deal(self, us: Iterable[int], nodes: Sequence[int], counts: Sequence[int]) -> list[int]:
        """Give each of these to the node with room that would be done first with it: to which of `nodes`."""
        load, speeds = self._us[nodes], self._speeds[nodes]
        room = list(counts)
        none = np.where(np.asarray(room) > 0, 0.0, np.inf)
        given = []
        for one in us:
            i = int(np.argmin((load + one) / speeds + none))
            load[i] += one
            room[i] -= 1
            if not room[i]:
                none[i] = np.inf
            given.append(i)
        self._us[nodes] = load
        return given

    def swap(self, dealt: Mapping[int, list[tuple[int, int]]]) -> bool:
        """Let the one of these nodes that is done last change a sample for a lighter one of that which is
        done first; whether it helps."""
        nodes = list(dealt)
        done = self._us[nodes] / self._speeds[nodes]
        last, first = nodes[int(np.argmax(done))], nodes[int(np.argmin(done))]
        if last == first:
            return False
        fast, slow = float(self._speeds[first]), float(self._speeds[last])
        ideal = (self._us[last] * fast - self._us[first] * slow) / (fast + slow)
        best, pair = 0.0, (0, 0)
        for i, (us, _) in enumerate(dealt[last]):
            j = bisect_left(dealt[first], (int(us - ideal), -1))
            for k in (j - 1, j):
                if 0 <= k < len(dealt[first]):
                    less = us - dealt[first][k][0]
                    gain = min(less, 2 * ideal - less)
                    if gain > best:
                        best, pair = gain, (i, k)
        if best < 1:
            return False
        one, other = dealt[last].pop(pair[0]), dealt[first].pop(pair[1])
        insort(dealt[first], one)
        insort(dealt[last], other)
        self._us[last] -= one[0] - other[0]
        self._us[first] += one[0] - other[0]
        return True


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
    free = [list(reversed(ranks)) for ranks in placement.nodes]
    given = [0] * len(work)
    columns = sorted(ranks, key=lambda r: (-work[r], r))
    nodes = range(len(free))
    dealt = _Loads(placement.speeds).deal((work[c] for c in columns), nodes, [len(of) for of in free])
    for column, node in zip(columns, dealt):
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
    for places in (of for of in alike.values() if len(of) > 1):
        of_node: dict[int, list[tuple[int, int, int]]] = {}
        for place in sorted(places, key=lambda p: (p[2], p[0], p[1])):  # by turns over a node's batches
            of_node.setdefault(node_of[place[1]], []).append(place)
        draws = [step[j][rank][i] for j, rank, i in places]
        dealt = _deal(draws, us, {node: len(of_node[node]) for node in sorted(of_node)}, loads)
        for node, given in dealt.items():
            for (j, rank, i), (_, draw) in zip(of_node[node], reversed(given)):
                step[j][rank][i] = draw


def _deal(
    draws: Sequence[int], us: Mapping[int, int], counts: Mapping[int, int], loads: _Loads
) -> dict[int, list[tuple[int, int]]]:
    """(microseconds, draw) by node, rising: so many each, all done at about the same time."""
    nodes = list(counts)
    dealt: dict[int, list[tuple[int, int]]] = {node: [] for node in nodes}
    heaviest = sorted(((us[d], d) for d in draws), reverse=True)
    for one, i in zip(heaviest, loads.deal((us for us, _ in heaviest), nodes, list(counts.values()))):
        dealt[nodes[i]].append(one)
    for given in dealt.values():
        given.sort()
    # A slow node has as many samples as any: what it was given first, it may have to give back for lighter.
    for _ in range(4 * len(draws)):
        if not loads.swap(dealt):
            break
    return dealt
