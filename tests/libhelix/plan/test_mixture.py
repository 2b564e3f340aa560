"""Sources come in proportion to their weights at every prefix, and each walks its samples evenly."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libhelix.errors import UsageError
from libhelix.plan.interleave import MAX_PERIOD, Interleave, Ints, parts_of
from libhelix.plan.mixture import MAX_PLACE, Mixture, Part
from libhelix.plan.order import BlockPermutation, Permutation, source_seeds
from libhelix.wire.settings import Segment

seeds = st.integers(-(1 << 62), (1 << 62) - 1)
floats = st.floats(0.5, 100.0)
some_parts = st.lists(st.integers(0, 120), min_size=1, max_size=30).filter(any).map(tuple)


def _in_bounds(parts: tuple[int, ...], sources: Ints) -> None:
    """Every source is less than 1 from its share at every prefix of these places.

    A source is furthest ahead just after a draw of its own, and furthest behind just before one (or at the
    end), so that looking there is looking at every prefix.
    """
    share, period, places = np.array(parts, dtype=np.int64), sum(parts), np.arange(len(sources))
    order = np.argsort(sources, kind="stable")
    count = np.empty(len(sources), dtype=np.int64)
    count[order] = np.arange(len(sources)) - np.searchsorted(sources[order], sources[order])
    own = share[sources]
    assert (own > 0).all()
    assert ((count + 1) * period - own * (places + 1) < period).all()
    assert (own * places - count * period < period).all()
    assert (share * len(sources) - np.bincount(sources, minlength=len(parts)) * period < period).all()


# ---- interleave --------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=300)
@given(some_parts)
def test_every_prefix_is_within_one_of_the_weights(parts: tuple[int, ...]) -> None:
    period = sum(parts)
    sources, counts = Interleave(parts).at(np.arange(2 * period))
    came = np.cumsum(sources[:, None] == np.arange(len(parts)), axis=0)
    ideal = np.arange(1, 2 * period + 1)[:, None] * np.array(parts)
    assert (np.abs(came * period - ideal) < period).all()
    assert (came[np.arange(2 * period), sources] - 1 == counts).all()
    _in_bounds(parts, sources)


@settings(deadline=None, max_examples=15)
@given(st.lists(floats, min_size=2, max_size=200))
def test_every_prefix_is_within_one_where_weights_fit_no_small_period(weights: list[float]) -> None:
    parts = parts_of(weights)
    _in_bounds(parts, Interleave(parts).at(np.arange(sum(parts)))[0])


@pytest.mark.parametrize(
    "parts",
    [
        (1,) * MAX_PERIOD,
        (MAX_PERIOD - 1, 1),
        (1, MAX_PERIOD - 1),
        (1 << 15, *[1] * (1 << 15)),
        tuple(range(362)),
    ],
)
def test_every_prefix_is_within_one_in_the_longest_periods(parts: tuple[int, ...]) -> None:
    _in_bounds(parts, Interleave(parts).at(np.arange(sum(parts)))[0])


@settings(deadline=None)
@given(some_parts, st.integers(1, 300), st.integers(0, 10**12), st.integers(0, 500))
def test_any_place_can_be_asked_for(parts: tuple[int, ...], span: int, far: int, more: int) -> None:
    whole = Interleave(parts)
    sources, counts = whole.at(np.arange(far, far + more))
    came = whole.counts(far)
    for source, count in zip(sources.tolist(), counts.tolist()):
        assert came[source] == count
        came[source] += 1
    assert came.tolist() == whole.counts(far + more).tolist()
    short = Interleave(parts, span).at(np.arange(min(span, sum(parts))))
    assert np.array_equal(short, whole.at(np.arange(min(span, sum(parts)))))


def test_the_interleave_is_a_fixed_function() -> None:
    """These values are part of every checkpoint: a change here changes what a resumed job trains on."""
    assert "".join(map(str, Interleave((7, 3)).at(np.arange(12))[0])) == "001001000100"
    assert "".join(map(str, Interleave((5, 1, 1, 3)).at(np.arange(20))[0])) == "03030102030303010203"


# ---- weights -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "parts"),
    [
        ((0.7, 0.3), (7, 3)),
        ((0.7, 0.2, 0.1), (7, 2, 1)),
        ((0.1 + 0.2, 0.7), (3, 7)),
        ((1 / 3, 2 / 3), (1, 2)),
        ((70, 30), (7, 3)),
        ((1e-300, 3e-300), (1, 3)),
        ((1e300, 1e300), (1, 1)),
        ((0, 5.5, 0), (0, 1, 0)),
        ((558_000, 1_000_000, 42_000), (279, 500, 21)),
        ((math.pi, math.e), (35135, 30401)),
        ((10**12, 10**12 + 1), (1, 1)),
    ],
)
def test_weights_become_whole_parts(weights: tuple[float, ...], parts: tuple[int, ...]) -> None:
    assert parts_of(weights) == parts


@given(some_parts, st.floats(1e-6, 1e6))
def test_scaled_whole_weights_are_kept_exactly(parts: tuple[int, ...], scale: float) -> None:
    common = math.gcd(*parts)
    assert parts_of([part * scale for part in parts]) == tuple(part // common for part in parts)


@given(st.lists(floats, min_size=1, max_size=50))
def test_other_weights_are_kept_to_one_part_of_the_longest_period(weights: list[float]) -> None:
    parts = parts_of(weights)
    assert sum(parts) <= MAX_PERIOD
    total = sum(map(Fraction, weights))
    for part, weight in zip(parts, weights):
        assert abs(Fraction(part, sum(parts)) - Fraction(weight) / total) < Fraction(1, MAX_PERIOD)


# ---- mixtures ----------------------------------------------------------------------------------------


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any))
    weights = st.tuples(*(st.integers(0, 9) if size else st.just(0) for size in sizes)).filter(any)
    firsts = sorted(draw(st.sets(st.integers(1, 300), max_size=5)))
    return Mixture(
        sizes,
        [Segment(first, draw(weights)) for first in [0, *firsts]],
        draw(seeds),
        shuffle=draw(st.booleans()),
        block=draw(st.integers(1, 9) | st.tuples(*(st.integers(1, 9) for _ in sizes))),
        epoch_draws=draw(st.none() | st.integers(1, 100)),
    )


def _walk(mixture: Mixture, places: int) -> tuple[list[int], list[int]]:
    """The first draws of the stream, epoch after epoch."""
    ids, occurrences = [], []
    for epoch in range(-(-places // mixture.epoch_draws)):
        found = mixture.draws(epoch, np.arange(mixture.epoch_draws))
        ids += found[0].tolist()
        occurrences += found[1].tolist()
    return ids[:places], occurrences[:places]


@settings(deadline=None, max_examples=100)
@given(st.data(), st.lists(st.integers(1, 20), min_size=1, max_size=4), seeds, st.integers(1, 5))
def test_what_is_left_out_is_never_drawn_and_all_else_as_often_as_it_was(
    data: st.DataObject, sizes: list[int], seed: int, block: int
) -> None:
    total = sum(sizes)
    gone = sorted(data.draw(st.sets(st.integers(0, total - 1), max_size=total - 1)))
    ends = np.cumsum(sizes)
    left = [n - sum(e - n <= g < e for g in gone) for n, e in zip(sizes, ends.tolist())]
    schedule = [Segment(0, tuple(float(n) for n in left))]
    mixture = Mixture(sizes, schedule, seed, block=block, without=gone)
    assert mixture.epoch_draws == total - len(gone)
    for epoch in range(3):
        ids, occurrences = mixture.draws(epoch, np.arange(mixture.epoch_draws))
        assert sorted(ids.tolist()) == sorted(set(range(total)) - set(gone))
        assert set(occurrences.tolist()) == {epoch}


@settings(deadline=None, max_examples=200)
@given(mixtures())
def test_each_segment_is_within_one_of_its_weights_at_every_prefix(mixture: Mixture) -> None:
    ends = [segment.first for segment in mixture.schedule[1:]] + [mixture.schedule[-1].first + 200]
    for segment, end in zip(mixture.schedule, ends):
        sources, _ = mixture.at(np.arange(segment.first, end))
        _in_bounds(parts_of(segment.weights), sources)
        effective = mixture.effective(segment.first)
        assert [weight * sum(segment.weights) for weight in effective] == list(segment.weights)
        counts = np.array([mixture.counts(p) for p in (segment.first, end)])
        assert np.array_equal(counts[1] - counts[0], np.bincount(sources, minlength=len(mixture.sizes)))


@settings(deadline=None, max_examples=200)
@given(mixtures(), st.data())
def test_a_place_is_what_a_walk_from_the_start_comes_to(mixture: Mixture, data: st.DataObject) -> None:
    ids, occurrences = _walk(mixture, 500)
    places = data.draw(st.lists(st.integers(0, 499), max_size=20))
    for place in places:
        epoch, draw = divmod(place, mixture.epoch_draws)
        found = mixture.draws(epoch, np.array([draw]))
        assert (found[0].item(), found[1].item()) == (ids[place], occurrences[place])
    at = np.array([place for place in places if place < mixture.epoch_draws], dtype=np.int64)
    assert mixture.draws(0, at)[0].tolist() == [ids[place] for place in at]


@settings(deadline=None, max_examples=200)
@given(mixtures(), st.integers(0, 500))
def test_no_sample_of_a_source_is_drawn_more_than_once_more_than_another(
    mixture: Mixture, places: int
) -> None:
    ids, occurrences = _walk(mixture, places)
    drawn: Counter[int] = Counter()
    for sample, occurrence in zip(ids, occurrences):
        assert drawn[sample] == occurrence
        drawn[sample] += 1
    offset = 0
    for size, count in zip(mixture.sizes, mixture.counts(places)):
        times = [drawn[sample] for sample in range(offset, offset + size)]
        assert sum(times) == count
        assert not times or max(times) - min(times) <= 1
        offset += size


@settings(deadline=None, max_examples=200)
@given(mixtures(), st.integers(0, 400), st.integers(0, 400))
def test_coverage_says_how_often_each_sample_was_drawn(mixture: Mixture, first: int, more: int) -> None:
    drawn = Counter(_walk(mixture, first + more)[0][first:])
    told: Counter[int] = Counter()
    offset = 0
    for source, (size, covered) in enumerate(zip(mixture.sizes, mixture.coverage(first, first + more))):
        told.update({sample: covered.full for sample in range(offset, offset + size) if covered.full})
        for part in covered.parts:
            at = np.arange(part.begin, part.end)
            told.update(mixture.ids(np.full_like(at, source), np.full_like(at, part.occurrence), at).tolist())
        assert sum(drawn[sample] for sample in range(offset, offset + size)) == covered.draws
        offset += size
    assert told == drawn


@given(st.integers(1, 300), st.integers(1, 20), seeds, st.integers(0, 1 << 40))
def test_a_mixture_of_one_source_is_its_permutation(n: int, block: int, seed: int, epoch: int) -> None:
    at = np.arange(n)
    ids, occurrences = Mixture([n], [Segment(0, (0.3,))], seed, block=block).draws(epoch, at)
    assert np.array_equal(ids, BlockPermutation(n, block, seed, epoch)[at])
    assert (occurrences == epoch).all()


def test_every_source_walks_its_own_permutations() -> None:
    mixture = Mixture([10, 30], [Segment(0, (1, 2))], 5, epoch_draws=45)
    ids, occurrences = mixture.draws(1, np.arange(45))
    own = source_seeds(5, 2).tolist()
    passes = [Permutation(10, own[0], k)[np.arange(10)].tolist() for k in range(3)]
    assert ids[ids < 10].tolist() == passes[1][5:] + passes[2]
    assert occurrences[ids < 10].tolist() == [1] * 5 + [2] * 10
    assert (ids[ids >= 10] - 10).tolist() == Permutation(30, own[1], 1)[np.arange(30)].tolist()


def test_without_shuffle_every_source_comes_in_its_own_order() -> None:
    ids, occurrences = Mixture([3, 100], [Segment(0, (1, 1))], 5, shuffle=False).draws(0, np.arange(10))
    assert sorted(ids[ids < 3].tolist()) == [0, 0, 1, 1, 2]
    assert ids[ids < 3].tolist() == [0, 1, 2, 0, 1]
    assert ids[ids >= 3].tolist() == [3, 4, 5, 6, 7]
    assert occurrences[ids < 3].tolist() == [0, 0, 0, 1, 1]


def test_a_source_can_join_later_and_change_nothing_before() -> None:
    before = Mixture([50, 50], [Segment(0, (1, 0))], 5)
    after = Mixture([50, 50], [Segment(0, (1, 0)), Segment(130, (1, 1))], 5)
    assert _walk(before, 130) == _walk(after, 130)
    assert after.counts(130) == (130, 0)
    assert after.counts(230) == (180, 50)
    assert after.effective(129) == (Fraction(1), Fraction(0))
    assert after.effective(130) == (Fraction(1, 2), Fraction(1, 2))


def test_a_schedule_is_plain_data() -> None:
    schedule = (Segment(0, (0.7, 0.3)), Segment(9, (0, 1)))
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(schedule), type=tuple[Segment, ...])
    assert _walk(Mixture([5, 6], stored, 1), 50) == _walk(Mixture([5, 6], schedule, 1), 50)


def test_a_mixture_is_a_fixed_function() -> None:
    """These values are part of every checkpoint: a change here changes what a resumed job trains on."""
    schedule = [Segment(0, (0.5, 0.3, 0.2)), Segment(9, (0, 1, 1))]
    ids, occurrences = _walk(Mixture([5, 100, 7], schedule, 7, epoch_draws=12), 24)
    assert ids[:12] == [1, 5, 0, 109, 3, 89, 4, 24, 2, 12, 106, 62]
    assert ids[12:] == [111, 72, 107, 61, 108, 77, 105, 68, 110, 28, 110, 56]
    assert occurrences == [0] * 22 + [1, 0]
    mixture = Mixture([1000, 10], [Segment(0, (3, 1))], 7, block=4)
    ids = mixture.draws(2, np.arange(12))[0].tolist()
    assert ids == [340, 413, 414, 1004, 415, 412, 120, 1003, 123, 121, 122, 1002]
    assert mixture.counts(10**6) == (750_000, 250_000)


def test_many_draws_are_the_same_as_few() -> None:
    mixture = Mixture([70_001, 1000], [Segment(0, (2, 1)), Segment(30_000, (1, 2))], 3)
    at = np.arange(70_000)
    whole = mixture.draws(0, at)
    halves = [mixture.draws(0, half) for half in (at[:12_345], at[12_345:])]
    assert np.array_equal(whole, np.concatenate(halves, axis=1))
    assert len(mixture.draws(0, at[:0])[0]) == 0


def test_coverage_of_a_stretch_inside_one_pass() -> None:
    covered = Mixture([10], [Segment(0, (1,))], 0).coverage(13, 17)[0]
    assert (covered.draws, covered.full, covered.parts) == (4, 0, (Part(1, 3, 7),))


# ---- bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "schedule", "more", "text"),
    [
        ([5, 5], [(0, (1, -2))], {}, r"schedule\[0\].weights\[1\] = -2 is negative"),
        ([5, 5], [(0, (1, 1)), (9, (0, 0))], {}, r"schedule\[1\].weights sum to 0"),
        ([5, 5], [(0, (1, math.nan))], {}, r"weights\[1\] = nan is not a number"),
        ([5, 5], [(0, (math.inf, 1))], {}, r"weights\[0\] = inf is not a number"),
        ([5, 0], [(0, (1, 0.5))], {}, r"weights\[1\] = 0.5, but source 1 is empty"),
        ([5, 5], [(0, (1, 1, 1))], {}, r"weights has 3 entries for 2 sources"),
        ([5, 5], [(0, (1, 1e-9))], {}, r"weights\[1\] = 1e-09 is 1e-09 of their sum"),
        ([1] * 65537, [(0, (1,) * 65537)], {}, r"65537 sources; at most 65536"),
        ([], [(0, ())], {}, r"give from 1 to"),
        ([5], [], {}, "no weights for place 0"),
        ([5], [(3, (1,))], {}, "no weights for place 0"),
        ([5], [(0, (1,)), (9, (1,)), (9, (1,))], {}, r"schedule\[2\] starts at place 9, not after"),
        ([5], [(0, (1,)), (MAX_PLACE, (1,))], {}, "the stream ends"),
        ([5, -1], [(0, (1, 1))], {}, r"sizes\[1\] = -1"),
        ([MAX_PLACE], [(0, (1,))], {}, "reach"),
        ([5], [(0, (1,))], {"block": 0}, "block = 0 for source 0"),
        ([5], [(0, (1,))], {"block": [2, 2]}, "block has 2 entries for 1 sources"),
        ([5], [(0, (1,))], {"epoch_draws": 0}, "epoch_draws=0"),
    ],
)
def test_what_cannot_be_mixed_is_refused_by_name(
    sizes: list[int],
    schedule: list[tuple[int, tuple[float, ...]]],
    more: dict[str, int],
    text: str,
) -> None:
    with pytest.raises(UsageError, match=text):
        Mixture(sizes, [Segment(*segment) for segment in schedule], 0, **more)  # type: ignore[arg-type]


def test_places_outside_the_stream_are_refused() -> None:
    mixture = Mixture([5], [Segment(0, (1,))], 0)
    with pytest.raises(UsageError, match="place -1 is not in the stream"):
        mixture.counts(-1)
    with pytest.raises(UsageError, match="runs backwards"):
        mixture.coverage(3, 2)
    for epoch, draw in ((0, -1), (MAX_PLACE, 0)):
        with pytest.raises(UsageError, match=f"epoch {epoch} has draws before"):
            mixture.draws(epoch, np.array([draw]))
