"""The order of an epoch is a permutation, and always the same one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from libhelix.plan.order import BlockPermutation, Permutation, Permutations, source_seeds

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


# ---- blocks ------------------------------------------------------------------------------------------


def _blocks(n: int, block: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return BlockPermutation(n, block, seed, epoch)[np.arange(n)]


def _runs(order: NDArray[np.int64], block: int) -> list[int]:
    """The blocks in the order in which they come, one entry for each stretch of one."""
    numbers = order // block
    return numbers[np.flatnonzero(np.diff(numbers, prepend=-1))].tolist()  # type: ignore[no-any-return]


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 3000), st.integers(1, 400), seeds, st.integers(0, 1 << 40))
def test_in_blocks_every_element_comes_exactly_once_and_blocks_stay_together(
    n: int, block: int, seed: int, epoch: int
) -> None:
    order = _blocks(n, block, seed, epoch)
    assert sorted(order) == list(range(n))
    assert sorted(_runs(order, block)) == list(range(-(-n // block)))


@pytest.mark.parametrize("block", [1, 2, 3, 16, 17, 255, 256, 257, 258, 10**9])
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 255, 256, 257])
def test_in_blocks_every_element_comes_exactly_once_at_the_edges(n: int, block: int) -> None:
    assert np.array_equal(np.sort(_blocks(n, block, 3, 1)), np.arange(n))


@given(st.integers(1, 3000), seeds, st.integers(0, 1 << 40))
def test_blocks_of_one_are_the_plain_permutation(n: int, seed: int, epoch: int) -> None:
    assert np.array_equal(_blocks(n, 1, seed, epoch), _whole(n, seed, epoch))


@given(st.integers(1, 3000), st.integers(1, 400), seeds, st.data())
def test_in_blocks_any_positions_can_be_asked_for(n: int, block: int, seed: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=20)), dtype=np.int64)
    found = BlockPermutation(n, block, seed, 0)[positions]
    assert found.tolist() == _blocks(n, block, seed, 0)[positions].tolist()


def test_the_last_block_comes_anywhere_and_blocks_differ_inside() -> None:
    orders = [_blocks(10 * 8 + 5, 8, seed, 0) for seed in range(400)]
    where = np.bincount([_runs(order, 8).index(10) for order in orders], minlength=11)
    assert where.min() > 15
    first = np.array([np.argsort(order)[:80].reshape(10, 8).argmin(axis=1) for order in orders])
    assert np.bincount(first.ravel(), minlength=8).min() > 400
    assert (first == first[:, :1]).mean() < 0.3


def test_large_block_orders_stay_inside_and_repeat_nothing() -> None:
    n = (1 << 61) + 3
    found = BlockPermutation(n, 10**6 + 1, 5, 2)[np.arange(n // 3, n // 3 + 20_000)]
    assert found.min() >= 0
    assert found.max() < n
    assert len(np.unique(found)) == len(found)


def test_the_order_in_blocks_is_a_fixed_function() -> None:
    """These values are part of every checkpoint: a change here changes what a resumed job trains on."""
    assert _blocks(11, 3, 7, 3).tolist() == [1, 2, 0, 3, 5, 4, 7, 8, 6, 10, 9]
    large = BlockPermutation(10**9, 1000, 0, 0)[np.arange(4)]
    assert large.tolist() == [775528411, 775528566, 775528145, 775528611]
    assert source_seeds(7, 3).tolist() == [7, 13309476754707697221, 11984929618412882174]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 50)), min_size=1, max_size=8), seeds, st.data())
def test_several_orders_looked_up_at_once_are_each_its_own(
    shapes: list[tuple[int, int]], seed: int, data: st.DataObject
) -> None:
    sizes, blocks = zip(*shapes)
    own = source_seeds(seed, len(sizes))
    which = data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=20))
    asked = [(s, data.draw(st.integers(0, 99)), data.draw(st.integers(0, sizes[s] - 1))) for s in which]
    columns = np.array(asked, dtype=np.int64).reshape(-1, 3).T
    found = Permutations(sizes, blocks, own).elements(columns[0], columns[1].astype(np.uint64), columns[2])
    each = [BlockPermutation(*shapes[s], int(own[s]), e)[np.array([at])].item() for s, e, at in asked]
    assert found.tolist() == each
