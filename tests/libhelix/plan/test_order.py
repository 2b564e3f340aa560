"""The order of an epoch is a permutation, and always the same one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from libhelix.plan.order import Permutation

seeds = st.integers(-(1 << 63), (1 << 64) - 1)


def _whole(n: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return Permutation(n, seed, epoch)[np.arange(n)]


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 5000), seeds, st.integers(0, 1 << 40))
def test_every_element_comes_exactly_once(n: int, seed: int, epoch: int) -> None:
    assert sorted(_whole(n, seed, epoch)) == list(range(n))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 15, 16, 17, 255, 256, 257, 65536, 65537])
def test_every_element_comes_exactly_once_at_the_edges_of_the_network(n: int) -> None:
    assert np.array_equal(np.sort(_whole(n, 3, 1)), np.arange(n))


@pytest.mark.parametrize("n", [(1 << 31) + 1, 10**12 + 7, 1 << 48, (1 << 61) + 3])
def test_large_orders_stay_inside_and_repeat_nothing(n: int) -> None:
    start = n // 3
    found = Permutation(n, 5, 2)[np.arange(start, start + 20_000)]
    assert found.min() >= 0
    assert found.max() < n
    assert len(np.unique(found)) == len(found)


def test_the_order_is_a_fixed_function() -> None:
    """These values are part of every checkpoint: a change here changes what a resumed job trains on."""
    assert Permutation(1000, 7, 3)[np.arange(8)].tolist() == [261, 773, 710, 659, 144, 589, 152, 7]
    assert Permutation(10**9, 0, 0)[np.arange(4)].tolist() == [507113704, 315882538, 511585787, 923684787]


@given(st.integers(100, 3000), seeds, st.integers(0, 1000))
def test_another_seed_or_epoch_is_another_order(n: int, seed: int, epoch: int) -> None:
    here = _whole(n, seed, epoch)
    for other in (_whole(n, seed ^ 1, epoch), _whole(n, seed, epoch + 1)):
        assert (here == other).mean() < 0.2


@given(st.integers(1, 3000), seeds, st.data())
def test_any_positions_can_be_asked_for_in_any_order(n: int, seed: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=20)), dtype=np.int64)
    assert Permutation(n, seed, 0)[positions].tolist() == _whole(n, seed, 0)[positions].tolist()


def test_an_order_mixes_all_of_the_data_set() -> None:
    """Each tenth of an epoch draws from every tenth of the data set, about evenly."""
    order = _whole(10_000, 11, 0).reshape(10, 1000) // 1000
    counts = np.array([np.bincount(tenth, minlength=10) for tenth in order])
    assert counts.min() > 60
    assert counts.max() < 140
