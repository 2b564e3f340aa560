"""From the rows of a window to its steps: which draws are in the micro-batch of which rank.

A *draw* is a place in the order of an epoch: draw 17 is the 18th sample of it. A window takes the draws that
the one before it left over, and the next ones of the order. They go into bins of one micro-batch each, by
longest processing time under the caps, and by swaps where all hold as many samples; bins of like weight form
a step, so that its ranks finish together; the steps of a window come in a keyed order, so that training does
not go from light to heavy. What fills no bin leads the next window, once.

All costs are declared integers: the same rows give the same steps everywhere.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from libhelix.plan.order import Permutation, mix
from libhelix.plan.swaps import swapped

FILLER = -1
"""Stands in a micro-batch where no sample is left: a masked one of no weight."""

_OTHERS_TRIED = 8
"""Bins looked at for an item that the lightest does not take."""

Ints = NDArray[np.int64]
Micro = tuple[int, ...]
Step = tuple[tuple[Micro, ...], ...]
"""Draws by micro-batch and rank: `step[micro][rank]`."""


class Items(NamedTuple):
    """The rows of a window, as columns of n entries: carried ones first, then in the order of draws.

    weight    what ranks are balanced by, 1 at least
    sizes     [n, k], k <= 3: what caps are in (tokens, patches, bytes)
    groups    samples of different groups are in different micro-batches
    carried   how many, from the start, the window before left over: they must not be left again
    """

    draws: Ints
    weight: Ints
    sizes: Ints
    groups: Sequence[str]
    carried: int = 0


class Caps(NamedTuple):
    """What a micro-batch may hold at most: samples, and the sum of each of the sizes."""

    samples: int
    sizes: tuple[int, ...] = ()


class Geometry(NamedTuple):
    """The places of a step, and how many of them have samples; fillers stand in the others."""

    ranks: int
    micros: int
    bins: int


class Ending(NamedTuple):
    """Whether a window is the last of its epoch, and whether fillers then complete its last step."""

    last: bool
    pad: bool


@dataclass(frozen=True)
class Planned:
    """The steps of a window. `left` leads the next one; `dropped` is left out of the epoch."""

    steps: tuple[Step, ...]
    left: Micro = ()
    dropped: Micro = ()


def plan_fixed(
    items: Items, samples: int, per_step: int, geometry: Geometry, ending: Ending, key: tuple[int, int]
) -> Planned:
    """Steps of `per_step` samples, in micro-batches of `samples`, fillers included.

    Only the last window of an epoch may have other than a whole number of steps.
    """
    n = len(items.draws)
    steps = -(-n // per_step) if ending.last and ending.pad else n // per_step
    kept, dropped = items.draws[: steps * per_step], items.draws[steps * per_step :]
    bins = steps * geometry.bins
    packed = pack(items, bins, Caps(samples), stop=len(kept))
    where = swapped(items.weight, packed, bins, samples, geometry.bins)
    micros, loads = _binned(items, where, bins)
    found = [micro + (FILLER,) * (samples - len(micro)) for micro in micros]
    return Planned(_steps(found, loads, geometry, key), (), _draws(dropped))


def plan_in_order(items: Items, per_step: int, geometry: Geometry, ending: Ending) -> Planned:
    """Steps of micro-batches of one sample each, which go to the ranks in turn: what has a number of k has
    rank k mod ranks, in every step."""
    n = len(items.draws)
    steps = -(-n // per_step) if ending.last and ending.pad else n // per_step
    kept = _draws(items.draws[: steps * per_step])
    made = []
    for a in range(0, len(kept), per_step):
        micros: list[Micro] = [(draw,) for draw in kept[a : a + per_step]]
        micros += [(FILLER,)] * (geometry.ranks * geometry.micros - len(micros))
        rows = range(0, len(micros), geometry.ranks)
        made.append(tuple(tuple(micros[row : row + geometry.ranks]) for row in rows))
    return Planned(tuple(made), (), _draws(items.draws[steps * per_step :]))


def plan_capped(
    items: Items, caps: Caps, steps: int, geometry: Geometry, ending: Ending, key: tuple[int, int]
) -> Planned:
    """Micro-batches as full as caps allow: `steps` steps of them, or at the end as many as it takes."""
    n = len(items.draws)
    if ending.last:
        steps = max(1, _steps_needed(items, caps, geometry.bins))
    most = -(-n // geometry.bins) if ending.last and ending.pad else n // geometry.bins
    steps = max(1, min(steps, most))
    while True:
        where = pack(items, steps * geometry.bins, caps)
        missing = np.flatnonzero(where < 0)
        urgent = len(missing) and (ending.last or missing[0] < items.carried)
        if not urgent or steps >= most:
            break
        steps = max(steps + 1, steps * 5 // 4)
        steps = min(steps, most)
    bins = steps * geometry.bins
    micros, loads = _binned(items, where, bins)
    planned = _steps([micro or (FILLER,) for micro in micros], loads, geometry, key)
    out = _draws(items.draws[missing])
    return Planned(planned, (), out) if ending.last else Planned(planned, out)


def plan_buckets(
    items: Items, sizes: Sequence[int], same: bool, geometry: Geometry, ending: Ending, key: tuple[int, int]
) -> Planned:
    """Micro-batches of one group each, of `sizes[i]` samples for the group of item i.

    `same`: all micro-batches of a step are of one group, and its samples wait until they make a step. At the
    end of the epoch what is left of a group is shared out over one step of smaller micro-batches.
    """
    by_group: dict[str, list[int]] = {}
    for i, group in enumerate(items.groups):
        by_group.setdefault(group, []).append(i)
    left: list[int] = []
    whole: list[list[list[int]]] = []
    """Micro-batches, by what may share a step."""
    for _, mine in sorted(by_group.items()):
        size = max(1, min(sizes[i] for i in mine))
        batches = [mine[a : a + size] for a in range(0, len(mine), size)]
        if len(batches[-1]) < size and not ending.last and (same or batches[-1][0] >= items.carried):
            left += batches.pop()
        if same and ending.last:
            kept = len(mine) // (size * geometry.bins) * geometry.bins
            behind = mine[kept * size :]
            shares = min(len(behind), geometry.bins)
            batches = batches[:kept] + [behind[i::shares] for i in range(shares)]
        if same or not whole:
            whole.append(batches)
        else:
            whole[0] += batches
    dropped: list[int] = []
    steps: list[Step] = []
    for batches in whole:
        made, rest = _bucket_steps(items, batches, geometry, ending, key, waits=same)
        steps += made
        (dropped if ending.last else left).extend(i for batch in rest for i in batch)
    if not steps:  # too few for a step of one group, or of any: smaller batches, and fillers, make one
        every = [[i] for i in range(len(items.draws))][: geometry.bins]
        steps, _ = _bucket_steps(items, every, geometry, Ending(True, True), key, waits=False)
        used = len(every)
        rest_ = tuple(int(d) for d in items.draws[used:])
        return Planned(tuple(steps), (), rest_) if ending.last else Planned(tuple(steps), rest_)
    return Planned(
        _shuffled(steps, key), _draws(items.draws[sorted(left)]), _draws(items.draws[sorted(dropped)])
    )


def _bucket_steps(
    items: Items,
    batches: list[list[int]],
    geometry: Geometry,
    ending: Ending,
    key: tuple[int, int],
    *,
    waits: bool,
) -> tuple[list[Step], list[list[int]]]:
    """Steps of micro-batches, and those that complete none. Who was carried comes first."""
    batches = sorted(batches, key=lambda b: (b[0] >= items.carried, b[0]))
    urgent = 0 if waits else sum(b[0] < items.carried for b in batches)
    steps = len(batches) // geometry.bins
    if (ending.last and ending.pad) or urgent > steps * geometry.bins:
        steps = -(-len(batches) // geometry.bins)
    count = min(len(batches), steps * geometry.bins)
    kept, rest = batches[:count], batches[count:]
    weight, draws = items.weight.tolist(), items.draws.tolist()
    empty = steps * geometry.bins - count
    loads = np.asarray([sum(weight[i] for i in b) for b in kept] + [0] * empty, dtype=np.int64)
    micros = [tuple(draws[i] for i in b) for b in kept] + [(FILLER,)] * empty
    return list(_steps(micros, loads, geometry, key)), rest


def pack(items: Items, bins: int, caps: Caps, stop: int | None = None) -> Ints:
    """Longest processing time: each item's bin, -1 where it fits in none; of the first `stop` items.

    Carried items first, then the heaviest, of equal ones in no order; each goes into the lightest bin that
    takes it.
    """
    n = len(items.draws) if stop is None else stop
    late = np.arange(n) >= items.carried
    order = np.lexsort((scattered(items.draws[:n]), -items.weight[:n], late))
    columns = [items.sizes[order, k].tolist() for k in range(len(caps.sizes))]
    first, second, third = columns + [[0] * n] * (3 - len(columns))
    rooms, others, more = ([cap] * bins for cap in (*caps.sizes, 0, 0, 0)[:3])
    places = [caps.samples] * bins
    # load * bins + number: one integer compares faster than a pair
    front: list[int] = []  # bins that took not every item, in order; lighter than those in `loads`
    loads = list(range(bins))
    found = [-1] * n
    for i, (weight, a, b, c) in enumerate(zip(items.weight[order].tolist(), first, second, third)):
        for tried in range(1 + _OTHERS_TRIED):
            new = tried == len(front)
            if new and not loads:
                break
            entry = loads[0] if new else front[tried]
            number = entry % bins
            if a > rooms[number] or b > others[number] or c > more[number]:
                if new:
                    front.append(heapq.heappop(loads))
                continue
            found[i] = number
            rooms[number] -= a
            others[number] -= b
            more[number] -= c
            places[number] -= 1
            heavier = entry + weight * bins
            if not new:
                del front[tried]
            if not places[number]:
                if new:
                    heapq.heappop(loads)
            elif new:
                heapq.heapreplace(loads, heavier)
            elif front and heavier < front[-1]:
                insort(front, heavier)
            else:
                heapq.heappush(loads, heavier)
            break
    where = np.full(len(items.draws), -1, dtype=np.int64)
    where[order] = found
    return where


def scattered(draws: Ints) -> NDArray[np.uint64]:
    """Breaks ties between draws in no order: where sources alternate, ranks would have one source each."""
    return mix(draws.astype(np.uint64))


def _steps_needed(items: Items, caps: Caps, bins: int) -> int:
    """The fewest steps that can hold all items."""
    micros = -(-len(items.draws) // caps.samples)
    for total, cap in zip(items.sizes.sum(axis=0).tolist(), caps.sizes):
        micros = max(micros, -(-total // cap))
    return -(-micros // bins)


def _binned(items: Items, where: Ints, bins: int) -> tuple[list[Micro], Ints]:
    """The draws of every bin, carried ones first, and its weight."""
    order = np.argsort(where, kind="stable")
    ends = np.searchsorted(where[order], np.arange(-1, bins), side="right")
    weights = np.concatenate(([0], np.cumsum(items.weight[order])))[ends]
    draws, bounds = items.draws[order].tolist(), ends.tolist()
    return [tuple(draws[a:b]) for a, b in pairwise(bounds)], np.diff(weights)


def _steps(
    micros: Sequence[Micro], loads: Ints, geometry: Geometry, key: tuple[int, int]
) -> tuple[Step, ...]:
    """Bins of like weight together in a step."""
    order = np.argsort(-loads, kind="stable").tolist()
    per = geometry.bins
    made = [_placed([micros[i] for i in order[a : a + per]], geometry) for a in range(0, len(order), per)]
    return _shuffled(made, key)


def _placed(micros: list[Micro], geometry: Geometry) -> Step:
    """A step's micro-batches, the heaviest first, in its places: to and fro over the ranks, so that over all
    micro-batches the ranks carry alike; and begun at another rank in every step."""
    places = geometry.ranks * geometry.micros
    filled = micros + [(FILLER,)] * (places - len(micros))
    rows = [filled[a : a + geometry.ranks] for a in range(0, places, geometry.ranks)]
    turn = micros[0][0] % geometry.ranks
    turned = [row[turn:] + row[:turn] for row in rows]
    return tuple(tuple(row[::-1] if j % 2 else row) for j, row in enumerate(turned))


def _shuffled(steps: Sequence[Step], key: tuple[int, int]) -> tuple[Step, ...]:
    if len(steps) < 2:
        return tuple(steps)
    order = Permutation(len(steps), *key)[np.arange(len(steps), dtype=np.int64)]
    return tuple(steps[i] for i in order.tolist())


def _draws(draws: Ints) -> Micro:
    return tuple(draws.tolist())
