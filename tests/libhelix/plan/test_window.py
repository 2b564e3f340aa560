"""Packing: the same bins and steps as a straightforward version gives, at a small part of its time."""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from libhelix.plan.swaps import swapped
from libhelix.plan.window import (
    FILLER,
    Caps,
    Ending,
    Geometry,
    Items,
    pack,
    plan_capped,
    plan_fixed,
    scattered,
)

KEY = (1, 2)
many = settings(deadline=None, max_examples=300)


def straightforward(items: Items, bins: int, caps: Caps, stop: int) -> list[int]:
    """Each item, carried ones and the heaviest first, into the lightest bin of nine that takes it."""
    ties = scattered(items.draws)
    order = sorted(range(stop), key=lambda i: (i >= items.carried, -items.weight[i], ties[i]))
    heap = [(0, number) for number in range(bins)]
    held: list[list[int]] = [[] for _ in range(bins)]
    where = [-1] * len(items.draws)
    for i in order:
        passed: list[tuple[int, int]] = []
        while heap and len(passed) < 9:
            load, number = heapq.heappop(heap)
            sums = items.sizes[[*held[number], i]].sum(axis=0)
            if all(total <= cap for total, cap in zip(sums, caps.sizes)):
                where[i] = number
                held[number].append(i)
                if len(held[number]) < caps.samples:
                    heapq.heappush(heap, (load + int(items.weight[i]), number))
                break
            passed.append((load, number))
        for entry in passed:
            heapq.heappush(heap, entry)
    return where


def micro_batches(items: Items, where: Sequence[int], bins: int, filled: int = 1) -> list[tuple[int, ...]]:
    """The bins, the heaviest first."""
    held: list[list[int]] = [[] for _ in range(bins)]
    for i, at in enumerate(where):
        if at >= 0:
            held[at].append(i)
    held.sort(key=lambda mine: -sum(int(items.weight[i]) for i in mine))
    draws = [tuple(int(items.draws[i]) for i in mine) for mine in held]
    return [found + (FILLER,) * (filled - len(found)) for found in draws]


def turned(step: list[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """The heaviest is at another rank in every step."""
    turn = step[0][0] % len(step)
    return (*step[turn:], *step[:turn])


@st.composite
def windows(draw: st.DrawFn) -> Items:
    n = draw(st.integers(1, 80))
    weight = draw(
        st.lists(st.integers(1, draw(st.sampled_from([1, 3, 50, 1 << 40]))), min_size=n, max_size=n)
    )
    sizes = draw(st.lists(st.tuples(*[st.integers(0, 20)] * 3), min_size=n, max_size=n))
    columns = draw(st.integers(0, 3))
    carried = draw(st.integers(0, n))
    draws = np.cumsum(np.asarray(draw(st.lists(st.integers(1, 3), min_size=n, max_size=n))))
    return Items(
        draws,
        np.asarray(weight, dtype=np.int64),
        np.asarray(sizes, dtype=np.int64)[:, :columns],
        (),
        carried,
    )


@many
@given(windows(), st.integers(1, 12), st.sampled_from([1, 2, 5, 1 << 20]), st.integers(1, 60), st.data())
def test_items_go_where_a_straightforward_version_puts_them(
    items: Items, bins: int, samples: int, cap: int, data: st.DataObject
) -> None:
    n = len(items.draws)
    stop = data.draw(st.integers(0, n))
    caps = Caps(samples, (cap, 2 * cap, cap)[: items.sizes.shape[1]])
    expected = straightforward(items, bins, caps, stop)
    assert pack(items, bins, caps, stop).tolist() == expected


@many
@given(windows(), st.integers(1, 4), st.integers(1, 4))
def test_a_fixed_step_has_the_micro_batches_of_a_straightforward_version(
    items: Items, ranks: int, samples: int
) -> None:
    stop = len(items.draws) // (ranks * samples) * (ranks * samples)
    bins = stop // samples
    where = np.asarray(straightforward(items, bins, Caps(samples), stop), dtype=np.int64)
    levelled = swapped(items.weight, where, bins, samples, ranks).tolist()
    expected = micro_batches(items, levelled, bins, samples)
    planned = plan_fixed(items, samples, ranks * samples, Geometry(ranks, 1, ranks), Ending(True, False), KEY)
    steps = [turned(expected[a : a + ranks]) for a in range(0, bins, ranks)]
    assert sorted(step[0] for step in planned.steps) == sorted(steps)
    assert planned.dropped == tuple(items.draws[stop:].tolist())


@many
@given(windows(), st.integers(1, 4), st.integers(20, 60), st.integers(1, 3))
def test_a_capped_step_has_the_micro_batches_of_a_straightforward_version(
    items: Items, ranks: int, cap: int, steps: int
) -> None:
    items = items._replace(carried=0)
    bins = ranks * max(1, min(steps, len(items.draws) // ranks))
    caps = Caps(1 << 20, (cap, cap, cap)[: items.sizes.shape[1]])
    where = straightforward(items, bins, caps, len(items.draws))
    expected = micro_batches(items, where, bins)
    planned = plan_capped(items, caps, steps, Geometry(ranks, 1, ranks), Ending(False, False), KEY)
    found = [turned(expected[a : a + ranks]) for a in range(0, bins, ranks)]
    assert sorted(step[0] for step in planned.steps) == sorted(found)
    assert planned.left == tuple(int(d) for d, at in zip(items.draws, where) if at < 0)


def test_items_that_fit_nowhere_cost_no_more_than_those_that_do() -> None:
    def took_s(cap: int) -> float:
        n = 20_000
        one = np.ones(n, dtype=np.int64)
        began_s = time.process_time()
        where = pack(Items(np.arange(n), one, one[:, None], ()), 2000, Caps(1 << 20, (cap,)))
        assert int((where >= 0).sum()) == 2000 * min(cap, 10)
        return time.process_time() - began_s

    fit_s, refused_s = (min(took_s(cap) for _ in range(3)) for cap in (10, 1))
    assert refused_s < 5 * fit_s
