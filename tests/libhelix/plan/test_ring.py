"""Free ranges of a ring against a model of bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from libhelix.plan.ring import gaps


@st.composite
def rings(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """A size, and extents round the ring that do not overlap, in any order."""
    lengths = draw(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), min_size=1, max_size=8))
    size, at = sum(n for _, n in lengths), draw(st.integers(0, 80))
    extents = []
    for taken, n in lengths:
        if taken:
            extents.append((at % size, n))
        at += n
    return size, draw(st.permutations(extents))


@given(rings(), st.integers(0, 80))
def test_gaps_are_the_bytes_that_no_extent_has(ring: tuple[int, list[tuple[int, int]]], start: int) -> None:
    size, extents = ring
    taken = [(offset + i) % size for offset, n in extents for i in range(n)]
    free = [(begin + i) % size for begin, n in gaps(extents, size, start) for i in range(n)]
    assert sorted(taken + free) == list(range(size))


@given(rings(), st.integers(0, 80))
def test_every_gap_is_whole_and_lies_between_extents(
    ring: tuple[int, list[tuple[int, int]]], start: int
) -> None:
    size, extents = ring
    begins, ends = {offset for offset, _ in extents}, {(offset + n) % size for offset, n in extents}
    for begin, n in gaps(extents, size, start):
        assert 0 <= begin < size
        if extents:
            assert begin in ends
            assert (begin + n) % size in begins


@given(rings(), st.integers(0, 80))
def test_gaps_come_in_the_order_of_the_ring_from_the_start_on(
    ring: tuple[int, list[tuple[int, int]]], start: int
) -> None:
    size, extents = ring
    distances = [(begin - start) % size for begin, _ in gaps(extents, size, start)]
    assert distances == sorted(distances)


def test_an_empty_ring_is_one_gap_and_a_full_one_has_none() -> None:
    assert gaps([], 100, 230) == [(30, 100)]
    assert gaps([(40, 100)], 100, 0) == []
    assert gaps([(40, 50), (90, 50)], 100, 0) == []
    assert gaps([(40, 20)], 100, 60) == [(60, 80)]
