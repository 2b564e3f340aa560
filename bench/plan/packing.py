"""Longest processing time and swaps, as plans use them, against differencing (Karmarkar and Karp 1982)."""

from __future__ import annotations

import heapq
import time
from typing import NamedTuple

import numpy as np

from bench.plan.distributions import Ints
from libhelix.plan.swaps import swapped
from libhelix.plan.window import Caps, Items, pack


class Packing(NamedTuple):
    """max/mean over the ranks of a step, the mean of the steps; CPU time of a step."""

    imbalance: float
    ms_per_step: float


def longest_first(costs: Ints, ranks: int, samples: int) -> Packing:
    """What libhelix.plan does with whole windows: costs is [windows, steps * ranks * samples]."""
    bins = costs.shape[1] // samples
    loads, began_s = [], time.process_time()
    for window in costs:
        n = len(window)
        where = pack(Items(np.arange(n), window, np.zeros((n, 0), dtype=np.int64), ()), bins, Caps(samples))
        where = swapped(window, where, bins, samples, ranks)
        order = np.argsort(where, kind="stable")
        loads.append(window[order].reshape(bins, samples).sum(axis=1))
    return _packing(loads, ranks, time.process_time() - began_s)


def differenced(costs: Ints, ranks: int, samples: int) -> Packing:
    """The same by differencing."""
    loads, began_s = [], time.process_time()
    for window in costs:
        where = differencing(window, samples)
        loads.append(window[where].sum(axis=1))
    return _packing(loads, ranks, time.process_time() - began_s)


def differencing(costs: Ints, samples: int) -> Ints:
    """Items by bin, [bins, samples]: of equal count, by the largest differences first.

    The items, the heaviest first, are rows of one for each bin. The two rows that are the furthest from level
    become one, the heaviest of one with the lightest of the other, until there is one row: the balanced
    variant (Yakir 1996; Michiels, Korst, Aarts, van Leeuwen 2003), for any number of bins.
    """
    bins = len(costs) // samples
    rows = np.argsort(-costs, kind="stable").reshape(samples, bins)
    parts = [(costs[row], row[:, None]) for row in rows]  # loads, the heaviest first, and their items
    level = [(-int(loads[0] - loads[-1]), k) for k, (loads, _) in enumerate(parts)]
    heapq.heapify(level)
    while len(level) > 1:
        one, other = (parts[heapq.heappop(level)[1]] for _ in range(2))
        loads = one[0] + other[0][::-1]
        order = np.argsort(-loads, kind="stable")
        parts.append((loads[order], np.concatenate((one[1], other[1][::-1]), axis=1)[order]))
        heapq.heappush(level, (-int(parts[-1][0][0] - parts[-1][0][-1]), len(parts) - 1))
    return parts[-1][1]


def _packing(loads: list[Ints], ranks: int, took_s: float) -> Packing:
    """Bins of like weight form steps."""
    steps = np.concatenate([np.sort(one).reshape(-1, ranks) for one in loads])
    return Packing(float((steps[:, -1] / steps.mean(axis=1)).mean()), took_s / len(steps) * 1e3)
