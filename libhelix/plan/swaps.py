"""Swaps of samples between micro-batches of equally many, so that the ranks of a step carry alike.

Longest processing time makes micro-batches alike but for those of the few heaviest samples. These come
together in a step, which lasts as long as the heaviest of them, and its other ranks wait. Here they get
heavier companions instead, up to what the step lasts anyway or one and a half times the mean, and other steps
become shorter.

A round pairs micro-batches off, and each pair swaps the two samples that fill most of the room there is. No
swap makes the heaviest micro-batch of a step heavier. All numbers are whole: the same samples give the same
swaps everywhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_ROUNDS = 24
_ENOUGH = 200
"""Steps may last one part in so many longer than if ranks were level."""
_MOST_HALVES = 3
"""How heavy company may make a micro-batch, in halves of the mean. A step that is heavy on all ranks asks for
more decoding at once than a few batches of look-ahead even out. In bench simulate, with rings of three
batches, twice the mean gave 2 % more samples a second and four times the misses; no limit, 3 % less.
"""
_SHOWN = 8
"""Samples of a micro-batch that are looked at: where there are more, they level each other."""


def swapped(weight: Ints, where: Ints, bins: int, samples: int, per_step: int) -> Ints:
    """Which micro-batch each item is in, after swaps.

    weight     [n] of the items
    where      [n] the micro-batches they are in, -1 for none
    bins       how many there are; a multiple of `per_step`
    samples    places of a micro-batch; what is in some of them only, fillers beside it, stays there
    per_step   micro-batches of like weight, which form a step
    """
    if per_step == 1 or samples == 1:
        return where
    held = _held(where, bins, samples)
    load = np.where(held >= 0, weight[held], 0)
    few = min(samples, _SHOWN)
    shown = np.arange(few) * (samples - 1) // (few - 1)
    numbers, before = np.arange(bins), -1
    for turn in range(_ROUNDS):
        order = np.argsort(-load.sum(axis=1), kind="stable")
        held, load, numbers = held[order], load[order], numbers[order]
        loads = load.sum(axis=1)
        idle = np.repeat(loads[::per_step], per_step) - loads
        waste = int(idle.sum())
        if waste * _ENOUGH <= int(loads.sum()) or (turn % 3 == 0 and waste == before):
            break
        before = waste if turn % 3 == 0 else before
        if turn % 3 == 0:
            takes, gives, room = _of_one_step(loads, per_step)
        else:
            free = np.minimum(idle, np.maximum(0, int(loads.sum()) * _MOST_HALVES // (2 * bins) - loads))
            takes, gives, room = _of_two_steps(free, per_step, turned=turn % 3 == 2)
        _swap(held, load, takes, gives, room, shown)
    found: Ints = where.copy()
    for place in range(samples):
        kept = held[:, place] >= 0
        found[held[kept, place]] = numbers[kept]
    return found


def _held(where: Ints, bins: int, samples: int) -> Ints:
    """The items of each micro-batch [bins, samples], -1 where there is none."""
    order = np.argsort(where, kind="stable")
    order = order[where[order] >= 0]
    places = np.arange(len(order)) - np.searchsorted(where[order], where[order])
    held = np.full((bins, samples), -1, dtype=np.int64)
    held[where[order], places] = order
    return held


def _of_one_step(loads: Ints, per_step: int) -> tuple[Ints, Ints, Ints]:
    """The heaviest with the lightest, and so on: half of what lies between them is room."""
    firsts = np.arange(0, len(loads), per_step)[:, None]
    pairs = np.arange(per_step // 2)
    gives, takes = (firsts + pairs).ravel(), (firsts + per_step - 1 - pairs).ravel()
    return takes, gives, (loads[gives] - loads[takes]) // 2


def _of_two_steps(free: Ints, per_step: int, *, turned: bool) -> tuple[Ints, Ints, Ints]:
    """Those that have most room, with those that have least, of lighter steps."""
    order = np.argsort(-free, kind="stable")
    half = len(order) // 2
    waiting, others = np.sort(order[:half]), np.sort(order[half : 2 * half])
    if turned:
        others = others[::-1]
    takes, gives = np.minimum(waiting, others), np.maximum(waiting, others)
    apart = takes // per_step < gives // per_step
    takes, gives = takes[apart], gives[apart]
    return takes, gives, free[takes]


def _swap(held: Ints, load: Ints, takes: Ints, gives: Ints, room: Ints, shown: Ints) -> None:
    """In each pair the two samples that make `takes` heaviest, by `room` at most."""
    from_, to = load[gives][:, shown], load[takes][:, shown]
    more = from_[:, :, None] - to[:, None, :]
    real = (held[gives][:, shown] >= 0)[:, :, None] & (held[takes][:, shown] >= 0)[:, None, :]
    more = np.where(real & (more <= room[:, None, None]), more, 0).reshape(len(more), len(shown) ** 2)
    best = more.argmax(axis=1)
    found = np.flatnonzero(more[np.arange(len(more)), best] > 0)
    i, j = shown[best[found] // len(shown)], shown[best[found] % len(shown)]
    a, b = gives[found], takes[found]
    for values in (held, load):
        values[a, i], values[b, j] = values[b, j], values[a, i]
