"""Swaps between micro-batches: no step gets longer, nothing is lost, and ranks of heavy tails are level."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from libhelix.plan.swaps import swapped
from libhelix.plan.window import Caps, Items, pack

Ints = NDArray[np.int64]


def _items(weight: list[int] | Ints) -> Items:
    n = len(weight)
    return Items(np.arange(n), np.asarray(weight, dtype=np.int64), np.zeros((n, 0), dtype=np.int64), ())


def _lasts(weight: Ints, where: Ints, bins: int, per_step: int) -> list[int]:
    """The heaviest micro-batch of every step, if micro-batches of like weight form one."""
    loads = np.zeros(bins, dtype=np.int64)
    np.add.at(loads, where[where >= 0], weight[where >= 0])
    return [int(load) for load in np.sort(loads)[::-1][::per_step]]


@settings(deadline=None, max_examples=500)
@given(
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(1, 12),
    st.sampled_from([1, 3, 50, 1 << 40]),
    st.integers(0, 7),
    st.data(),
)
def test_steps_get_no_longer_together_and_micro_batches_hold_as_many(
    steps: int, per_step: int, samples: int, heaviest: int, missing: int, data: st.DataObject
) -> None:
    bins = steps * per_step
    n = max(1, bins * samples - missing)
    items = _items(data.draw(st.lists(st.integers(1, heaviest), min_size=n, max_size=n)))
    where = pack(items, bins, Caps(samples))
    found = swapped(items.weight, where, bins, samples, per_step)
    assert np.bincount(found, minlength=bins).tolist() == np.bincount(where, minlength=bins).tolist()
    before, after = (_lasts(items.weight, at, bins, per_step) for at in (where, found))
    assert sum(after) <= sum(before)
    assert found.tolist() == swapped(items.weight, where, bins, samples, per_step).tolist()
    part = swapped(items.weight, np.append(where, -1), bins, samples, per_step)
    assert part.tolist() == [*found.tolist(), -1], "what is in none stays there"


@pytest.mark.parametrize(
    ("samples", "ranks", "sigma", "of_before"),
    [(4, 8, 0.6, 0.4), (4, 64, 0.6, 0.65), (8, 8, 0.8, 0.45), (12, 8, 0.8, 0.5), (4, 8, 1.0, 0.9)],
)
def test_ranks_wait_less_for_log_normal_lengths(
    samples: int, ranks: int, sigma: float, of_before: float
) -> None:
    steps, was, now = 8, 0.0, 0.0
    for seed in range(20):
        weight = (
            np.random.default_rng(seed).lognormal(6.0, sigma, steps * ranks * samples).astype(np.int64) + 1
        )
        where = pack(_items(weight), steps * ranks, Caps(samples))
        mean = weight.sum() / ranks
        was += sum(_lasts(weight, where, steps * ranks, ranks)) / mean - 1
        now += (
            sum(_lasts(weight, swapped(weight, where, steps * ranks, samples, ranks), steps * ranks, ranks))
            / mean
            - 1
        )
    assert now <= of_before * was
