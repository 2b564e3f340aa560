"""Which core makes which chain: as few as can be move when cores come and go."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from helixd.core.homes import Homes


def _where(homes: Homes, chains: int) -> list[int | None]:
    return [homes.core_of((1, chain)) for chain in range(chains)]


def _moved(before: list[int | None], after: list[int | None]) -> set[int]:
    return {chain for chain, (a, b) in enumerate(zip(before, after)) if a != b}


def test_a_core_that_goes_takes_no_chains_of_others_along() -> None:
    homes = Homes()
    homes.settle([2, 5, 7])
    before = _where(homes, 6)
    assert before == [2, 5, 7, 2, 5, 7]
    homes.settle([5, 7])
    assert _moved(before, _where(homes, 6)) == {0, 3}


def test_a_core_that_comes_gets_its_part_and_no_more_move() -> None:
    homes = Homes()
    homes.settle([1, 2])
    before = _where(homes, 6)
    homes.settle([1, 2, 3])
    after = _where(homes, 6)
    assert len(_moved(before, after)) == 2
    assert Counter(after) == {1: 2, 2: 2, 3: 2}


def test_without_cores_for_a_moment_all_stay() -> None:
    homes = Homes()
    assert homes.core_of((1, 0)) is None
    homes.settle([4, 6])
    before = _where(homes, 5)
    homes.settle([])
    homes.settle([4, 6])
    assert _where(homes, 5) == before


def test_loaders_of_one_chain_each_live_on_cores_of_their_own() -> None:
    homes = Homes()
    homes.settle([0, 1])
    assert [homes.core_of((loader, 0)) for loader in (1, 2)] == [0, 1]
    homes.forget(1)
    assert [homes.core_of((loader, 0)) for loader in (2, 3)] == [1, 0]


@pytest.mark.parametrize("seed", range(20))
def test_all_cores_always_have_alike_many(seed: int) -> None:
    rng = random.Random(seed)
    homes, chains = Homes(), rng.randrange(1, 20)
    for _ in range(30):
        cores = rng.sample(range(8), rng.randrange(1, 9))
        homes.settle(cores)
        its = Counter(_where(homes, chains))
        assert its.keys() <= set(cores)
        counts = [its[core] for core in cores]
        assert max(counts) - min(counts) <= 1
